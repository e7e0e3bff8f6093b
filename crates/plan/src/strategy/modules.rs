use super::paths::Paths;
use crate::{Error, TensorKind, Tree};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// The number of a node in [`Modules`].
pub(crate) type NodeId = usize;

/// The whole model.
pub(crate) const ROOT: NodeId = 0;

/// The modules of a model as the paths of its tensors tell them: a module is a prefix that ends at a dot. Modules are
/// in the order in which they appear first.
pub(crate) struct Modules<'a> {
    /// Each before what it holds: tensors first, then modules, then buffers, as Accelerate goes through a module.
    nodes: Vec<Node<'a>>,
    /// What is never split, outermost first, in the order of the model: what a reserve must have room for.
    pub(crate) layers: Vec<NodeId>,
    /// The tensors that share their memory and their groups, in the order of the model.
    tied: Vec<(NodeId, usize)>,
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
    parent: u32,
    /// The number of the first node behind all that is in it.
    end: u32,
    pub(crate) kind: Kind,
    /// Whether a tensor in it is the first of its memory.
    pub(crate) counted: bool,
    /// Whether its class is one that is not split.
    no_split: bool,
    /// Whether it has modules in it, with tensors or without.
    has_modules: bool,
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
        let count = tree.blocks.iter().map(|block| block.tensors.len()).sum();
        let mut paths = Paths::new(count);
        let mut tensors = Vec::with_capacity(count);
        let mut shared = Vec::new();
        // All is read in one go: a model of many tensors is larger than a processor's caches.
        let mut sum = 0u64;
        let mut add = |name: &String, bytes| {
            sum = sum
                .checked_add(bytes)
                .ok_or_else(|| Error::TooLarge { name: name.clone() })?;
            Ok(())
        };
        for block in &tree.blocks {
            for tensor in &block.tensors {
                add(&tensor.name, tensor.bytes)?;
                let holder = paths.holder(&tensor.name);
                let kind = match tensor.kind {
                    TensorKind::Parameter => Kind::Parameter,
                    TensorKind::Buffer => Kind::Buffer,
                };
                let part = paths.push(&tensor.name, holder, kind, tensor.bytes);
                if let Some(key) = &tensor.tied {
                    shared.push((key.as_str(), part));
                }
                tensors.push(part);
            }
            add(&block.name, block.work.kv_bytes)?;
        }
        hold_namesakes(&mut paths, &tensors);
        for block in &tree.blocks {
            if block.work.kv_bytes > 0 {
                let (module, _) = paths.find(&block.name);
                paths.push(&block.name, module, Kind::Cache, block.work.kv_bytes);
            }
        }
        let (nodes, of_part) = link(&paths);
        let node = |part: u32| of_part[part as usize] as NodeId;
        let mut modules = Self {
            nodes,
            layers: Vec::new(),
            tied: Vec::new(),
            groups: Vec::new(),
            tensors: tensors.iter().map(|tensor| node(*tensor)).collect(),
        };
        modules.check_names()?;
        modules.read_classes(tree, &mut paths, &of_part, no_split);
        modules.share(shared.into_iter().map(|(key, part)| (key, node(part))));
        modules.find_layers();
        modules.add_up();
        Ok(modules)
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node<'a> {
        &self.nodes[id]
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What a module holds.
    pub(crate) fn children(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let end = self.nodes[id].end as NodeId;
        let mut next = id + 1;
        std::iter::from_fn(move || {
            let child = Some(next).filter(|next| *next < end)?;
            next = self.nodes[child].end as NodeId;
            Some(child)
        })
    }

    /// The tensors that a module holds itself.
    fn tensors_of(&self, id: NodeId) -> impl Iterator<Item = &Node<'a>> {
        let children = self.children(id).map(|child| &self.nodes[child]);
        children.filter(|child| matches!(child.kind, Kind::Parameter | Kind::Buffer))
    }

    /// The nodes of the tensors, in the tree's order.
    pub(crate) fn tensors(&self) -> &[NodeId] {
        &self.tensors
    }

    /// Whether it can be replaced by what it holds.
    pub(crate) fn splits(&self, id: NodeId) -> bool {
        let node = &self.nodes[id];
        node.kind == Kind::Module && node.has_modules && !node.no_split
    }

    /// Whether `outer` contains `inner` and is not it.
    pub(crate) fn contains(&self, outer: NodeId, inner: NodeId) -> bool {
        outer < inner && inner < self.nodes[outer].end as NodeId
    }

    /// The places in [`Self::layers`] of the layers in `id`.
    pub(crate) fn layers_in(&self, id: NodeId) -> Range<usize> {
        let end = self.nodes[id].end as NodeId;
        let before = |behind: NodeId| self.layers.partition_point(|layer| *layer < behind);
        before(id)..before(end)
    }

    /// The tied groups that have tensors in `id`, a group once for each of these.
    pub(crate) fn groups_in(&self, id: NodeId) -> impl Iterator<Item = usize> + '_ {
        let end = self.nodes[id].end as NodeId;
        let before = |behind: NodeId| self.tied.partition_point(|(tensor, _)| *tensor < behind);
        self.tied[before(id)..before(end)]
            .iter()
            .map(|(_, group)| *group)
    }

    /// The tensors of each tied group, ordered by path.
    pub(crate) fn groups(&self) -> &[Vec<NodeId>] {
        &self.groups
    }

    /// No two tensors have the same name.
    fn check_names(&self) -> Result<(), Error> {
        let mut names = Vec::new();
        for module in 0..self.nodes.len() {
            names.clear();
            names.extend(self.tensors_of(module).map(|tensor| tensor.path));
            if names.len() < 2 {
                continue;
            }
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
    fn read_classes(
        &mut self,
        tree: &'a Tree,
        paths: &mut Paths<'a>,
        of_part: &[u32],
        no_split: &[String],
    ) {
        let no_split: BTreeSet<&str> = no_split.iter().map(String::as_str).collect();
        let node = |part: u32| of_part[part as usize] as NodeId;
        for block in &tree.blocks {
            let class = tree.classes.get(&block.name).unwrap_or(&block.class);
            if no_split.contains(class.as_str())
                && let (module, true) = paths.find(&block.name)
            {
                self.nodes[node(module)].no_split = true;
            }
        }
        let classes = tree.classes.iter();
        let mut with_modules = None;
        for (path, class) in classes.filter(|(path, _)| !path.is_empty()) {
            let whole = no_split.contains(class.as_str());
            let around = path.rfind('.').unwrap_or(0);
            // Modules beside others that are known need not be looked for.
            if with_modules == Some(&path[..around]) && !whole {
                continue;
            }
            let (holder, found) = paths.find(&path[..around]);
            if found && self.nodes[node(holder)].has_modules && !whole {
                with_modules = Some(&path[..around]);
                continue;
            }
            let module = found.then(|| paths.inner(holder, around, path)).flatten();
            let holder = node(holder);
            if let Some(module) = module {
                self.nodes[node(module)].no_split |= whole;
            } else if self.tensors_of(holder).all(|tensor| tensor.path != path) {
                self.nodes[holder].has_modules = true;
            }
        }
        // The model as a whole is what its parts are placed from.
        self.nodes[ROOT].no_split = false;
    }

    /// Collects the tied groups. Memory counts with the first of its tensors in the order of the model, and as much as
    /// the largest takes.
    fn share<'t>(&mut self, tied: impl Iterator<Item = (&'t str, NodeId)>) {
        let mut by_key: HashMap<&str, usize> = HashMap::new();
        for (key, id) in tied {
            let group = *by_key.entry(key).or_insert(self.groups.len());
            if group == self.groups.len() {
                self.groups.push(Vec::new());
            }
            self.groups[group].push(id);
            self.tied.push((id, group));
        }
        self.tied.sort_unstable();
        for group in &mut self.groups {
            let bytes = group.iter().map(|id| self.nodes[*id].size).max();
            let first = group.iter().min().copied();
            for id in &*group {
                let node = &mut self.nodes[*id];
                node.counted = Some(*id) == first;
                node.size = bytes.filter(|_| node.counted).unwrap_or(0);
            }
            group.sort_by_key(|id| self.nodes[*id].path);
        }
    }

    /// What is never split.
    fn find_layers(&mut self) {
        let mut id = ROOT + 1;
        while let Some(node) = self.nodes.get(id) {
            let layer = match node.kind {
                Kind::Module => !self.splits(id),
                Kind::Parameter | Kind::Buffer => node.parent() == ROOT,
                Kind::Cache => false,
            };
            if layer {
                self.layers.push(id);
            }
            id = if layer { node.end as NodeId } else { id + 1 };
        }
    }

    /// What modules hold.
    fn add_up(&mut self) {
        for id in (ROOT + 1..self.nodes.len()).rev() {
            let node = &self.nodes[id];
            let (size, counted, parent) = (node.size, node.counted, node.parent());
            let parent = &mut self.nodes[parent];
            parent.size += size;
            parent.counted |= counted;
        }
    }
}

impl Node<'_> {
    /// The module that holds it.
    pub(crate) fn parent(&self) -> NodeId {
        self.parent as NodeId
    }
}

/// A tensor whose path is also that of a module counts as held by it: a map by prefixes knows no other way.
fn hold_namesakes(paths: &mut Paths<'_>, tensors: &[u32]) {
    for tensor in tensors {
        let part = &paths.parts[*tensor as usize];
        let around = paths.parts[part.parent as usize].path.len();
        let namesake = match part.path {
            "" => Some(0),
            // Most tensors are held by modules that hold no modules.
            path if paths.has_modules(part.parent) => paths.inner(part.parent, around, path),
            _ => None,
        };
        if let Some(module) = namesake {
            paths.parts[*tensor as usize].parent = module;
        }
    }
}

/// The nodes in order, and the number of the node of each part.
fn link<'a>(paths: &Paths<'a>) -> (Vec<Node<'a>>, Vec<u32>) {
    let parts = &paths.parts;
    // What each part holds: the places in one list where it begins and ends.
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
    // By now each has moved to where the next one's begin was.
    let kind = |child: &u32| parts[*child as usize].kind;
    let mut nodes = Vec::with_capacity(parts.len());
    let mut of_part = vec![0u32; parts.len()];
    // A stack instead of a recursion: a path may have any number of parts.
    let mut stack = vec![0u32];
    while let Some(number) = stack.pop() {
        let at = number as usize;
        let part = &parts[at];
        of_part[at] = nodes.len() as u32;
        nodes.push(Node {
            path: part.path,
            size: part.size,
            parent: of_part[part.parent as usize],
            end: 0,
            kind: part.kind,
            counted: matches!(part.kind, Kind::Parameter | Kind::Buffer),
            no_split: false,
            has_modules: paths.has_modules(number),
        });
        let begin = if at == 0 { 0 } else { ends[at - 1] };
        let held = &mut children[begin as usize..ends[at] as usize];
        if !held.is_sorted_by_key(kind) {
            held.sort_by_key(kind);
        }
        stack.extend(held.iter().rev());
    }
    for id in (0..nodes.len()).rev() {
        let node: &mut Node<'_> = &mut nodes[id];
        node.end = node.end.max(id as u32 + 1);
        let (end, parent) = (node.end, node.parent());
        nodes[parent].end = nodes[parent].end.max(end);
    }
    (nodes, of_part)
}
