use super::modules::{Kind, Modules, NodeId, ROOT};
use crate::Tier;

/// A map of as few modules as say the same as `places`: modules of which all parts are in one place are not divided. As in
/// Accelerate, what is alone in a module keeps its own name.
pub(super) fn clean(modules: &Modules<'_>, places: &[Option<Tier>]) -> Vec<(String, Tier)> {
    let order = modules.outside_in();
    let mut parts = vec![Parts::None; modules.len()];
    for id in order.iter().rev() {
        if modules.node(*id).kind == Kind::Cache {
            continue;
        }
        if let Some(tier) = places[*id] {
            parts[*id] = Parts::One(tier);
        }
        let parent = modules.node(*id).parent;
        if *id != ROOT {
            parts[parent] = parts[parent].and(parts[*id]);
        }
    }
    let mut map = Vec::new();
    let mut stack: Vec<NodeId> = vec![ROOT];
    while let Some(id) = stack.pop() {
        let node = modules.node(id);
        match (places[id], parts[id]) {
            _ if node.kind == Kind::Cache => {}
            (Some(tier), _) | (None, Parts::Several(tier)) => {
                map.push((node.path.to_string(), tier));
            }
            _ => stack.extend(node.children.iter().rev()),
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
