//! `outsize estimate`.

use super::RunDtypeArgs;
use super::values::{batch, estimated_dtype, some};
use clap::Args;
use outsize::plan::WeightDtype;

/// `outsize estimate`.
#[derive(Args, Debug)]
pub struct EstimateArgs {
    /// A checkpoint's folder or file, a config.json, a preset, or a model on the Hub: org/name or
    /// org/name@revision, of which only headers are fetched
    pub model: String,
    /// Dtypes of the weights, one row each: stored, f64, f32, f16, bf16, f8, int8, f4, int4 or int2
    #[arg(
        long,
        value_parser = estimated_dtype,
        num_args = 1..,
        value_delimiter = ',',
        value_name = "TYPE",
        default_values = ["stored", "f32", "bf16", "int8", "int4"]
    )]
    pub dtypes: Vec<Option<WeightDtype>>,
    /// Tokens of each sequence [default: 4096, or the model's longest context if that is less]
    #[arg(long, value_name = "N", value_parser = some())]
    pub context: Option<usize>,
    /// Batch size
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = batch())]
    pub batch: usize,
    /// Dtypes beside those of the weights.
    #[command(flatten)]
    pub run_dtypes: RunDtypeArgs,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
