//! `outsize synth`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// `outsize synth`.
#[derive(Args, Debug)]
pub struct SynthArgs {
    /// A preset (llama-demo, qwen2-0.5b, llama-1b, llama-7b, mistral-7b, t0pp), a config.json,
    /// or a folder that holds one
    pub config: String,
    /// Folder to make; must not exist
    pub out: PathBuf,
    /// Type of the weights
    #[arg(long, value_enum, default_value = "bf16")]
    pub dtype: SynthDtype,
    /// The same seed gives the same weights
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    pub seed: u64,
    /// The largest file
    #[arg(long, default_value = "5GB", value_name = "SIZE")]
    pub max_shard_size: String,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Types that a synthetic checkpoint can have.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum SynthDtype {
    /// 32-bit floats
    F32,
    /// 16-bit floats
    F16,
    /// Brain floats
    Bf16,
    /// Linear layers in 8 bits with a scale for each 128 x 128, as DeepSeek-V3 is published; the rest in brain floats
    Fp8,
}
