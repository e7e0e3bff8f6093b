//! Runs of a model, as measured.

use outsize_kernels::ActivationDtype;
use serde::{Deserialize, Serialize, Serializer};

use crate::LimitSample;
use outsize_plan::Tier;
use std::collections::BTreeMap;

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
    /// What the memory pools of each GPU held.
    #[serde(default)]
    pub gpu_memory_bytes: BTreeMap<Tier, u64>,
    /// The prompt run again.
    pub prompt_again: Vec<RepeatedRun>,
    /// Where the weights were.
    pub placement: PlacedBytes,
    /// How long it was predicted to take.
    #[serde(default)]
    pub prediction: PredictedRun,
}

/// What was predicted of a run, before it.
#[derive(Deserialize, Serialize, Debug, Clone, Copy, Default)]
pub struct PredictedRun {
    /// The first pass, which loads what is resident.
    pub first_pass_seconds: f64,
    /// The prompt again.
    pub prefill: PredictedPass,
    /// A token of each text.
    pub decode: PredictedPass,
}

/// What was predicted of a pass.
#[derive(Deserialize, Serialize, Debug, Clone, Copy, Default)]
pub struct PredictedPass {
    /// Wall time.
    pub seconds: f64,
    /// Bytes of weights that are copied to GPUs.
    pub upload_bytes: u64,
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
    /// Each block.
    #[serde(default, skip_serializing)]
    pub blocks: Vec<ComputedBlock>,
    /// What each device holds.
    #[serde(default)]
    pub tiers: Vec<TierWeights>,
}

/// Where a block computes.
#[derive(Deserialize, Debug, Clone)]
pub struct ComputedBlock {
    /// Bytes of its weights.
    pub bytes: u64,
    /// In passes over the prompt.
    pub prefill_on: Tier,
    /// In passes of one token.
    pub decode_on: Tier,
}

/// Weights that a device holds.
#[derive(Deserialize, Serialize, Debug, Clone)]
pub struct TierWeights {
    /// The device.
    pub tier: Tier,
    /// Their bytes.
    pub weights: u64,
}

impl PlacedBytes {
    /// The first GPU that computes.
    pub fn gpu(&self) -> Option<usize> {
        let tiers = self.blocks.iter().flat_map(|block| [block.prefill_on, block.decode_on]);
        let gpus = tiers.filter_map(|tier| match tier {
            Tier::Gpu(number) => Some(number),
            Tier::Cpu | Tier::Disk => None,
        });
        gpus.min()
    }

    /// Of the weights of all blocks the share that GPUs compute with, in passes over the prompt and
    /// in those of a token.
    pub fn share_on_gpus(&self) -> [f64; 2] {
        let all: u64 = self.blocks.iter().map(|block| block.bytes).sum();
        let share = |on: fn(&ComputedBlock) -> Tier| {
            let there = self.blocks.iter().filter(|block| matches!(on(block), Tier::Gpu(_)));
            there.map(|block| block.bytes).sum::<u64>() as f64 / all.max(1) as f64
        };
        [share(|block| block.prefill_on), share(|block| block.decode_on)]
    }
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
