//! What the checkpoint of a GGUF file has otherwise than transformers, as its `config.json` says.

use serde_json::{Map, Value};

/// What a checkpoint has otherwise than transformers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredLayout {
    /// The rows of [such a head](interleaved_head).
    pub(crate) interleaved_head: Option<usize>,
    /// Whether heads of linear attention are in turns.
    in_turns: bool,
    /// Whether rows that are rotated together are two parts of a head's, and lie beside each other
    /// in transformers.
    in_parts: bool,
}

impl StoredLayout {
    /// As a `config.json` says.
    pub(crate) fn of(config: &Map<String, Value>) -> Self {
        let in_turns = config.get("linear_heads_in_turns") == Some(&Value::from(true));
        Self { interleaved_head: interleaved_head(config), in_turns, in_parts: in_parts(config) }
    }

    /// Whether the rows of a linear layer's weight are in another order than transformers has them
    /// in, which is not undone.
    pub(crate) fn reorders(&self, weight: &str) -> bool {
        let is_in_parts = || weight.strip_suffix(".weight").is_some_and(is_rotated);
        (self.in_turns && weight.contains(".linear_attn.")) || (self.in_parts && is_in_parts())
    }
}

/// The rows of a head, where those of queries and keys that are rotated together lie beside each
/// other, and are two halves of it in transformers.
pub(crate) fn interleaved_head(config: &Map<String, Value>) -> Option<usize> {
    (config.get("rope_interleaved") == Some(&Value::from(true))).then(|| head(config))
}

/// As [`StoredLayout::in_parts`].
pub(crate) fn in_parts(config: &Map<String, Value>) -> bool {
    config.get("rope_interleaved") == Some(&Value::from(false))
}

/// Whether a module's rows are those of [such heads](interleaved_head).
pub(crate) fn is_rotated(module: &str) -> bool {
    module.ends_with("_attn.q_proj") || module.ends_with("_attn.k_proj")
}

/// The rows of a head of attention.
fn head(config: &Map<String, Value>) -> usize {
    let field = |name: &str| config.get(name).and_then(Value::as_u64);
    let share = || Some(field("hidden_size")? / field("num_attention_heads")?.max(1));
    // A number that no tensor has is refused for each of them.
    field("head_dim").or_else(share).and_then(|rows| rows.try_into().ok()).unwrap_or(0)
}
