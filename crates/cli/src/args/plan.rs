//! `outsize plan`.

use super::values::{batch, some, special_dtype, weight_dtype};
use super::{PlaceArgs, RunDtypeArgs};
use clap::Args;
use outsize::plan::{Budget, WeightDtype};
use std::path::PathBuf;

/// `outsize plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Folder of a checkpoint, or one with nothing but a config.json; a config.json, .safetensors
    /// or .bin file; a preset such as llama-7b; a model on the Hub: org/name or org/name@revision,
    /// of which only headers are fetched; or any of these of a model of pictures. Weights are not
    /// read
    #[arg(required_unless_present = "no_split")]
    pub model: Option<PathBuf>,
    /// The most memory to hold on each device: `gpu0=8GiB,cpu=4GiB` (GiB binary, GB decimal). A
    /// device that is not named has nine tenths of what is free there, one with 0 is not used
    #[arg(long, value_name = "DEVICE=SIZE,…", value_parser = Budget::parse)]
    pub max_memory: Option<Budget>,
    /// Of a model of pictures, plan weights of this variant, such as fp16 [default: plain files, or
    /// fp16 if there are no others]
    #[arg(long, value_name = "NAME")]
    pub variant: Option<String>,
    /// Of a checkpoint of a model of pictures in one file, where all else is: see
    /// `outsize image --help`
    #[arg(long, value_name = "MODEL", conflicts_with = "variant")]
    pub base: Option<PathBuf>,
    /// Count the memory of a LoRA adapter: a folder as PEFT saves it, or one on the Hub; for a
    /// model of pictures also a .safetensors file
    #[arg(long, value_name = "FOLDER")]
    pub adapter: Option<PathBuf>,
    /// Print one JSON object instead of the drawing; its key `device_map` is in Accelerate's format
    #[arg(long)]
    pub json: bool,
    /// Also write the drawing as an SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Replace the SVG if it exists
    #[arg(long, requires = "svg")]
    pub force: bool,
    /// How weights are placed.
    #[command(flatten)]
    pub places: PlaceArgs,
    /// Classes of modules that strategies other than auto do not split, such as LlamaDecoderLayer
    /// [default: those of the model's blocks]
    #[arg(long, value_name = "CLASS", num_args = 1.., value_delimiter = ',')]
    pub no_split: Vec<String>,
    /// Offload the buffers of modules that are offloaded too (strategies other than auto)
    #[arg(long)]
    pub offload_buffers: bool,
    /// Dtypes that weights are held in.
    #[command(flatten)]
    pub dtypes: DtypeArgs,
    /// What the model is used for.
    #[command(flatten)]
    pub workload: WorkloadArgs,
}

/// Dtypes that weights are held in.
#[derive(Args, Debug)]
#[command(next_help_heading = "Dtypes")]
pub struct DtypeArgs {
    /// Hold floating point weights in this type: f32, bf16, f16, f8, int8, int4, … [default: as
    /// they are stored]
    #[arg(long, value_name = "DTYPE", value_parser = weight_dtype)]
    pub dtype: Option<WeightDtype>,
    /// Hold a tensor in another type; may be given several times
    #[arg(long, value_name = "NAME=DTYPE", value_parser = special_dtype)]
    pub special_dtype: Vec<(String, WeightDtype)>,
    /// Hold modules of this name in 32 bits: `lm_head`, `wo`; may be given several times
    #[arg(long, value_name = "PATTERN")]
    pub keep_in_fp32: Vec<String>,
}

/// What the model is used for.
#[derive(Args, Debug)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// Tokens of prompt and answer together, or of the answer if an encoder reads the prompt
    /// [default: 512]
    #[arg(long, value_name = "N", value_parser = some())]
    pub context: Option<usize>,
    /// Batch size
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = batch())]
    pub batch: usize,
    /// Tokens of each prompt [default: 256, at most half of the context]
    #[arg(long, value_name = "N", value_parser = some())]
    pub prompt_tokens: Option<usize>,
    /// Dtypes beside those of the weights.
    #[command(flatten)]
    pub dtypes: RunDtypeArgs,
    /// Hardware profile to predict with: a JSON file, such as machine.json of another machine's
    /// `outsize bench --calibrate`
    #[arg(long, value_name = "FILE")]
    pub figures: Option<PathBuf>,
}
