use super::modules::{Kind, Modules, NodeId, ROOT};
use crate::Tier;
use std::collections::HashMap;

/// A map of as few modules as say the same as `place`, which tells where a node is that was placed as a whole: modules of which all parts are in one place are not divided. As in
/// Accelerate, what is alone in a module keeps its own name.
pub(crate) fn clean(
    modules: &Modules<'_>,
    place: impl Fn(NodeId) -> Option<Tier>,
) -> Vec<(String, Tier)> {
    // What is in something that was placed as a whole need not be looked at.
    let mut order = vec![ROOT];
    let mut at = 0;
    while let Some(id) = order.get(at).copied() {
        if place(id).is_none() {
            order.extend(modules.children(id));
        }
        at += 1;
    }
    let mut parts: HashMap<NodeId, Parts> = HashMap::with_capacity(order.len());
    for id in order.into_iter().rev() {
        if modules.node(id).kind == Kind::Cache {
            continue;
        }
        let own = match place(id) {
            Some(tier) => Parts::One(tier),
            None => parts.get(&id).copied().unwrap_or(Parts::None),
        };
        if id != ROOT {
            let around = parts
                .entry(modules.node(id).parent())
                .or_insert(Parts::None);
            *around = around.and(own);
        }
    }
    let mut map = Vec::new();
    let mut stack: Vec<NodeId> = vec![ROOT];
    while let Some(id) = stack.pop() {
        let node = modules.node(id);
        match (place(id), parts.get(&id)) {
            _ if node.kind == Kind::Cache => {}
            (Some(tier), _) | (None, Some(&Parts::Several(tier))) => {
                map.push((node.path.to_string(), tier));
            }
            _ => {
                let begin = stack.len();
                stack.extend(modules.children(id));
                stack[begin..].reverse();
            }
        }
    }
    map
}

/// Where the parts of a module are.
#[derive(Clone, Copy)]
enum Parts {
    /// There are none.
    None,
    /// There is one.
    One(Tier),
    /// There are several in one place.
    Several(Tier),
    /// In several places.
    Mixed,
}

impl Parts {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, parts) | (parts, Self::None) => parts,
            (Self::One(own) | Self::Several(own), Self::One(tier) | Self::Several(tier))
                if own == tier =>
            {
                Self::Several(own)
            }
            _ => Self::Mixed,
        }
    }
}
