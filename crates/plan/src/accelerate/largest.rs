use super::modules::Modules;
use crate::module_tree::{Kind, NodeId};

/// The size of the largest layer that is still to be placed: what Accelerate leaves free on the
/// devices through which offloaded layers pass.
///
/// As there, it is looked up anew only when something was split, or when all layers of that size
/// have been looked at. So it can be larger than it need be after tied modules were placed
/// together; and a layer that is being looked at does not count.
pub(super) struct Largest {
    /// Layers of one size, the largest first.
    sizes: Vec<Size>,
    /// The place in `sizes` of each layer.
    of_layer: Vec<usize>,
    /// Whether each layer is placed.
    placed: Vec<bool>,
    /// The look-up before or at which each layer was looked at last.
    looked_at: Vec<usize>,
    /// Layers that are tensors of the model as a whole: these count at the first look-up only.
    tensors: Vec<usize>,
    /// Sizes before this one have no layers left.
    first: usize,
    /// The place in `sizes` of what was found.
    found: Option<usize>,
    /// How many layers of that size have not been looked at.
    left: usize,
    /// The number of the look-up.
    lookup: usize,
}

/// Layers of one size.
struct Size {
    bytes: u64,
    /// How many are still to be placed.
    unplaced: usize,
}

impl Largest {
    pub(super) fn new(modules: &Modules<'_>) -> Self {
        let layers = &modules.layers;
        let mut by_size: Vec<usize> = (0..layers.len()).collect();
        by_size.sort_unstable_by_key(|layer| {
            std::cmp::Reverse(modules.tree.node(layers[*layer]).size)
        });
        let mut sizes: Vec<Size> = Vec::new();
        let mut of_layer = vec![0; layers.len()];
        for layer in by_size {
            let bytes = modules.tree.node(layers[layer]).size;
            match sizes.last_mut().filter(|size| size.bytes == bytes) {
                Some(size) => size.unplaced += 1,
                None => sizes.push(Size { bytes, unplaced: 1 }),
            }
            of_layer[layer] = sizes.len() - 1;
        }
        let is_tensor = |layer: &usize| modules.tree.node(layers[*layer]).kind != Kind::Module;
        let mut largest = Self {
            sizes,
            of_layer,
            placed: vec![false; layers.len()],
            looked_at: vec![0; layers.len()],
            tensors: (0..layers.len()).filter(is_tensor).collect(),
            first: 0,
            found: None,
            left: 0,
            lookup: 0,
        };
        largest.find(0..0);
        largest
    }

    /// The size of the largest layer, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.found.map_or(0, |found| self.sizes[found].bytes)
    }

    /// `id` is looked at.
    pub(super) fn look_at(&mut self, modules: &Modules<'_>, id: NodeId) {
        for layer in modules.layers_in(id) {
            if Some(self.of_layer[layer]) == self.found && self.looked_at[layer] < self.lookup {
                self.looked_at[layer] = self.lookup;
                self.left -= 1;
            }
        }
        if self.left == 0 {
            self.look_up(modules.layers_in(id));
        }
    }

    /// Something was split.
    pub(super) fn split(&mut self) {
        self.look_up(0..0);
    }

    /// `id` has its place.
    pub(super) fn place(&mut self, modules: &Modules<'_>, id: NodeId) {
        for layer in modules.layers_in(id) {
            self.forget(layer);
        }
    }

    fn forget(&mut self, layer: usize) {
        if !std::mem::replace(&mut self.placed[layer], true) {
            self.sizes[self.of_layer[layer]].unplaced -= 1;
        }
    }

    /// Any look-up but the first.
    fn look_up(&mut self, without: std::ops::Range<usize>) {
        for tensor in std::mem::take(&mut self.tensors) {
            self.forget(tensor);
        }
        self.find(without);
    }

    /// The largest layers that are still to be placed, but for those in `without`.
    fn find(&mut self, without: std::ops::Range<usize>) {
        self.lookup += 1;
        let mut excluded: Vec<usize> = without
            .clone()
            .filter(|layer| !self.placed[*layer])
            .map(|layer| self.of_layer[layer])
            .collect();
        excluded.sort_unstable();
        let mut excluded = excluded.into_iter().peekable();
        while self.sizes.get(self.first).is_some_and(|size| size.unplaced == 0) {
            self.first += 1;
        }
        (self.found, self.left) = (None, 0);
        for (at, size) in self.sizes.iter().enumerate().skip(self.first) {
            let mut left = size.unplaced;
            while excluded.next_if_eq(&at).is_some() {
                left -= 1;
            }
            if left > 0 {
                (self.found, self.left) = (Some(at), left);
                break;
            }
        }
        for layer in without {
            self.looked_at[layer] = self.lookup;
        }
    }
}
