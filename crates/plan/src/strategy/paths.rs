use super::modules::{Kind, Node, NodeId, ROOT};
use std::collections::HashMap;

/// Modules by their path.
#[derive(Default)]
pub(super) struct Paths<'a> {
    /// The modules that one module holds, by the last part of their path.
    inner: HashMap<(NodeId, &'a str), NodeId>,
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
    /// The module that holds a tensor of this path; those that are not there yet are added to `nodes`.
    pub(super) fn holder(&mut self, nodes: &mut Vec<Node<'a>>, name: &'a str) -> NodeId {
        // Tensors of one module mostly follow each other.
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
        let (mut around, mut module) = self.last.last().copied().unwrap_or((0, ROOT));
        let known = around;
        for end in ends(&name[known..]).map(|end| known + end) {
            let key = (module, part(&name[..end], around));
            let new = nodes.len();
            let inner = *self.inner.entry(key).or_insert(new);
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
        self.inner.get(&(module, part(path, around))).copied()
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
