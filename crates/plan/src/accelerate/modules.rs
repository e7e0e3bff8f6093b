use crate::module_tree::{Kind, ModuleTree, NodeId, Part, Paths, ROOT};
use crate::tree::holder;
use crate::{Error, TensorKind, Tree};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// The modules of a model, with what strategies must know of them.
pub(crate) struct Modules<'a> {
    /// Sizes are those of all that is in a node; shared memory counts with its first tensor.
    pub(crate) tree: ModuleTree<'a>,
    /// What is never split, outermost first, in the order of the model: what a reserve must have
    /// room for.
    pub(crate) layers: Vec<NodeId>,
    /// The tensors that share their memory and their groups, in the order of the model.
    tied: Vec<(NodeId, usize)>,
    /// The tensors of each tied group, ordered by path.
    pub(crate) groups: Vec<Vec<NodeId>>,
    /// The node of each tensor, in the tree's order.
    pub(crate) tensors: Vec<NodeId>,
}

impl<'a> Modules<'a> {
    /// The modules of `tree`; those of a class in `no_split` are not split.
    ///
    /// # Errors
    /// [`Error::Duplicate`] and [`Error::TooLarge`] for impossible trees.
    pub(crate) fn new(tree: &'a Tree, no_split: &[String]) -> Result<Self, Error> {
        let count = tree.blocks.iter().map(|block| block.tensors.len()).sum();
        let mut paths = Paths::with_capacity(count);
        let mut tensors = Vec::with_capacity(count);
        let mut shared = Vec::new();
        // One pass: a model of many tensors is larger than a processor's caches.
        let mut sum = 0u64;
        let mut add = |name: &String, bytes| {
            sum = sum.checked_add(bytes).ok_or_else(|| Error::TooLarge { name: name.clone() })?;
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
        // A tensor whose path is also that of a module counts as held by it: a map by prefixes
        // knows no other way.
        for tensor in &tensors {
            let Part { path, parent, .. } = paths.parts[*tensor as usize];
            // Most tensors are held by modules that hold no modules.
            if paths.parts[parent as usize].has_modules
                && let Some(module) = paths.get(path)
            {
                paths.parts[*tensor as usize].parent = module;
            }
        }
        for block in tree.blocks.iter().filter(|block| block.work.kv_bytes > 0) {
            let module = paths.innermost(&block.name);
            paths.push(&block.name, module, Kind::Cache, block.work.kv_bytes);
        }
        let (nodes, of_part) = ModuleTree::new(&paths);
        let node = |part: u32| of_part[part as usize] as NodeId;
        let mut modules = Self {
            tree: nodes,
            layers: Vec::new(),
            tied: Vec::new(),
            groups: Vec::new(),
            tensors: tensors.iter().map(|tensor| node(*tensor)).collect(),
        };
        modules.check_names()?;
        modules.read_classes(tree, &paths, node, no_split);
        modules.share(shared.into_iter().map(|(key, part)| (key, node(part))));
        modules.find_layers();
        modules.add_up();
        Ok(modules)
    }

    /// Whether it can be replaced by what it holds.
    pub(crate) fn splits(&self, id: NodeId) -> bool {
        let node = self.tree.node(id);
        node.kind == Kind::Module && node.has_modules && !node.no_split
    }

    /// The indices in [`Self::layers`] of the layers in `id`.
    pub(crate) fn layers_in(&self, id: NodeId) -> Range<usize> {
        let before = |behind| self.layers.partition_point(|layer| *layer < behind);
        before(id)..before(self.tree.node(id).end())
    }

    /// The tied groups that have tensors in `id`, a group once for each of these.
    pub(crate) fn groups_in(&self, id: NodeId) -> impl Iterator<Item = usize> + '_ {
        let before = |behind| self.tied.partition_point(|(tensor, _)| *tensor < behind);
        let inside = &self.tied[before(id)..before(self.tree.node(id).end())];
        inside.iter().map(|(_, group)| *group)
    }

    /// No two tensors have the same name.
    fn check_names(&self) -> Result<(), Error> {
        let mut names = Vec::new();
        for module in 0..self.tree.0.len() {
            names.clear();
            names.extend(self.tree.tensors_of(module).map(|tensor| tensor.path));
            names.sort_unstable();
            if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(Error::Duplicate { what: "tensor", name: pair[0].to_string() });
            }
        }
        Ok(())
    }

    /// Which modules are not split, and which hold modules without tensors.
    fn read_classes(
        &mut self,
        tree: &Tree,
        paths: &Paths<'_>,
        node: impl Fn(u32) -> NodeId,
        no_split: &[String],
    ) {
        let no_split: BTreeSet<&str> = no_split.iter().map(String::as_str).collect();
        for block in &tree.blocks {
            let class = tree.classes.get(&block.name).unwrap_or(&block.class);
            if no_split.contains(class.as_str())
                && let Some(module) = paths.get(&block.name)
            {
                self.tree.0[node(module)].no_split = true;
            }
        }
        let mut around = (ROOT, None);
        for (path, class) in tree.classes.iter().filter(|(path, _)| !path.is_empty()) {
            let whole = no_split.contains(class.as_str());
            let parent = holder(path);
            if around.1 != Some(parent) {
                around = (node(paths.innermost(parent)), Some(parent));
            }
            // Most modules are beside others that are known: these need not be looked up.
            if self.tree.0[around.0].has_modules && !whole {
                continue;
            }
            if let Some(module) = paths.get(path) {
                self.tree.0[node(module)].no_split |= whole;
            } else if self.tree.tensors_of(around.0).all(|held| held.path != path) {
                self.tree.0[around.0].has_modules = true;
            }
        }
        // The model as a whole is what its parts are placed from.
        self.tree.0[ROOT].no_split = false;
    }

    /// Collects the tied groups. Memory counts with the first of its tensors in the order of the
    /// model, and as much as the largest takes.
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
        let nodes = &mut self.tree.0;
        for group in &mut self.groups {
            let bytes = group.iter().map(|id| nodes[*id].size).max();
            let first = group.iter().min().copied();
            for id in &*group {
                let node = &mut nodes[*id];
                node.counted = Some(*id) == first;
                node.size = bytes.filter(|_| node.counted).unwrap_or(0);
            }
            group.sort_by_key(|id| nodes[*id].path);
        }
    }

    /// What is never split.
    fn find_layers(&mut self) {
        let mut id = ROOT + 1;
        while let Some(node) = self.tree.0.get(id) {
            let layer = match node.kind {
                Kind::Module => !self.splits(id),
                Kind::Parameter | Kind::Buffer => node.parent() == ROOT,
                Kind::Cache => false,
            };
            if layer {
                self.layers.push(id);
            }
            id = if layer { node.end() } else { id + 1 };
        }
    }

    /// What modules hold.
    fn add_up(&mut self) {
        let nodes = &mut self.tree.0;
        for id in (ROOT + 1..nodes.len()).rev() {
            let (size, counted, parent) = (nodes[id].size, nodes[id].counted, nodes[id].parent());
            nodes[parent].size += size;
            nodes[parent].counted |= counted;
        }
    }
}
