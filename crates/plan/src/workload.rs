use serde::{Deserialize, Serialize};

/// The workload that the speed is predicted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Sequences at once.
    pub batch: u64,
    /// Prompt tokens of each sequence.
    pub prompt: u64,
    /// Tokens of each sequence that attention sees when a token is generated.
    pub position: u64,
    /// The most tokens of each sequence in one pass over the prompt.
    pub chunk: u64,
}

impl Default for Workload {
    /// One sequence of 512 tokens, half of them its prompt.
    fn default() -> Self {
        Self { batch: 1, prompt: 256, position: 512, chunk: 512 }
    }
}

/// The compute and KV cache of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BlockCost {
    /// Bytes of keys and values of all positions and sequences.
    pub kv_bytes: u64,
    /// Bytes of those of a prompt that an encoder read: every token attends to all of them.
    pub cross_kv_bytes: u64,
    /// Bytes of keys and values of one position of all sequences.
    pub kv_bytes_per_position: u64,
    /// The most positions that attention sees; all if none is given.
    pub window: Option<u64>,
    /// Floating point operations for one token of one sequence. If none is given, two for each
    /// value of a parameter of two dimensions or more that is not read by rows.
    pub flops_per_token: Option<u64>,
    /// Floating point operations for one sequence in the first pass over a prompt and in no other: what an encoder does.
    pub flops_once: u64,
}
