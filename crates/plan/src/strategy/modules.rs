use crate::{Error, Tree};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// The number of a node in [`Modules`].
pub(super) type NodeId = usize;

/// The whole model.
pub(super) const ROOT: NodeId = 0;

/// The modules of a model as the paths of its tensors tell them: a module is a prefix that ends at a dot. Modules are
/// in the order in which they appear first.
pub(super) struct Modules<'a> {
    nodes: Vec<Node<'a>>,
    /// What is never split, outermost first, in the order of the model: what a reserve must have room for.
    pub(super) layers: Vec<NodeId>,
    /// Where tensors of tied groups are, in the order of the model.
    tied: Vec<Tie>,
    /// The tensors of each tied group, ordered by path.
    groups: Vec<Vec<NodeId>>,
    /// The node of each tensor, in the tree's order.
    tensors: Vec<NodeId>,
}

/// A module, a tensor or a KV cache.
pub(super) struct Node<'a> {
    pub(super) path: &'a str,
    pub(super) parent: NodeId,
    pub(super) kind: Kind,
    /// What it holds: tensors first, then modules, then buffers, as Accelerate goes through a module.
    pub(super) children: Vec<NodeId>,
    /// Bytes of all that is in it. Shared memory counts with its first tensor.
    pub(super) size: u64,
    /// Bytes of the buffers in it.
    pub(super) buffers: u64,
    /// Whether a tensor in it is the first of its memory.
    pub(super) counted: bool,
    /// Whether its class is one that is not split.
    pub(super) no_split: bool,
    /// Whether it has modules in it, with tensors or without.
    has_modules: bool,
    /// Its place in the model: of two nodes the one that contains the other comes before it.
    order: usize,
    /// The first place behind it.
    end: usize,
    /// Its part of [`Modules::layers`].
    layers: Range<usize>,
    /// Its part of [`Modules::tied`].
    tied: Range<usize>,
}

/// What a node is, in the order in which a module's are gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A weight that the module itself holds.
    Parameter,
    /// A module.
    Module,
    /// A buffer that the module itself holds.
    Buffer,
    /// Keys and values of a block.
    Cache,
}

/// A tensor that shares its memory.
struct Tie {
    group: usize,
}

impl<'a> Modules<'a> {
    /// The modules of `tree`; those of a class in `no_split` are not split.
    ///
    /// # Errors
    /// [`Error::Duplicate`] and [`Error::TooLarge`] for impossible trees.
    pub(super) fn new(tree: &'a Tree, no_split: &[String]) -> Result<Self, Error> {
        let names = check(tree)?;
        let mut modules = Self {
            nodes: vec![Node::new("", ROOT, Kind::Module)],
            layers: Vec::new(),
            tied: Vec::new(),
            groups: Vec::new(),
            tensors: Vec::with_capacity(names.len()),
        };
        modules.nodes.reserve(names.len() * 3 / 2);
        let mut paths = Paths::default();
        for tensor in tree.tensors() {
            let holder = paths.holder(&mut modules, &tensor.name);
            modules.tensors.push(modules.nodes.len());
            modules.nodes.push(Node::new(
                &tensor.name,
                holder,
                match tensor.kind {
                    crate::TensorKind::Parameter => Kind::Parameter,
                    crate::TensorKind::Buffer => Kind::Buffer,
                },
            ));
        }
        modules.hold_namesakes(&paths);
        modules.read_classes(tree, &paths, &names, no_split);
        for block in &tree.blocks {
            if block.work.kv_bytes > 0 {
                let mut cache = Node::new(&block.name, paths.find(&block.name).0, Kind::Cache);
                cache.size = block.work.kv_bytes;
                modules.nodes.push(cache);
            }
        }
        modules.link();
        modules.add_up(tree);
        Ok(modules)
    }

    pub(super) fn node(&self, id: NodeId) -> &Node<'a> {
        &self.nodes[id]
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes of the tensors, in the tree's order.
    pub(super) fn tensors(&self) -> &[NodeId] {
        &self.tensors
    }

    /// Whether it can be replaced by what it holds.
    pub(super) fn splits(&self, id: NodeId) -> bool {
        let node = &self.nodes[id];
        node.kind == Kind::Module && node.has_modules && !node.no_split
    }

    /// Whether `outer` contains `inner` and is not it.
    pub(super) fn contains(&self, outer: NodeId, inner: NodeId) -> bool {
        let (outer, inner) = (&self.nodes[outer], &self.nodes[inner]);
        outer.order < inner.order && inner.order < outer.end
    }

    /// The places in [`Self::layers`] of the layers in `id`.
    pub(super) fn layers_in(&self, id: NodeId) -> Range<usize> {
        self.nodes[id].layers.clone()
    }

    /// The tied groups that have tensors in `id`, a group once for each of these.
    pub(super) fn groups_in(&self, id: NodeId) -> impl Iterator<Item = usize> + '_ {
        self.tied[self.nodes[id].tied.clone()]
            .iter()
            .map(|tie| tie.group)
    }

    /// The tensors of a tied group, ordered by path.
    pub(super) fn group(&self, group: usize) -> &[NodeId] {
        &self.groups[group]
    }

    /// All nodes, each after the one that holds it.
    pub(super) fn outside_in(&self) -> Vec<NodeId> {
        let mut order = vec![ROOT; self.nodes.len()];
        for (id, node) in self.nodes.iter().enumerate() {
            order[node.order] = id;
        }
        order
    }

    /// A tensor whose path is also that of a module counts as held by it: a map by prefixes knows no other way.
    fn hold_namesakes(&mut self, paths: &Paths<'a>) {
        for id in &self.tensors {
            let node = &self.nodes[*id];
            let around = self.nodes[node.parent].path.len();
            let namesake = match node.path {
                "" => Some(&ROOT),
                path => paths.inner.get(&(node.parent, part(path, around))),
            };
            if let Some(module) = namesake {
                self.nodes[*id].parent = *module;
            }
        }
    }

    /// Which modules are not split, and which hold modules without tensors.
    fn read_classes(
        &mut self,
        tree: &Tree,
        paths: &Paths<'a>,
        names: &HashSet<&str>,
        no_split: &[String],
    ) {
        let no_split: BTreeSet<&str> = no_split.iter().map(String::as_str).collect();
        for (path, class) in &tree.classes {
            match paths.find(path) {
                (module, true) => self.nodes[module].no_split = no_split.contains(class.as_str()),
                (module, false) if !names.contains(path.as_str()) => {
                    self.nodes[module].has_modules = true;
                }
                _ => {}
            }
        }
        for block in &tree.blocks {
            if let (module, true) = paths.find(&block.name)
                && !tree.classes.contains_key(&block.name)
            {
                self.nodes[module].no_split = no_split.contains(block.class.as_str());
            }
        }
        // The model as a whole is what its parts are placed from.
        self.nodes[ROOT].no_split = false;
    }

    /// Gives each node its children and its place.
    fn link(&mut self) {
        for id in 1..self.nodes.len() {
            let (parent, kind) = (self.nodes[id].parent, self.nodes[id].kind);
            self.nodes[parent].children.push(id);
            self.nodes[parent].has_modules |= kind == Kind::Module;
        }
        let kinds: Vec<Kind> = self.nodes.iter().map(|node| node.kind).collect();
        for node in &mut self.nodes {
            node.children.sort_by_key(|child| kinds[*child]);
        }
        // A stack instead of a recursion: a path may have any number of parts.
        let mut place = 0;
        let mut stack = vec![(ROOT, 0)];
        while let Some((id, next)) = stack.pop() {
            let node = &mut self.nodes[id];
            if next == 0 {
                node.order = place;
                place += 1;
            }
            if let Some(child) = node.children.get(next) {
                let child = *child;
                stack.push((id, next + 1));
                stack.push((child, 0));
            } else {
                node.end = place;
            }
        }
    }

    /// Sizes, ties and layers.
    fn add_up(&mut self, tree: &Tree) {
        let mut shared: HashMap<&str, (usize, u64)> = HashMap::new();
        for (tensor, id) in tree.tensors().zip(&self.tensors) {
            if let Some(key) = &tensor.tied {
                let new = shared.len();
                let (group, bytes) = shared.entry(key).or_insert((new, 0));
                *bytes = tensor.bytes.max(*bytes);
                if *group == self.groups.len() {
                    self.groups.push(Vec::new());
                }
                self.groups[*group].push(*id);
            }
        }
        let mut tensor_of = vec![None; self.nodes.len()];
        for (tensor, id) in tree.tensors().zip(&self.tensors) {
            tensor_of[*id] = Some(tensor);
        }
        let order = self.outside_in();
        let mut seen = vec![false; self.groups.len()];
        let mut layer_end = 0;
        for id in &order {
            let at = self.nodes[*id].order;
            let mut first = true;
            self.nodes[*id].tied.start = self.tied.len();
            if let Some(tensor) = tensor_of[*id] {
                let mut bytes = tensor.bytes;
                if let Some((group, shared)) = tensor
                    .tied
                    .as_ref()
                    .and_then(|key| shared.get(key.as_str()))
                {
                    self.tied.push(Tie { group: *group });
                    first = !std::mem::replace(&mut seen[*group], true);
                    bytes = if first { *shared } else { 0 };
                }
                let node = &mut self.nodes[*id];
                node.size = bytes;
                node.counted = first;
                node.buffers = if node.kind == Kind::Buffer { bytes } else { 0 };
            }
            self.nodes[*id].layers.start = self.layers.len();
            let whole = match self.nodes[*id].kind {
                Kind::Module => !self.splits(*id),
                Kind::Parameter | Kind::Buffer => self.nodes[*id].parent == ROOT,
                Kind::Cache => false,
            };
            if *id != ROOT && whole && at >= layer_end {
                self.layers.push(*id);
                layer_end = self.nodes[*id].end;
            }
        }
        for id in order.iter().rev() {
            let node = &self.nodes[*id];
            let last = order[node.end - 1];
            let (layers, ties) = if last == *id {
                let is_layer = self.layers.get(node.layers.start) == Some(id);
                let is_tied = tensor_of[*id].is_some_and(|tensor| tensor.tied.is_some());
                (
                    node.layers.start + usize::from(is_layer),
                    node.tied.start + usize::from(is_tied),
                )
            } else {
                (self.nodes[last].layers.end, self.nodes[last].tied.end)
            };
            let (size, buffers, counted, parent) =
                (node.size, node.buffers, node.counted, node.parent);
            let node = &mut self.nodes[*id];
            node.layers.end = layers.max(node.layers.start);
            node.tied.end = ties;
            if *id != ROOT {
                let parent = &mut self.nodes[parent];
                parent.size += size;
                parent.buffers += buffers;
                parent.counted |= counted;
            }
        }
        for group in &mut self.groups {
            group.sort_by_key(|id| self.nodes[*id].path);
        }
    }
}

impl<'a> Node<'a> {
    fn new(path: &'a str, parent: NodeId, kind: Kind) -> Self {
        Self {
            path,
            parent,
            kind,
            children: Vec::new(),
            size: 0,
            buffers: 0,
            counted: false,
            no_split: false,
            has_modules: false,
            order: 0,
            end: 0,
            layers: 0..0,
            tied: 0..0,
        }
    }
}

/// Modules by their path.
#[derive(Default)]
struct Paths<'a> {
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
    /// The module that holds a tensor of this path.
    fn holder(&mut self, modules: &mut Modules<'a>, name: &'a str) -> NodeId {
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
            let new = modules.nodes.len();
            let inner = *self.inner.entry(key).or_insert(new);
            if inner == new {
                modules
                    .nodes
                    .push(Node::new(&name[..end], module, Kind::Module));
            }
            (around, module) = (end, inner);
            self.last.push((end, inner));
        }
        module
    }

    /// The innermost module whose path is `path` or leads to it; and whether it is the former.
    fn find(&self, path: &str) -> (NodeId, bool) {
        if path.is_empty() {
            return (ROOT, true);
        }
        let (mut around, mut module) = (0, ROOT);
        for end in ends(path).chain([path.len()]) {
            match self.inner.get(&(module, part(&path[..end], around))) {
                Some(inner) => (around, module) = (end, *inner),
                None => return (module, false),
            }
        }
        (module, true)
    }
}

/// The names of all tensors: each is given once, and no sum of sizes overflows.
fn check(tree: &Tree) -> Result<HashSet<&str>, Error> {
    let mut names = HashSet::with_capacity(tree.tensors().count());
    let mut sum = 0u64;
    for block in &tree.blocks {
        let sizes = block
            .tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor.bytes));
        for (name, bytes) in sizes.chain([(block.name.as_str(), block.work.kv_bytes)]) {
            sum = sum.checked_add(bytes).ok_or_else(|| Error::TooLarge {
                name: name.to_string(),
            })?;
        }
        for tensor in &block.tensors {
            if !names.insert(tensor.name.as_str()) {
                return Err(Error::Duplicate {
                    what: "tensor",
                    name: tensor.name.clone(),
                });
            }
        }
    }
    Ok(names)
}
