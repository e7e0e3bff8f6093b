use crate::{BlockCost, WeightDtype};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Granularity of direct reads, in bytes: offset, length and memory are multiples of it.
pub(crate) const PAGE: u64 = 4096;

/// How a tensor is fetched if it is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// In one piece.
    #[default]
    Whole,
    /// In tiles of whole rows, each of at most [`Options::tile_bytes`](crate::Options), or of one
    /// row if that is larger.
    Tiles,
    /// By single rows on demand, such as an embedding: streaming it costs next to nothing.
    Rows,
}

/// A model to be placed: its blocks in the order in which a pass uses them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    /// In order of execution. No two have the same name.
    pub blocks: Vec<Block>,
    /// The class of each module by its path, as far as known: `model.layers.0` is a
    /// `LlamaDecoderLayer`. Accelerate's strategies need it for
    /// [`Options::no_split`](crate::Options).
    pub classes: BTreeMap<String, String>,
    /// Staging bytes of reader threads for tensors that they convert or align.
    pub staging_bytes: u64,
}

/// A module that computes in one place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Block {
    /// Its path in the module: `model.layers.0`.
    pub name: String,
    /// The class of the module: `LlamaDecoderLayer`.
    pub class: String,
    /// Its parameters and buffers.
    pub tensors: Vec<Tensor>,
    /// What it does besides holding these.
    pub work: BlockCost,
}

/// Whether a tensor is learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// A weight.
    #[default]
    Parameter,
    /// State that is not learned, such as a running mean.
    Buffer,
}

/// One parameter or buffer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tensor {
    /// Its path in the module, unlike that of any other: `model.layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// Whether it is learned.
    pub kind: TensorKind,
    /// Its shape; empty for a scalar, or if it is unknown.
    pub shape: Vec<u64>,
    /// The type that it is stored in.
    pub dtype: WeightDtype,
    /// Bytes as held on the device, after any cast.
    pub bytes: u64,
    /// Bytes as read from disk.
    pub stored_bytes: u64,
    /// Bytes of one row as held on the device: the smallest tile. Zero if it has no rows.
    pub row_bytes: u64,
    /// How it is fetched if it is streamed.
    pub access: Access,
    /// Tensors with the same key share their memory.
    pub tied: Option<String>,
    /// Whether it must be resident, because it cannot be fetched on demand.
    pub always_resident: bool,
    /// Whether only the first pass over a prompt uses it, such as a weight of an encoder.
    pub once: bool,
    /// How a router chooses it, if it is of one of many experts.
    pub routed: Option<Routed>,
}

/// Of how many experts a router chooses how many for each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Routed {
    /// Experts that each token goes to.
    pub per_token: u32,
    /// Experts of a block.
    pub experts: u32,
}

impl Routed {
    /// The share of a block's experts that a pass of so many tokens uses, if the router prefers
    /// none.
    pub fn share(self, tokens: f64) -> f64 {
        let one = f64::from(self.per_token) / f64::from(self.experts.max(1));
        1.0 - (1.0 - one.min(1.0)).powf(tokens)
    }
}

/// Bytes of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Weights {
    /// Of all.
    pub(crate) all: u64,
    /// How many of these are of experts that a router chooses.
    pub(crate) routed: u64,
}

impl Weights {
    /// So many bytes of a tensor.
    pub(crate) fn of(tensor: &Tensor, bytes: u64) -> Self {
        Self { all: bytes, routed: if tensor.routed.is_some() { bytes } else { 0 } }
    }

    /// Those that a pass uses, if it uses this share of experts.
    pub(crate) fn used(self, share: f64) -> f64 {
        (self.all - self.routed) as f64 + self.routed as f64 * share
    }

    pub(crate) fn plus(self, more: Self) -> Self {
        Self {
            all: self.all.saturating_add(more.all),
            routed: self.routed.saturating_add(more.routed),
        }
    }

    pub(crate) fn minus(self, less: Self) -> Self {
        Self { all: self.all - less.all, routed: self.routed - less.routed }
    }
}

impl Tree {
    /// All tensors, block by block.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.blocks.iter().flat_map(|block| &block.tensors)
    }

    /// How a router chooses experts, if the model has any.
    pub fn routed(&self) -> Option<Routed> {
        self.tensors().find_map(|tensor| tensor.routed)
    }

    /// Bytes that GPUs hold more than is stored, if all of it is on one: vectors, and the scales of
    /// fp8, are in f32 there.
    pub(crate) fn widened_bytes(&self) -> u64 {
        self.tensors().map(Tensor::widened_bytes).fold(0, u64::saturating_add)
    }
}

/// The memory that `bytes` read from any offset take: whole pages, and one more because the range
/// may begin within a page.
pub fn unit_footprint(bytes: u64) -> u64 {
    round_up(bytes).saturating_add(PAGE)
}

/// Rounds up to whole pages.
pub(crate) fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE).saturating_mul(PAGE)
}

/// The path of the module that holds the tensor of this name.
pub(crate) fn holder(name: &str) -> &str {
    // Faster than `rsplit_once`: the last part of a name is short.
    &name[..name.bytes().rposition(|byte| byte == b'.').unwrap_or(0)]
}

impl Tensor {
    /// Bytes of the largest unit that streaming it takes of the ring; zero if it takes none.
    pub(crate) fn unit(&self, tile_bytes: u64) -> u64 {
        match self.access {
            Access::Whole => unit_footprint(self.bytes),
            Access::Tiles => unit_footprint(self.bytes.min(self.tile(tile_bytes))),
            Access::Rows => 0,
        }
    }

    /// The most bytes that a tile has.
    fn tile(&self, tile_bytes: u64) -> u64 {
        tile_bytes.max(self.row_bytes).max(1)
    }

    /// The most bytes that all its units take together: a ring need never be larger.
    pub(crate) fn units(&self, tile_bytes: u64) -> u64 {
        let tile = self.tile(tile_bytes);
        match self.access {
            // Whole rows can leave almost half of each tile unused.
            Access::Tiles if self.bytes > tile => {
                let tiles = self.bytes.div_ceil(tile).saturating_mul(2);
                round_up(self.bytes).saturating_add(tiles.saturating_mul(2 * PAGE))
            }
            _ => self.unit(tile_bytes),
        }
    }

    fn widened_bytes(&self) -> u64 {
        let elements = self.shape.iter().copied().fold(1, u64::saturating_mul);
        match (self.dtype, self.shape.len()) {
            (_, 1) => elements.saturating_mul(4).saturating_sub(self.bytes),
            // Besides elements of a byte each it stores scales, of at least two bytes.
            (WeightDtype::F8, 2..) => self.stored_bytes.saturating_sub(elements),
            // Besides two in a byte it stores scales of a byte.
            (WeightDtype::F4, 2..) => {
                self.stored_bytes.saturating_sub(elements.div_ceil(2)).saturating_mul(3)
            }
            _ => 0,
        }
    }

    /// Bytes that each pass reads if it is streamed.
    pub(crate) fn bytes_per_pass(&self) -> u64 {
        match self.access {
            Access::Whole | Access::Tiles => self.stored_bytes,
            Access::Rows => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn footprints_are_whole_pages_and_one_more() {
        for (bytes, footprint) in [(0, 4096), (1, 8192), (4096, 8192), (4097, 12288)] {
            assert_eq!(unit_footprint(bytes), footprint, "{bytes}");
        }
        assert_eq!(unit_footprint(u64::MAX), u64::MAX);
    }

    #[test]
    fn vectors_and_scales_are_wider_on_gpus() {
        let tensor = |dtype, shape: &[u64], bytes, stored_bytes| {
            let shape = shape.to_vec();
            Tensor { dtype, shape, bytes, stored_bytes, ..Tensor::default() }
        };
        let block = |tensors| Block { tensors, ..Block::default() };
        let blocks = vec![
            block(vec![
                tensor(WeightDtype::Bf16, &[100], 200, 200),
                tensor(WeightDtype::F32, &[100], 400, 400),
                tensor(WeightDtype::Bf16, &[10, 10], 200, 200),
            ]),
            // With scales, of which memory has pages; and dequantized on the way in.
            block(vec![
                tensor(WeightDtype::F8, &[10, 10], 100 + 2 * PAGE, 108),
                tensor(WeightDtype::F8, &[10, 10], 400, 100),
            ]),
        ];
        let tree = Tree { blocks, ..Tree::default() };
        assert_eq!(tree.widened_bytes(), 200 + 8);
    }

    #[test]
    fn units_are_what_is_fetched_at_once() {
        let tensor = |access| Tensor {
            name: String::new(),
            bytes: 10 * PAGE,
            stored_bytes: 5 * PAGE,
            row_bytes: PAGE,
            access,
            ..Tensor::default()
        };
        assert_eq!(tensor(Access::Whole).unit(4 * PAGE), 11 * PAGE);
        assert_eq!(tensor(Access::Tiles).unit(4 * PAGE), 5 * PAGE);
        assert_eq!(tensor(Access::Tiles).unit(40 * PAGE), 11 * PAGE);
        assert_eq!(tensor(Access::Rows).unit(4 * PAGE), 0);
        assert_eq!(tensor(Access::Rows).bytes_per_pass(), 0);
        assert_eq!(tensor(Access::Tiles).bytes_per_pass(), 5 * PAGE);
        // Ten rows of a page in tiles of four: three tiles, of which none is more than 5 pages.
        assert!(tensor(Access::Tiles).units(4 * PAGE) >= 10 * PAGE + 3 * PAGE);
        // A tile is never less than a row.
        let wide = Tensor { row_bytes: 5 * PAGE, ..tensor(Access::Tiles) };
        assert_eq!(wide.unit(4 * PAGE), 6 * PAGE);
        assert!(wide.units(4 * PAGE) >= 2 * wide.unit(4 * PAGE));
        // Tiles of nothing are no division by nothing.
        let narrow = Tensor { row_bytes: 0, ..tensor(Access::Tiles) };
        assert!(narrow.units(0) > narrow.units(PAGE));
        assert_eq!(serde_json::to_string(&Access::Tiles).unwrap(), r#""tiles""#);
    }
}
