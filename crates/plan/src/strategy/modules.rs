use super::paths::Paths;
use crate::{Error, Tensor, TensorKind, Tree};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// The number of a node in [`Modules`].
pub(crate) type NodeId = usize;

/// The whole model.
pub(crate) const ROOT: NodeId = 0;

/// The modules of a model as the paths of its tensors tell them: a module is a prefix that ends at a dot. Modules are
/// in the order in which they appear first.
pub(crate) struct Modules<'a> {
    nodes: Vec<Node<'a>>,
    /// What each module holds, one after the other: tensors first, then modules, then buffers, as Accelerate goes
    /// through a module.
    children: Vec<NodeId>,
    /// All nodes, each before what it holds.
    order: Vec<NodeId>,
    /// What is never split, outermost first, in the order of the model: what a reserve must have room for.
    pub(crate) layers: Vec<NodeId>,
    /// The groups of the tensors that share their memory, in the order of the model.
    tied: Vec<usize>,
    /// The tensors of each tied group, ordered by path.
    groups: Vec<Vec<NodeId>>,
    /// The node of each tensor, in the tree's order.
    tensors: Vec<NodeId>,
}

/// A module, a tensor or a KV cache. There are several for each tensor of a model: they are kept small.
pub(crate) struct Node<'a> {
    pub(crate) path: &'a str,
    /// Bytes of all that is in it. Shared memory counts with its first tensor.
    pub(crate) size: u64,
    /// Bytes of the buffers in it.
    pub(crate) buffers: u64,
    parent: u32,
    /// Its place in [`Modules::order`].
    place: u32,
    /// The first place behind all that is in it.
    end: u32,
    children: Span,
    /// Its part of [`Modules::layers`].
    layers: Span,
    /// Its part of [`Modules::tied`].
    tied: Span,
    pub(crate) kind: Kind,
    /// Whether a tensor in it is the first of its memory.
    pub(crate) counted: bool,
    /// Whether its class is one that is not split.
    no_split: bool,
    /// Whether it has modules in it, with tensors or without.
    has_modules: bool,
}

/// A part of a list.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    begin: u32,
    end: u32,
}

impl Span {
    fn range(self) -> Range<usize> {
        self.begin as usize..self.end as usize
    }
}

/// What a node is, in the order in which a module's are gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A weight that the module itself holds.
    Parameter,
    /// A module.
    Module,
    /// A buffer that the module itself holds.
    Buffer,
    /// Keys and values of a block.
    Cache,
}

impl<'a> Modules<'a> {
    /// The modules of `tree`; those of a class in `no_split` are not split.
    ///
    /// # Errors
    /// [`Error::Duplicate`] and [`Error::TooLarge`] for impossible trees.
    pub(crate) fn new(tree: &'a Tree, no_split: &[String]) -> Result<Self, Error> {
        let count = check_sizes(tree)?;
        let mut modules = Self {
            nodes: Vec::with_capacity(3 * count + 1),
            children: Vec::new(),
            order: Vec::new(),
            layers: Vec::new(),
            tied: Vec::new(),
            groups: Vec::new(),
            tensors: Vec::with_capacity(count),
        };
        modules.nodes.push(Node::new("", ROOT, Kind::Module));
        let mut paths = Paths::new(count);
        for tensor in tree.tensors() {
            let holder = paths.holder(&mut modules.nodes, &tensor.name);
            let kind = match tensor.kind {
                TensorKind::Parameter => Kind::Parameter,
                TensorKind::Buffer => Kind::Buffer,
            };
            modules.tensors.push(modules.nodes.len());
            modules.nodes.push(Node::new(&tensor.name, holder, kind));
        }
        modules.hold_namesakes(&paths);
        for block in &tree.blocks {
            if block.work.kv_bytes > 0 {
                let mut cache = Node::new(&block.name, paths.find(&block.name).0, Kind::Cache);
                cache.size = block.work.kv_bytes;
                modules.nodes.push(cache);
            }
        }
        modules.link();
        modules.check_names()?;
        modules.read_classes(tree, &mut paths, no_split);
        modules.add_up(tree);
        Ok(modules)
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node<'a> {
        &self.nodes[id]
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What a module holds.
    pub(crate) fn children(&self, id: NodeId) -> &[NodeId] {
        &self.children[self.nodes[id].children.range()]
    }

    /// The tensors that a module holds itself.
    fn tensors_of(&self, id: NodeId) -> impl Iterator<Item = &Node<'a>> {
        let children = self.children(id).iter().map(|child| &self.nodes[*child]);
        children.filter(|child| matches!(child.kind, Kind::Parameter | Kind::Buffer))
    }

    /// The nodes of the tensors, in the tree's order.
    pub(crate) fn tensors(&self) -> &[NodeId] {
        &self.tensors
    }

    /// All nodes, each before what it holds.
    pub(crate) fn outside_in(&self) -> &[NodeId] {
        &self.order
    }

    /// Whether it can be replaced by what it holds.
    pub(crate) fn splits(&self, id: NodeId) -> bool {
        let node = &self.nodes[id];
        node.kind == Kind::Module && node.has_modules && !node.no_split
    }

    /// Whether `outer` contains `inner` and is not it.
    pub(crate) fn contains(&self, outer: NodeId, inner: NodeId) -> bool {
        let (outer, inner) = (&self.nodes[outer], &self.nodes[inner]);
        outer.place < inner.place && inner.place < outer.end
    }

    /// The places in [`Self::layers`] of the layers in `id`.
    pub(crate) fn layers_in(&self, id: NodeId) -> Range<usize> {
        self.nodes[id].layers.range()
    }

    /// The tied groups that have tensors in `id`, a group once for each of these.
    pub(crate) fn groups_in(&self, id: NodeId) -> &[usize] {
        &self.tied[self.nodes[id].tied.range()]
    }

    /// The tensors of each tied group, ordered by path.
    pub(crate) fn groups(&self) -> &[Vec<NodeId>] {
        &self.groups
    }

    /// A tensor whose path is also that of a module counts as held by it: a map by prefixes knows no other way.
    fn hold_namesakes(&mut self, paths: &Paths<'a>) {
        let mut has_modules = vec![false; self.nodes.len()];
        for node in &self.nodes[1..] {
            has_modules[node.parent()] |= node.kind == Kind::Module;
        }
        for id in &self.tensors {
            let node = &self.nodes[*id];
            let around = self.nodes[node.parent()].path.len();
            let namesake = match node.path {
                "" => Some(ROOT),
                // Most tensors are held by modules that hold no modules.
                path if has_modules[node.parent()] => paths.inner(node.parent(), around, path),
                _ => None,
            };
            if let Some(module) = namesake {
                self.nodes[*id].parent = module as u32;
            }
        }
    }

    /// Gives each node its children and its place.
    fn link(&mut self) {
        let mut next = vec![0u32; self.nodes.len() + 1];
        for node in &self.nodes[1..] {
            next[node.parent() + 1] += 1;
        }
        for id in 1..next.len() {
            next[id] += next[id - 1];
        }
        for (id, node) in self.nodes.iter_mut().enumerate() {
            (node.children.begin, node.children.end) = (next[id], next[id + 1]);
        }
        self.children = vec![ROOT; self.nodes.len() - 1];
        for kind in [Kind::Parameter, Kind::Module, Kind::Buffer, Kind::Cache] {
            for id in 1..self.nodes.len() {
                let (parent, own) = (self.nodes[id].parent(), self.nodes[id].kind);
                if own == kind {
                    self.children[next[parent] as usize] = id;
                    next[parent] += 1;
                    self.nodes[parent].has_modules |= kind == Kind::Module;
                }
            }
        }
        // A stack instead of a recursion: a path may have any number of parts.
        self.order.reserve(self.nodes.len());
        let mut stack = vec![ROOT];
        while let Some(id) = stack.pop() {
            self.nodes[id].place = self.order.len() as u32;
            self.order.push(id);
            stack.extend(self.children(id).iter().rev());
        }
        for id in self.order.iter().rev() {
            let node = &mut self.nodes[*id];
            node.end = node.end.max(node.place + 1);
            let (end, parent) = (node.end, node.parent());
            self.nodes[parent].end = self.nodes[parent].end.max(end);
        }
    }

    /// No two tensors have the same name.
    fn check_names(&self) -> Result<(), Error> {
        let mut names = Vec::new();
        for module in 0..self.nodes.len() {
            names.clear();
            names.extend(self.tensors_of(module).map(|tensor| tensor.path));
            names.sort_unstable();
            if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(Error::Duplicate {
                    what: "tensor",
                    name: pair[0].to_string(),
                });
            }
        }
        Ok(())
    }

    /// Which modules are not split, and which hold modules without tensors.
    fn read_classes(&mut self, tree: &'a Tree, paths: &mut Paths<'a>, no_split: &[String]) {
        let no_split: BTreeSet<&str> = no_split.iter().map(String::as_str).collect();
        for block in &tree.blocks {
            let class = tree.classes.get(&block.name).unwrap_or(&block.class);
            if no_split.contains(class.as_str())
                && let (module, true) = paths.find(&block.name)
            {
                self.nodes[module].no_split = true;
            }
        }
        for (path, class) in tree.classes.iter().filter(|(path, _)| !path.is_empty()) {
            let whole = no_split.contains(class.as_str());
            let around = path.rfind('.').unwrap_or(0);
            let (holder, found) = paths.find_next(&path[..around]);
            if found && self.nodes[holder].has_modules && !whole {
                continue;
            }
            let module = found.then(|| paths.inner(holder, around, path)).flatten();
            if let Some(module) = module {
                self.nodes[module].no_split |= whole;
            } else if self.tensors_of(holder).all(|tensor| tensor.path != path) {
                self.nodes[holder].has_modules = true;
            }
        }
        // The model as a whole is what its parts are placed from.
        self.nodes[ROOT].no_split = false;
    }

    /// Sizes, ties and layers.
    fn add_up(&mut self, tree: &Tree) {
        let shared = self.share(tree);
        let mut seen = vec![false; self.groups.len()];
        let mut tensors = vec![None; self.nodes.len()];
        for (tensor, id) in tree.tensors().zip(&self.tensors) {
            tensors[*id] = Some(tensor);
        }
        let mut layer_end = 0;
        for (place, id) in self.order.iter().enumerate() {
            let whole = match self.nodes[*id].kind {
                Kind::Module => !self.splits(*id),
                Kind::Parameter | Kind::Buffer => self.nodes[*id].parent() == ROOT,
                Kind::Cache => false,
            };
            let node = &mut self.nodes[*id];
            node.tied.begin = self.tied.len() as u32;
            node.layers.begin = self.layers.len() as u32;
            if let Some(tensor) = tensors[*id] {
                let group = tensor
                    .tied
                    .as_ref()
                    .and_then(|key| shared.get(key.as_str()));
                let (first, bytes) = match group {
                    None => (true, tensor.bytes),
                    Some((group, bytes)) => {
                        self.tied.push(*group);
                        let first = !std::mem::replace(&mut seen[*group], true);
                        (first, if first { *bytes } else { 0 })
                    }
                };
                node.size = bytes;
                node.counted = first;
                node.buffers = if node.kind == Kind::Buffer { bytes } else { 0 };
            }
            if *id != ROOT && whole && place >= layer_end {
                self.layers.push(*id);
                layer_end = node.end as usize;
            }
            node.tied.end = self.tied.len() as u32;
            node.layers.end = self.layers.len() as u32;
        }
        for id in self.order.iter().skip(1).rev() {
            let node = &self.nodes[*id];
            let (size, buffers, counted) = (node.size, node.buffers, node.counted);
            let (tied, layers) = (node.tied.end, node.layers.end);
            let parent = node.parent();
            let parent = &mut self.nodes[parent];
            parent.size += size;
            parent.buffers += buffers;
            parent.counted |= counted;
            parent.tied.end = parent.tied.end.max(tied);
            parent.layers.end = parent.layers.end.max(layers);
        }
    }

    /// Collects the tied groups. The number and the bytes of each, which are those of its largest tensor, by their key.
    fn share<'t>(&mut self, tree: &'t Tree) -> HashMap<&'t str, (usize, u64)> {
        let mut shared: HashMap<&str, (usize, u64)> = HashMap::new();
        let tied = |(tensor, id): (&'t Tensor, &NodeId)| Some((tensor.tied.as_ref()?, tensor, *id));
        for (key, tensor, id) in tree.tensors().zip(&self.tensors).filter_map(tied) {
            let new = shared.len();
            let (group, bytes) = shared.entry(key).or_insert((new, 0));
            *bytes = tensor.bytes.max(*bytes);
            if *group == self.groups.len() {
                self.groups.push(Vec::new());
            }
            self.groups[*group].push(id);
        }
        for group in &mut self.groups {
            group.sort_by_key(|id| self.nodes[*id].path);
        }
        shared
    }
}

impl<'a> Node<'a> {
    pub(super) fn new(path: &'a str, parent: NodeId, kind: Kind) -> Self {
        Self {
            path,
            size: 0,
            buffers: 0,
            parent: parent as u32,
            place: 0,
            end: 0,
            children: Span::default(),
            layers: Span::default(),
            tied: Span::default(),
            kind,
            counted: false,
            no_split: false,
            has_modules: false,
        }
    }

    /// The module that holds it.
    pub(crate) fn parent(&self) -> NodeId {
        self.parent as usize
    }
}

/// The number of tensors: no sum of sizes overflows.
fn check_sizes(tree: &Tree) -> Result<usize, Error> {
    let (mut count, mut sum) = (0usize, 0u64);
    for block in &tree.blocks {
        let tensors = block.tensors.iter();
        let sizes = tensors.map(|tensor| (&tensor.name, tensor.bytes));
        for (name, bytes) in sizes.chain([(&block.name, block.work.kv_bytes)]) {
            sum = sum
                .checked_add(bytes)
                .ok_or_else(|| Error::TooLarge { name: name.clone() })?;
        }
        count += block.tensors.len();
    }
    Ok(count)
}
