//! The modules of a model, as the paths of its tensors tell them: a module is a prefix that ends
//! at a dot.

use crate::tree::holder;
use foldhash::fast::RandomState;
use indexmap::IndexMap;

/// The index of a node in a [`ModuleTree`].
pub(crate) type NodeId = usize;

/// The whole model.
pub(crate) const ROOT: NodeId = 0;

/// What a node is, in the order in which the nodes of one module are visited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A weight that the module itself holds.
    Parameter,
    /// A module.
    Module,
    /// A buffer that the module itself holds.
    Buffer,
    /// The KV cache of a block.
    Cache,
}

/// Modules, tensors and KV caches in the order in which they come up, the model itself first.
pub(crate) struct Paths<'a> {
    pub(crate) parts: Vec<Part<'a>>,
    /// Modules by path. The hash is seeded, so that nobody can choose paths that collide.
    modules: IndexMap<&'a str, u32, RandomState>,
    /// The module of the tensor seen last.
    last: u32,
}

/// A module, a tensor or a KV cache.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) path: &'a str,
    /// Its bytes; 0 for a module.
    size: u64,
    /// The index of the module that holds it.
    pub(crate) parent: u32,
    kind: Kind,
    pub(crate) has_modules: bool,
}

impl<'a> Paths<'a> {
    /// Room for so many tensors.
    pub(crate) fn with_capacity(tensors: usize) -> Self {
        let modules = tensors + tensors / 2;
        let mut paths = Self {
            parts: Vec::with_capacity(2 * tensors + tensors / 2),
            modules: IndexMap::with_capacity_and_hasher(modules, RandomState::default()),
            last: 0,
        };
        paths.push("", 0, Kind::Module, 0);
        paths.modules.insert("", 0);
        paths
    }

    /// Adds a part and returns its index.
    pub(crate) fn push(&mut self, path: &'a str, parent: u32, kind: Kind, size: u64) -> u32 {
        self.parts.push(Part { path, size, parent, kind, has_modules: false });
        self.parts.len() as u32 - 1
    }

    /// The module of this path.
    pub(crate) fn get(&self, path: &str) -> Option<u32> {
        self.modules.get(path).copied()
    }

    /// The innermost module at or around this path.
    pub(crate) fn innermost(&self, mut path: &str) -> u32 {
        loop {
            match self.get(path) {
                Some(module) => return module,
                None => path = holder(path),
            }
        }
    }

    /// The module that holds a tensor of this path, which is added with those around it.
    pub(crate) fn holder(&mut self, path: &'a str) -> u32 {
        let path = holder(path);
        // Tensors of one module mostly come one after the other.
        let mut module = self.last;
        while !is_around(self.parts[module as usize].path, path) {
            module = self.parts[module as usize].parent;
        }
        let known = self.parts[module as usize].path.len();
        let dots = path[known..].match_indices('.').map(|(at, _)| known + at);
        let ends = dots.chain([path.len()]).filter(|end| *end > known);
        for end in ends {
            let new = self.parts.len() as u32;
            let inner = *self.modules.entry(&path[..end]).or_insert(new);
            if inner == new {
                self.parts[module as usize].has_modules = true;
                self.push(&path[..end], module, Kind::Module, 0);
            }
            module = inner;
        }
        self.last = module;
        module
    }
}

/// Whether the module of this path is, or is around, what has the other.
pub(crate) fn is_around(module: &str, path: &str) -> bool {
    let rest = path.strip_prefix(module);
    rest.is_some_and(|rest| module.is_empty() || rest.is_empty() || rest.starts_with('.'))
}

/// Modules, tensors and KV caches, each before what it holds: parameters first, then modules, then
/// buffers, as Accelerate visits a module.
pub(crate) struct ModuleTree<'a>(pub(crate) Vec<Node<'a>>);

/// A module, a tensor or a KV cache: there are many, so they are kept small.
pub(crate) struct Node<'a> {
    pub(crate) path: &'a str,
    /// Bytes of a tensor or a cache; of a module once they are summed up.
    pub(crate) size: u64,
    parent: u32,
    /// The index behind the last node in it.
    end: u32,
    pub(crate) kind: Kind,
    /// Whether it holds the first tensor of some memory.
    pub(crate) counted: bool,
    /// Whether strategies must not split it.
    pub(crate) no_split: bool,
    /// Whether it holds modules, with tensors or without.
    pub(crate) has_modules: bool,
}

impl Node<'_> {
    /// The module that holds it.
    pub(crate) fn parent(&self) -> NodeId {
        self.parent as NodeId
    }

    /// The index behind the last node in it.
    pub(crate) fn end(&self) -> NodeId {
        self.end as NodeId
    }

    pub(crate) fn is_tensor(&self) -> bool {
        matches!(self.kind, Kind::Parameter | Kind::Buffer)
    }
}

impl<'a> ModuleTree<'a> {
    /// The nodes in order, and the node of each part.
    pub(crate) fn new(paths: &Paths<'a>) -> (Self, Vec<u32>) {
        let parts = &paths.parts;
        // A counting sort: the children of each part, in one list.
        let mut ends = vec![0u32; parts.len() + 1];
        for part in &parts[1..] {
            ends[part.parent as usize + 1] += 1;
        }
        for at in 1..ends.len() {
            ends[at] += ends[at - 1];
        }
        let mut children = vec![0u32; parts.len() - 1];
        for (number, part) in parts.iter().enumerate().skip(1) {
            let at = &mut ends[part.parent as usize];
            children[*at as usize] = number as u32;
            *at += 1;
        }
        // Now each end has moved to where the next list began.
        let kind = |child: &u32| parts[*child as usize].kind;
        let mut nodes: Vec<Node<'_>> = Vec::with_capacity(parts.len());
        let mut of_part = vec![0u32; parts.len()];
        // A stack instead of recursion: a path can have any number of parts.
        let mut stack = vec![0u32];
        while let Some(number) = stack.pop() {
            let at = number as usize;
            let part = &parts[at];
            of_part[at] = nodes.len() as u32;
            nodes.push(Node {
                path: part.path,
                size: part.size,
                parent: of_part[part.parent as usize],
                end: nodes.len() as u32 + 1,
                kind: part.kind,
                counted: matches!(part.kind, Kind::Parameter | Kind::Buffer),
                no_split: false,
                has_modules: part.has_modules,
            });
            let begin = if at == 0 { 0 } else { ends[at - 1] };
            let held = &mut children[begin as usize..ends[at] as usize];
            if !held.is_sorted_by_key(kind) {
                held.sort_by_key(kind);
            }
            stack.extend(held.iter().rev());
        }
        for id in (1..nodes.len()).rev() {
            let (end, parent) = (nodes[id].end, nodes[id].parent());
            nodes[parent].end = nodes[parent].end.max(end);
        }
        (Self(nodes), of_part)
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node<'a> {
        &self.0[id]
    }

    /// What a module holds.
    pub(crate) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let mut next = id + 1;
        std::iter::from_fn(move || {
            let child = Some(next).filter(|next| *next < self.0[id].end())?;
            next = self.0[child].end();
            Some(child)
        })
    }

    /// The tensors that a module holds itself.
    pub(crate) fn tensors_of(&self, id: NodeId) -> impl Iterator<Item = &Node<'a>> {
        let children = self.children(id).map(|child| &self.0[child]);
        children.filter(|child| child.is_tensor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_in_any_order_and_number() {
        let names: Vec<String> = (0..40)
            .flat_map(|outer| (0..3).map(move |inner| format!("m.{}.{inner}.w", outer * 7 % 40)))
            .collect();
        let mut paths = Paths::with_capacity(1);
        let first: Vec<u32> = names.iter().map(|name| paths.holder(name)).collect();
        let again: Vec<u32> = names.iter().rev().map(|name| paths.holder(name)).collect();
        assert!(first.iter().eq(again.iter().rev()));
        // The model, `m`, 40 modules, and three in each.
        assert_eq!(paths.parts.len(), 2 + 40 + 3 * 40);
        for (name, module) in names.iter().zip(first) {
            assert_eq!(paths.get(&name[..name.len() - 2]), Some(module));
            assert_eq!((paths.get(name), paths.innermost(name)), (None, module));
        }
    }
}
