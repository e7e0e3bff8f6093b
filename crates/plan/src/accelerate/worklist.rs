use super::modules::Modules;
use crate::module_tree::{Kind, NodeId, ROOT};

/// What is still to be placed: modules and tensors none of which contains another, in the order of
/// the model but for one that was moved to the front.
pub(super) struct Worklist {
    /// For each node the one behind it; [`ROOT`], which is never in the list, stands for both its
    /// ends.
    next: Vec<NodeId>,
    before: Vec<NodeId>,
    listed: Vec<bool>,
}

/// What must be placed together with something, because they share memory.
pub(super) struct Tied {
    /// The others, those that share memory with it first.
    pub(super) others: Vec<NodeId>,
    /// Bytes of all together, shared memory counted once.
    pub(super) bytes: u64,
}

impl Worklist {
    /// The parts of the model.
    pub(super) fn new(modules: &Modules<'_>) -> Self {
        let mut list = Self {
            next: vec![ROOT; modules.tree.0.len()],
            before: vec![ROOT; modules.tree.0.len()],
            listed: vec![false; modules.tree.0.len()],
        };
        list.insert(ROOT, modules.tree.children(ROOT));
        list
    }

    pub(super) fn first(&self) -> Option<NodeId> {
        Some(self.next[ROOT]).filter(|first| *first != ROOT)
    }

    fn insert(&mut self, mut at: NodeId, nodes: impl IntoIterator<Item = NodeId>) {
        for id in nodes {
            let next = self.next[at];
            (self.next[at], self.before[id]) = (id, at);
            (self.next[id], self.before[next]) = (next, id);
            self.listed[id] = true;
            at = id;
        }
    }

    pub(super) fn remove(&mut self, id: NodeId) {
        let (before, next) = (self.before[id], self.next[id]);
        (self.next[before], self.before[next]) = (next, before);
        self.listed[id] = false;
    }

    /// Replaces a module by what it holds.
    pub(super) fn split(&mut self, modules: &Modules<'_>, id: NodeId) {
        let before = self.before[id];
        self.remove(id);
        self.insert(before, modules.tree.children(id));
    }

    /// Moves something that is listed, or in a module that is, to the front: what contains it is
    /// split.
    pub(super) fn move_to_front(&mut self, modules: &Modules<'_>, id: NodeId) {
        let mut around = Vec::new();
        let mut listed = id;
        while !self.listed[listed] && listed != ROOT {
            listed = modules.tree.node(listed).parent();
            around.push(listed);
        }
        for module in around.into_iter().rev() {
            self.split(modules, module);
        }
        self.remove(id);
        self.insert(ROOT, [id]);
    }

    /// What must be placed together with `id`, which is listed or in a module that is, and in this
    /// case as if the modules around it were split: all that shares memory with it, with these, and
    /// so on.
    pub(super) fn tied(&self, modules: &Modules<'_>, id: NodeId) -> Tied {
        let mut tied = Tied { others: Vec::new(), bytes: modules.tree.node(id).size };
        if modules.groups_in(id).next().is_none() {
            return tied;
        }
        let mut seen_groups = std::collections::HashSet::new();
        let mut seen = std::collections::HashSet::from([id]);
        let mut next = Some(id);
        let mut at = 0;
        while let Some(member) = next {
            for group in modules.groups_in(member) {
                if !seen_groups.insert(group) {
                    continue;
                }
                for tensor in &modules.groups[group] {
                    let owner = self.owner(modules, *tensor, id);
                    if seen.insert(owner) {
                        tied.bytes += modules.tree.node(owner).size;
                        tied.others.push(owner);
                    }
                }
            }
            next = tied.others.get(at).copied();
            at += 1;
        }
        tied
    }

    /// What is listed and contains `tensor`, the modules around `focus` being split.
    fn owner(&self, modules: &Modules<'_>, tensor: NodeId, focus: NodeId) -> NodeId {
        let mut owner = tensor;
        while owner != focus && owner != ROOT && !self.listed[owner] {
            let parent = modules.tree.node(owner).parent();
            if parent < focus && focus < modules.tree.node(parent).end() {
                break;
            }
            owner = parent;
        }
        owner
    }

    /// The first thing, the modules being gone through from the outside, that would fit into
    /// `limit` bytes with all that it is tied to.
    pub(super) fn find(&self, modules: &Modules<'_>, after: NodeId, limit: u64) -> Option<NodeId> {
        let mut listed = self.next[after];
        while listed != ROOT {
            let mut stack = vec![listed];
            while let Some(id) = stack.pop() {
                if self.tied(modules, id).bytes <= limit {
                    return Some(id);
                }
                if modules.splits(id) {
                    // Buffers and caches go where the rest of their module goes.
                    let begin = stack.len();
                    stack.extend(modules.tree.children(id).filter(|child| {
                        matches!(modules.tree.node(*child).kind, Kind::Parameter | Kind::Module)
                    }));
                    stack[begin..].reverse();
                }
            }
            listed = self.next[listed];
        }
        None
    }
}
