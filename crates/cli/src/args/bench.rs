//! `outsize bench`.

use super::ComputeType;
use clap::Args;
use std::path::PathBuf;

/// `outsize bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// A model: its own files are read to measure the disk, and it is run; or a folder, where a
    /// file is made and removed to measure the disk [default: the cache folder]
    #[arg(value_name = "MODEL_OR_FOLDER")]
    pub place: Option<PathBuf>,
    /// Measure disk, memory and processors in less than 20 seconds and store the figures for
    /// predictions; no model is run
    #[arg(long, conflicts_with_all = ["max_memory", "prompt_tokens", "new_tokens", "rounds", "context", "compute"])]
    pub calibrate: bool,
    /// Budget to run the model in, as `outsize run` takes it; may be given several times [default:
    /// all that is free if the model fits, then 50 % and 10 % of its weights]
    #[arg(long, value_name = "DEVICE=SIZE")]
    pub max_memory: Vec<String>,
    /// Tokens of the prompt
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N", default_value_t = 128)]
    pub prompt_tokens: u32,
    /// Tokens to generate in each run, the first of which is the prompt's
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..), value_name = "N", default_value_t = 17)]
    pub new_tokens: u32,
    /// Runs in each budget, alternating
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N", default_value_t = 3)]
    pub rounds: u32,
    /// Tokens of prompt and answer together [default: what a run needs]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Dtype of activations in matmuls
    #[arg(long, value_enum, default_value = "f32", value_name = "TYPE")]
    pub compute: ComputeType,
    /// The most memory to measure with, and the most to write to disk; less is less exact
    #[arg(long, default_value = "3GB", value_name = "SIZE")]
    pub size: String,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
