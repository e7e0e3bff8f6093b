//! `outsize synth`.

use super::values::{Named, one_of, some_bytes};
use clap::Args;
use outsize::checkpoint::Dtype;
use std::path::PathBuf;

/// `outsize synth`.
#[derive(Args, Debug)]
pub struct SynthArgs {
    /// A preset (llama-demo, qwen2-0.5b, llama-1b, gpt-j-6b, opt-6.7b, llama-7b, olmoe-1b-7b,
    /// mistral-7b, falcon-mamba-7b, qwen3.5-9b, t0pp, deepseek-v2-lite, gpt-oss-20b, glm-4.7-flash,
    /// qwen3-30b-a3b, qwen3.5-35b-a3b, jamba-1.5-mini, qwen3-next-80b-a3b, glm-4.5-air,
    /// gpt-oss-120b, mistral-small-4, deepseek-v4-flash, jamba-1.5-large, longcat-flash,
    /// deepseek-v3, deepseek-v3.2, glm-5, kimi-k2-thinking, stable-diffusion-v1, -tiny, -xl, -3.5
    /// or -3.5-tiny, flux-dev, -schnell or -tiny, flux2-dev or -tiny, flux2-klein-4b or -tiny,
    /// z-image or -tiny, qwen-image, -tiny, -edit or -edit-tiny), a config.json, or a folder that
    /// holds one
    pub config: String,
    /// Folder to make; must not exist
    pub out: PathBuf,
    /// Type of the weights
    #[arg(long, value_parser = one_of(DTYPES), default_value = "bf16")]
    pub dtype: SynthDtype,
    /// The same seed gives the same weights
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    pub seed: u64,
    /// The largest file
    #[arg(long, default_value = "5GB", value_name = "SIZE", value_parser = some_bytes)]
    pub max_shard_size: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// How the weights of a synthetic checkpoint are stored.
#[derive(Debug, Clone, Copy)]
pub struct SynthDtype {
    /// The type of all tensors, but of linear layers in blocks.
    pub stored: Dtype,
    /// Its name in a config.json.
    pub torch_dtype: &'static str,
    /// Blocks that linear layers are in.
    pub blocks: Option<SynthBlocks>,
}

/// Blocks of small numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SynthBlocks {
    /// Floats of 8 bits.
    Fp8,
    /// Floats of 4 bits.
    Mxfp4,
    /// Integers of 4 bits.
    Int4,
    /// Integers of 8 bits.
    Int8,
}

/// Brain floats.
pub const BF16: SynthDtype = plain(Dtype::BF16, "bfloat16");

const DTYPES: &Named<SynthDtype> = &[
    ("f32", "32-bit floats", plain(Dtype::F32, "float32")),
    ("f16", "16-bit floats", plain(Dtype::F16, "float16")),
    ("bf16", "Brain floats", BF16),
    (
        "fp8",
        "Linear layers in 8 bits with a scale for each 128 x 128, as DeepSeek-V3 is published; the rest in brain floats",
        SynthDtype { blocks: Some(SynthBlocks::Fp8), ..BF16 },
    ),
    (
        "mxfp4",
        "Experts in 4 bits with a scale for each 32, as gpt-oss is published; the rest in brain floats",
        SynthDtype { blocks: Some(SynthBlocks::Mxfp4), ..BF16 },
    ),
    (
        "int4",
        "Linear layers in 4 bits with a scale for each 128 of a row, as compressed-tensors packs them; the rest in brain floats",
        SynthDtype { blocks: Some(SynthBlocks::Int4), ..BF16 },
    ),
    (
        "int8",
        "The same in 8 bits with a scale for each row",
        SynthDtype { blocks: Some(SynthBlocks::Int8), ..BF16 },
    ),
];

const fn plain(stored: Dtype, torch_dtype: &'static str) -> SynthDtype {
    SynthDtype { stored, torch_dtype, blocks: None }
}
