//! Runs of a model, as measured.

use outsize_kernels::ActivationDtype;
use serde::{Deserialize, Serialize, Serializer};

use crate::LimitSample;

/// What each run does.
#[derive(Serialize, Debug, Clone, Copy)]
pub struct BenchTask {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens to generate.
    pub new_tokens: u32,
    /// Runs in each budget.
    pub rounds: u32,
    /// The dtype that activations are multiplied in.
    #[serde(serialize_with = "activation_dtype")]
    pub compute: ActivationDtype,
}

fn activation_dtype<S: Serializer>(
    dtype: &ActivationDtype,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match dtype {
        ActivationDtype::F32 => "f32",
        ActivationDtype::Bf16 => "bf16",
    })
}

/// What a run of a model came to: the part of the JSON of `outsize run` that counts here. Times in
/// seconds, sizes in bytes.
#[derive(Deserialize, Serialize, Debug, Clone)]
pub struct RunReport {
    /// The generated tokens.
    #[serde(skip_serializing)]
    pub tokens: Vec<u32>,
    /// From opening the checkpoint until the first pass could begin.
    pub load_seconds: f64,
    /// The first pass, which loads what is resident.
    pub prefill_seconds: f64,
    /// Read by the end of it.
    pub prefill_bytes_read: u64,
    /// From the start of the process to the first token.
    pub first_token_seconds: f64,
    /// All other tokens together.
    pub decode_seconds: f64,
    /// Read for the other tokens.
    pub decode_bytes_read: u64,
    /// Time that compute waited for weights meanwhile.
    pub waiting_for_data_seconds: f64,
    /// The largest resident set.
    pub peak_rss_bytes: Option<u64>,
    /// The prompt run again.
    pub prompt_again: Vec<RepeatedRun>,
    /// Where the weights were.
    pub placement: PlacedBytes,
}

/// The prompt run again, from an empty context, with everything resident that stays.
#[derive(Deserialize, Serialize, Debug, Clone, Copy)]
pub struct RepeatedRun {
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Bytes read from the checkpoint meanwhile.
    pub bytes_read: u64,
    /// Time that compute waited for weights, in seconds.
    pub waiting_for_data_seconds: f64,
}

/// How much was where, in bytes.
#[derive(Deserialize, Serialize, Debug, Clone)]
pub struct PlacedBytes {
    /// Resident weights, as they lie in memory.
    pub resident_footprint: u64,
    /// Weights that every pass streamed.
    pub streamed_bytes: u64,
    /// The ring.
    pub ring_bytes: u64,
}

impl RunReport {
    /// All bytes that it read.
    pub fn bytes_read(&self) -> u64 {
        let again: u64 = self.prompt_again.iter().map(|again| again.bytes_read).sum();
        self.prefill_bytes_read + self.decode_bytes_read + again
    }
}

/// A run of the model, and what the machine could do right before and right after it.
#[derive(Serialize, Debug, Clone)]
pub struct ModelRun {
    /// The results of the run.
    pub report: RunReport,
    /// The limits before it.
    pub before: LimitSample,
    /// The limits after it.
    pub after: LimitSample,
    /// Bytes that were fetched from storage meanwhile, as the system counts; nothing where it does
    /// not.
    pub fetched_bytes: Option<u64>,
}
