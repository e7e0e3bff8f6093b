//! What a pass over a model takes, in the units of the machine's limits.

use std::path::PathBuf;

use outsize_checkpoint::Checkpoint;
use outsize_models::{CacheLayer, ModelConfig};
use outsize_plan::Access;
use serde::Serialize;

use crate::Error;

/// The amounts of data and work of a model.
#[derive(Serialize, Debug, Clone)]
pub struct ModelCost {
    /// Its folder.
    pub folder: PathBuf,
    /// Files of weights.
    pub files: usize,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Bytes of the matrices that every token is multiplied with: all but an embedding table, of
    /// which a token needs one row. A table that is also the head counts.
    pub product_bytes: u64,
    /// Values of these, but for the head.
    pub layer_values: u64,
    /// Values of the head, which only the last token of a pass is multiplied with.
    pub head_values: u64,
    /// Bytes of keys and values of one position.
    pub cache_bytes_per_position: u64,
}

impl ModelCost {
    /// The costs of the model of `config` with the weights of `checkpoint`.
    ///
    /// # Errors
    /// If the weights are not those of the model.
    pub fn new(checkpoint: &Checkpoint, config: &ModelConfig) -> Result<Self, Error> {
        let folder = checkpoint.folder();
        let tree = config.tree(&folder.to_string_lossy(), checkpoint.tensors())?;
        let head = config.head_weight();
        let (mut product_bytes, mut layer_values, mut head_values) = (0, 0, 0);
        let tensors = tree.blocks.iter().flat_map(|block| &block.tensors);
        for tensor in tensors.filter(|tensor| tensor.access == Access::Tiles) {
            product_bytes += tensor.stored_bytes;
            let values = tensor.shape.iter().product::<u64>();
            match tensor.name == head {
                true => head_values += values,
                false => layer_values += values,
            }
        }
        let layers = config.cache().layers.iter();
        Ok(Self {
            folder: folder.to_path_buf(),
            files: checkpoint.files().len(),
            weight_bytes: checkpoint.total_bytes(),
            product_bytes,
            layer_values,
            head_values,
            // The cache is kept in f32, as `outsize run` does by default.
            cache_bytes_per_position: 4 * layers.map(CacheLayer::values).sum::<u64>(),
        })
    }

    /// Operations of the matmuls of a pass over a prompt: two for each value and token.
    pub fn prompt_flops(&self, tokens: u64) -> f64 {
        2.0 * (tokens as f64 * self.layer_values as f64 + self.head_values as f64)
    }

    /// Bytes that generating a token reads from memory, with `position` tokens before it: matrices,
    /// keys and values.
    pub fn token_bytes(&self, position: f64) -> f64 {
        self.product_bytes as f64 + position * self.cache_bytes_per_position as f64
    }
}
