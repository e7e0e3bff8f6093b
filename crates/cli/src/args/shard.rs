//! `outsize shard` and `outsize merge`.

use super::values::{Named, one_of, some_bytes};
use clap::Args;
use outsize::checkpoint::Dtype;
use std::path::PathBuf;

/// `outsize shard`.
#[derive(Args, Debug)]
pub struct ShardArgs {
    #[command(flatten)]
    pub rewrite: RewriteArgs,
    /// The largest file
    #[arg(long, default_value = "5GB", value_name = "SIZE", value_parser = some_bytes)]
    pub max_shard_size: u64,
}

/// What `outsize shard` and `outsize merge` have in common; all of the latter.
#[derive(Args, Debug)]
pub struct RewriteArgs {
    /// A checkpoint's folder, its file of weights (.safetensors, .bin, .gguf), or a model on the
    /// Hub as org/name
    pub model: PathBuf,
    /// Folder to make; must not exist
    pub out: PathBuf,
    /// Type that all floats become; quantised weights are dequantised [default: as stored, and f32
    /// for the blocks of GGUF files, which safetensors files cannot hold]
    #[arg(long, value_parser = one_of(FLOATS))]
    pub dtype: Option<Dtype>,
    /// Write matrices of bf16 in two thirds to three quarters of the bytes, losslessly: outsize
    /// runs them faster, with the same results; other programs cannot read them. Undone by --dtype
    /// bf16
    #[arg(long)]
    pub pack: bool,
    /// Merge a LoRA adapter into the weights: a folder as PEFT saves it, or one on the Hub
    #[arg(long, value_name = "FOLDER")]
    pub adapter: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

const FLOATS: &Named<Dtype> = &[
    ("f32", "32-bit floats", Dtype::F32),
    ("f16", "16-bit floats", Dtype::F16),
    ("bf16", "Brain floats", Dtype::BF16),
];
