//! `outsize estimate`.

use super::{ComputeType, KvType};
use clap::{Args, ValueEnum};

/// `outsize estimate`.
#[derive(Args, Debug)]
pub struct EstimateArgs {
    /// A checkpoint's folder or file, a config.json, a preset, or a model on the Hub: org/name or
    /// org/name@revision, of which only headers are fetched
    pub model: String,
    /// Dtypes of the weights, one row each
    #[arg(
        long,
        value_enum,
        num_args = 1..,
        value_delimiter = ',',
        value_name = "TYPE",
        default_values = ["stored", "f32", "bf16", "int8", "int4"]
    )]
    pub dtypes: Vec<EstimateDtype>,
    /// Tokens of each sequence [default: 4096, or the model's longest context if that is less]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Batch size
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Dtype of the KV cache
    #[arg(long, value_enum, default_value = "f32", value_name = "TYPE")]
    pub kv_dtype: KvType,
    /// Dtype of activations in matmuls
    #[arg(long, value_enum, default_value = "f32", value_name = "TYPE")]
    pub compute: ComputeType,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Types that weights can be estimated in.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum EstimateDtype {
    /// As the checkpoint stores them
    Stored,
    /// 64-bit floats
    #[value(alias = "float64")]
    F64,
    /// 32-bit floats
    #[value(alias = "float32")]
    F32,
    /// 16-bit floats
    #[value(alias = "float16")]
    F16,
    /// Brain floats
    #[value(alias = "bfloat16")]
    Bf16,
    /// 8-bit floats
    #[value(alias = "fp8")]
    F8,
    /// 8-bit integers
    Int8,
    /// 4-bit floats
    #[value(alias = "fp4")]
    F4,
    /// 4-bit integers
    Int4,
    /// 2-bit integers
    Int2,
}
