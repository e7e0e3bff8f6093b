//! `outsize estimate`.

use super::RunDtypeArgs;
use super::values::{batch, some};
use clap::Args;
use std::path::PathBuf;

/// `outsize estimate`.
#[derive(Args, Debug)]
pub struct EstimateArgs {
    /// A checkpoint's folder or file, a config.json, a preset, or a model on the Hub: org/name or
    /// org/name@revision, of which only headers are fetched
    #[arg(required_unless_present = "dtypes")]
    pub model: Option<PathBuf>,
    /// Dtypes of the weights, one row each: stored, f64, f32, f16, bf16, f8, int8, f4, int4 or int2
    #[arg(
        long,
        num_args = 1..,
        value_delimiter = ',',
        value_name = "TYPE",
        default_values = ["stored", "f32", "bf16", "int8", "int4"]
    )]
    pub dtypes: Vec<String>,
    /// Tokens of each sequence [default: 4096, or the model's longest context if that is less]
    #[arg(long, value_name = "N", value_parser = some())]
    pub context: Option<usize>,
    /// Batch size
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = batch())]
    pub batch: usize,
    /// Dtypes beside those of the weights.
    #[command(flatten)]
    pub run_dtypes: RunDtypeArgs,
    /// Of a model of pictures, count weights of this variant, such as fp16 [default: plain files,
    /// or fp16 if there are no others]
    #[arg(long, value_name = "NAME")]
    pub variant: Option<String>,
    /// Of a checkpoint of a model of pictures in one file, where all else is: see
    /// `outsize image --help`
    #[arg(long, value_name = "MODEL", conflicts_with = "variant")]
    pub base: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
