use super::modules::{Kind, Node, NodeId, ROOT};
use foldhash::fast::RandomState;
use std::collections::HashMap;

/// Modules by their path.
pub(super) struct Paths<'a> {
    /// The modules that one module holds, by the last part of their path. There can be more modules than tensors: the hash is
    /// a fast one, and seeded, so that nobody can choose names that meet.
    inner: HashMap<(u32, &'a str), u32, RandomState>,
    /// The modules around the tensor that was seen last, with the length of their paths.
    last: Vec<(usize, NodeId)>,
    /// The path of that tensor.
    name: &'a str,
}

/// Where the paths of modules end in the path of something in them.
fn ends(path: &str) -> impl Iterator<Item = usize> + '_ {
    // A dot at the begin ends no path: that of the whole model is empty.
    path.match_indices('.')
        .map(|(at, _)| at)
        .filter(|at| *at > 0)
}

/// The last part of a path, which begins behind the path of the module around it.
fn part(path: &str, around: usize) -> &str {
    if around == 0 {
        path
    } else {
        &path[around + 1..]
    }
}

impl<'a> Paths<'a> {
    /// Of a model with about so many tensors.
    pub(super) fn new(tensors: usize) -> Self {
        Self {
            inner: HashMap::with_capacity_and_hasher(tensors, RandomState::default()),
            last: Vec::new(),
            name: "",
        }
    }

    /// The module that holds a tensor of this path; those that are not there yet are added to `nodes`.
    pub(super) fn holder(&mut self, nodes: &mut Vec<Node<'a>>, name: &'a str) -> NodeId {
        // Tensors of one module mostly follow each other.
        let (mut around, mut module) = self.follow(name);
        let known = around;
        for end in ends(&name[known..]).map(|end| known + end) {
            let key = (module as u32, part(&name[..end], around));
            let new = nodes.len();
            let inner = *self.inner.entry(key).or_insert(new as u32) as NodeId;
            if inner == new {
                nodes.push(Node::new(&name[..end], module, Kind::Module));
            }
            (around, module) = (end, inner);
            self.last.push((end, inner));
        }
        module
    }

    /// The module of this path that a module of a path of `around` bytes holds, if there is one.
    pub(super) fn inner(&self, module: NodeId, around: usize, path: &str) -> Option<NodeId> {
        let key = (module as u32, part(path, around));
        self.inner.get(&key).map(|inner| *inner as NodeId)
    }

    /// As [`Self::find`], for paths that come in order, so that the path before tells most of this one.
    pub(super) fn find_next(&mut self, path: &'a str) -> (NodeId, bool) {
        if path.is_empty() {
            return (ROOT, true);
        }
        let (mut around, mut module) = self.follow(path);
        let known = around;
        let inner = ends(&path[known..]).map(|end| known + end);
        for end in inner.chain([path.len()]) {
            match self.inner(module, around, &path[..end]) {
                Some(inner) => (around, module) = (end, inner),
                None => return (module, false),
            }
            self.last.push((end, module));
        }
        (module, true)
    }

    /// The innermost module that is around this path and was around the one before, with the length of its path.
    fn follow(&mut self, name: &'a str) -> (usize, NodeId) {
        let common = name
            .bytes()
            .zip(self.name.bytes())
            .take_while(|(own, other)| own == other)
            .count();
        self.name = name;
        while let Some((end, _)) = self.last.last()
            && (*end > common || name.as_bytes().get(*end) != Some(&b'.'))
        {
            self.last.pop();
        }
        self.last.last().copied().unwrap_or((0, ROOT))
    }

    /// The innermost module whose path is `path` or leads to it; and whether it is the former.
    pub(super) fn find(&self, path: &str) -> (NodeId, bool) {
        if path.is_empty() {
            return (ROOT, true);
        }
        let (mut around, mut module) = (0, ROOT);
        for end in ends(path).chain([path.len()]) {
            match self.inner(module, around, &path[..end]) {
                Some(inner) => (around, module) = (end, inner),
                None => return (module, false),
            }
        }
        (module, true)
    }
}
