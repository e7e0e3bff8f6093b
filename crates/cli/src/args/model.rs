//! The model, its budget and its placement.

use super::values::{ACTIVATION_DTYPES, KV_DTYPES, STRATEGIES, one_of, some};
use clap::Args;
use outsize::checkpoint::model_folder;
use outsize::models::{ActivationDtype, KvDtype};
use outsize::plan::{Budget, Strategy, parse_size};
use std::path::{Path, PathBuf};

/// The model and its budget.
#[derive(Args, Debug)]
pub struct ModelArgs {
    /// Folder of a Hugging Face checkpoint: config.json, weights (safetensors, or .bin of PyTorch),
    /// tokenizer.json; or one file of weights beside these; or a model on the Hub, org/name or
    /// org/name@revision, which is downloaded to the Hub's cache unless it is there; or a GGUF file
    pub model: PathBuf,
    /// The most memory to hold, the process itself included: `cpu=600MB` (MB decimal, MiB binary)
    /// [default: nine tenths of what is available]
    #[arg(long, value_name = "DEVICE=SIZE", value_parser = Budget::parse)]
    pub max_memory: Option<Budget>,
    /// Folder of a LoRA adapter as PEFT saves it (adapter_config.json, adapter_model.safetensors),
    /// or one on the Hub: what it says is added to the model's linear layers
    #[arg(long, value_name = "FOLDER")]
    pub adapter: Option<PathBuf>,
    /// Tokens of prompt and answer together, or of the answer if an encoder reads the prompt
    /// [default: what this run needs]
    #[arg(long, value_name = "N", value_parser = some())]
    pub context: Option<usize>,
    /// Dtypes beside those of the weights.
    #[command(flatten)]
    pub dtypes: RunDtypeArgs,
    /// How weights are placed.
    #[command(flatten)]
    pub places: PlaceArgs,
}

impl ModelArgs {
    /// The folder of config.json and tokenizer.json: the model's own, or that of its file.
    pub fn folder(&self) -> &Path {
        model_folder(&self.model)
    }
}

/// Dtypes beside those of the weights.
#[derive(Args, Debug, Clone, Copy)]
pub struct RunDtypeArgs {
    /// Dtype of the KV cache; the 16-bit ones take half the memory
    #[arg(long, value_parser = one_of(KV_DTYPES), default_value = "f32", value_name = "TYPE")]
    pub kv_dtype: KvDtype,
    /// Dtype of activations in matmuls: f32 is exact; bf16 rounds them, as PyTorch does, and is
    /// faster for prompts and for weights in GGUF's Q3_K to Q6_K
    #[arg(long, value_parser = one_of(ACTIVATION_DTYPES), default_value = "f32", value_name = "TYPE")]
    pub compute: ActivationDtype,
}

/// How weights are placed.
#[derive(Args, Debug)]
#[command(next_help_heading = "Placing weights")]
pub struct PlaceArgs {
    /// auto: the placement predicted to be the fastest; the others are Accelerate's
    #[arg(long, value_parser = one_of(STRATEGIES), default_value = "auto", value_name = "RULE")]
    pub strategy: Strategy,
    /// Device map, JSON or YAML, as Accelerate's hf_device_map: {"lm_head":
    /// "disk", "": "cpu"}
    #[arg(long, value_name = "FILE", conflicts_with = "strategy")]
    pub device_map: Option<PathBuf>,
    /// Fail rather than stream weights from disk
    #[arg(long)]
    pub must_fit: bool,
    /// Memory of each device's budget to leave free: 100MB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub reserve: u64,
}
