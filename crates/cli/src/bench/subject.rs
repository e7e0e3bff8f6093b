//! The model that is run, as amounts of work.

use outsize::checkpoint::Checkpoint;
use outsize::models::ModelConfig;
use serde::Serialize;

/// What a model is made of, in what its limits are counted in.
#[derive(Serialize, Debug, Clone)]
pub struct Subject {
    /// Its folder.
    pub folder: std::path::PathBuf,
    /// Files of weights.
    pub files: usize,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Bytes of the matrices that every token is multiplied with: all but the table of embeddings, of which a token needs one
    /// row; a table that is also the head counts.
    pub product_bytes: u64,
    /// Values of these, but for the head.
    pub layer_values: u64,
    /// Values of the head, which only the last token of a pass is multiplied with.
    pub head_values: u64,
    /// Bytes of keys and values of one position.
    pub cache_bytes_per_position: u64,
}

/// The table of embeddings, and the head.
const TABLE: &str = "embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

impl Subject {
    /// Counts the matrices of a checkpoint.
    pub fn new(checkpoint: &Checkpoint, config: &ModelConfig) -> Self {
        let tied = config.tie_word_embeddings;
        let (mut product_bytes, mut layer_values, mut head_values) = (0, 0, 0);
        for tensor in checkpoint.tensors() {
            let &[rows, width] = &tensor.shape[..] else {
                continue;
            };
            let values = rows as u64 * width as u64;
            let (table, head) = (tensor.name.ends_with(TABLE), tensor.name.ends_with(HEAD));
            // A tied model's checkpoint may have a head all the same: it is not used.
            if (table && !tied) || (head && tied) {
                continue;
            }
            product_bytes += tensor.len;
            match table || head {
                true => head_values += values,
                false => layer_values += values,
            }
        }
        let values = 2 * config.key_value_size() * config.num_hidden_layers;
        Self {
            folder: checkpoint.folder().to_path_buf(),
            files: checkpoint.files().len(),
            weight_bytes: checkpoint.total_bytes(),
            product_bytes,
            layer_values,
            head_values,
            // The cache is kept in f32, as `outsize run` does by default.
            cache_bytes_per_position: 4 * values as u64,
        }
    }

    /// Operations of the products of a pass over a prompt: two for each value and token.
    pub fn prompt_flops(&self, tokens: u64) -> f64 {
        2.0 * (tokens as f64 * self.layer_values as f64 + self.head_values as f64)
    }

    /// Bytes that generating a token reads from memory, with `position` tokens before it: matrices, keys and values.
    pub fn token_bytes(&self, position: f64) -> f64 {
        self.product_bytes as f64 + position * self.cache_bytes_per_position as f64
    }
}
