//! The model, its budget and its placement.

use crate::error::Failure;
use clap::{Args, ValueEnum};
use outsize::plan::{Budget, parse_size};
use std::path::PathBuf;

/// The model and its budget.
#[derive(Args, Debug)]
pub struct ModelArgs {
    /// Folder of a Hugging Face checkpoint: config.json, safetensors, tokenizer.json
    pub model: PathBuf,
    /// The most memory to hold, the process itself included: `cpu=600MB` (MB decimal, MiB binary)
    /// [default: nine tenths of what is available]
    #[arg(long, value_name = "DEVICE=SIZE")]
    pub max_memory: Option<String>,
    /// Tokens of prompt and answer together, or of the answer if an encoder reads the prompt
    /// [default: what this run needs]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Dtype of the KV cache; the 16-bit ones take half the memory
    #[arg(long, value_enum, default_value = "f32", value_name = "TYPE")]
    pub kv_dtype: KvType,
    /// Dtype of activations in matmuls: f32 is exact, bf16 is faster for prompts and rounds them,
    /// as PyTorch does
    #[arg(long, value_enum, default_value = "f32", value_name = "TYPE")]
    pub compute: ComputeType,
    /// How weights are placed.
    #[command(flatten)]
    pub places: PlaceArgs,
}

/// How weights are placed.
#[derive(Args, Debug)]
#[command(next_help_heading = "Placing weights")]
pub struct PlaceArgs {
    /// auto: the placement predicted to be the fastest; the others are Accelerate's
    #[arg(long, value_enum, default_value = "auto", value_name = "RULE")]
    pub strategy: StrategyArg,
    /// Device map, JSON or YAML, as Accelerate's hf_device_map: {"lm_head":
    /// "disk", "": "cpu"}
    #[arg(long, value_name = "FILE", conflicts_with = "strategy")]
    pub device_map: Option<PathBuf>,
    /// Fail rather than stream weights from disk
    #[arg(long)]
    pub must_fit: bool,
    /// Memory of each device's budget to leave free: 100MB
    #[arg(long, value_name = "SIZE")]
    pub reserve: Option<String>,
}

/// How weights are placed.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrategyArg {
    /// The placement with the least predicted time per token
    Auto,
    /// Devices are filled one after the other, as by Accelerate
    Sequential,
    /// Each GPU gets about the same, as by Accelerate
    Balanced,
    /// The same, with as little as possible on the first GPU
    #[value(name = "balanced_low_0")]
    BalancedLow0,
}

impl From<StrategyArg> for outsize::plan::Strategy {
    fn from(kind: StrategyArg) -> Self {
        match kind {
            StrategyArg::Auto => Self::Auto,
            StrategyArg::Sequential => Self::Sequential,
            StrategyArg::Balanced => Self::Balanced,
            StrategyArg::BalancedLow0 => Self::BalancedLow0,
        }
    }
}

/// Types of the KV cache.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// 32-bit floats
    F32,
    /// Brain floats
    Bf16,
    /// 16-bit floats
    F16,
}

impl From<KvType> for outsize::models::KvDtype {
    fn from(kind: KvType) -> Self {
        match kind {
            KvType::F32 => Self::F32,
            KvType::Bf16 => Self::Bf16,
            KvType::F16 => Self::F16,
        }
    }
}

/// Dtypes of activations in matmuls.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputeType {
    /// As they are
    F32,
    /// Rounded to brain floats
    Bf16,
}

impl From<ComputeType> for outsize::models::ActivationDtype {
    fn from(kind: ComputeType) -> Self {
        match kind {
            ComputeType::F32 => Self::F32,
            ComputeType::Bf16 => Self::Bf16,
        }
    }
}

/// A budget as `--max-memory` gives it.
pub fn budget(text: &str) -> Result<Budget, Failure> {
    Budget::parse(text).map_err(|error| Failure::usage(format!("--max-memory: {error}")))
}

impl PlaceArgs {
    /// Bytes to leave free on each device.
    pub fn reserve_bytes(&self) -> Result<u64, Failure> {
        let reserve = self.reserve.as_deref().map(parse_size).transpose();
        let reserve = reserve.map_err(|error| Failure::usage(format!("--reserve: {error}")))?;
        Ok(reserve.unwrap_or(0))
    }
}
