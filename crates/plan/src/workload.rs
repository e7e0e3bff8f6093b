use serde::{Deserialize, Serialize};

/// What a model is planned for: it decides what the KV cache takes, and for which text the speed is
/// predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Texts at once.
    pub batch: u64,
    /// Tokens of the prompt of each.
    pub prompt: u64,
    /// Tokens of each text when a token is generated: what attention looks at.
    pub position: u64,
    /// Tokens of each text that one pass over the prompt takes at most: each pass reads anew what
    /// streams.
    pub chunk: u64,
}

impl Default for Workload {
    /// One text of 512 tokens, half of them its prompt.
    fn default() -> Self {
        Self {
            batch: 1,
            prompt: 256,
            position: 512,
            chunk: 512,
        }
    }
}

/// What a block does besides holding weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockCost {
    /// Keys and values of all positions of all texts that the block keeps where it computes, in
    /// bytes.
    pub kv_bytes: u64,
    /// Keys and values that one position of all texts adds, in bytes: what attention reads for each
    /// position that it looks at.
    pub kv_bytes_per_position: u64,
    /// Positions that attention looks at at most; all if none is said.
    pub window: Option<u64>,
    /// Operations for one token of one text, a multiplication and an addition being two. If none is
    /// said they are taken from the shapes: two for each value of a parameter with two dimensions
    /// or more that is not read by rows.
    pub flops_per_token: Option<u64>,
}
