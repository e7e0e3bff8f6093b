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
    /// Whether activations are rounded to bf16 before they are multiplied.
    #[serde(default)]
    pub bf16: bool,
}

impl Default for Workload {
    /// One sequence of 512 tokens, half of them its prompt.
    fn default() -> Self {
        Self { batch: 1, prompt: 256, position: 512, chunk: 512, bf16: false }
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
    /// Floating point operations of attention, for one token and each position that it sees. If
    /// none is given, as many as a byte of keys and values has in f32 with two query heads to a
    /// key head.
    pub attention_flops: Option<u64>,
    /// Whether only the last token of a prompt comes here, and none in its other passes, as at a
    /// head that gives the logits of one position.
    pub last_only: bool,
    /// Floating point operations for one sequence in the first pass over a prompt and in no other:
    /// what an encoder does.
    pub flops_once: u64,
    /// Values of a token that the block takes from the one before it: what is copied where the two
    /// compute on different devices. Zero if nobody says; copies are free then.
    #[serde(default)]
    pub input_values: u64,
    /// Values of a token that the processors read of what it gives: logits.
    #[serde(default)]
    pub output_values: u64,
    /// What every pass does, if that does not depend on tokens: of a block of a model of pictures.
    /// Then nothing else of these is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<PassCost>,
}

/// The compute of a block in a pass that is of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PassCost {
    /// Floating point operations of matmuls and convolutions.
    pub flops: u64,
    /// Values that go into these and come out of them.
    pub values: u64,
    /// Floating point operations of attention.
    pub attention_flops: u64,
}
