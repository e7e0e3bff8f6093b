//! What a pass over a model takes, in the units of the machine's limits.

use std::path::PathBuf;

use outsize_checkpoint::Checkpoint;
use outsize_plan::{Access, Tensor, Tree};
use serde::Serialize;

/// The amounts of data and work of a model.
#[derive(Serialize, Debug, Clone)]
pub struct ModelCost {
    /// Its folder.
    pub folder: PathBuf,
    /// Files of weights.
    pub files: usize,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Bytes of the matrices that every new token is multiplied with: all but an encoder's and an
    /// embedding table, of which a token needs one row. A table that is also the head counts.
    pub product_bytes: u64,
    /// Values that each token of a prompt is multiplied with: these but for the head, or those of
    /// an encoder.
    pub layer_values: u64,
    /// Values that only the last token of a prompt is multiplied with: the head, or all that is not
    /// the encoder's.
    pub head_values: u64,
    /// Bytes of keys and values of one position.
    pub cache_bytes_per_position: u64,
}

impl ModelCost {
    /// The costs of the model `tree`, which says what its blocks keep in the KV cache, with the
    /// weights of `checkpoint`. The last block with matrices is the head.
    pub fn new(checkpoint: &Checkpoint, tree: &Tree) -> Self {
        fn is_product(tensor: &&Tensor) -> bool {
            tensor.shape.len() >= 2 && tensor.access != Access::Rows
        }
        let products = || tree.blocks.iter().flat_map(|block| &block.tensors).filter(is_product);
        let values = |tensor: &Tensor| tensor.shape.iter().product::<u64>();
        let head = tree.blocks.iter().rev().find_map(|block| {
            let values: u64 = block.tensors.iter().filter(is_product).map(values).sum();
            (values > 0).then_some(values)
        });
        let sum = |once| products().filter(|t| t.once == once).map(values).sum::<u64>();
        let (layer_values, head_values) = match (sum(true), sum(false)) {
            (0, all) => (all - head.unwrap_or(0), head.unwrap_or(0)),
            of_encoder_and_rest => of_encoder_and_rest,
        };
        Self {
            folder: checkpoint.folder().to_path_buf(),
            files: checkpoint.files().len(),
            weight_bytes: checkpoint.total_bytes(),
            product_bytes: products().filter(|t| !t.once).map(|tensor| tensor.stored_bytes).sum(),
            layer_values,
            head_values,
            cache_bytes_per_position: tree
                .blocks
                .iter()
                .map(|block| block.work.kv_bytes_per_position)
                .sum(),
        }
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
