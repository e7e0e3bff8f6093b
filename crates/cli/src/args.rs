//! What can be asked for.

use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Run language models bigger than memory, straight from their checkpoint.
#[derive(Parser, Debug)]
#[command(version, about, max_term_width = 100, arg_required_else_help = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Generate text under a memory budget
    Run(RunArgs),
    /// Draw where everything would live under a memory budget, and predict how fast that would be
    Plan(crate::plan::PlanArgs),
    /// Write the raw logits of some tokens as safetensors, to compare with other software
    Logits(LogitsArgs),
    /// Say what memory a model takes, by the type of its weights, to run and to train
    Estimate(EstimateArgs),
    /// Make a checkpoint with random weights, for tests and benchmarks
    Synth(SynthArgs),
    /// Make a model of 500 MB once, and run it in a quarter of that
    Demo(DemoArgs),
    /// Show what this machine has, and what said so
    Env(EnvArgs),
    /// Measure how fast this machine is, and how close a model runs to that
    Bench(BenchArgs),
}

/// The model and what it may take.
#[derive(ClapArgs, Debug)]
pub struct ModelArgs {
    /// Folder of a Hugging Face checkpoint: config.json, safetensors, tokenizer.json
    pub model: PathBuf,
    /// The most memory to hold, the process itself included: `cpu=600MB` (MB decimal, MiB binary)
    /// [default: nine tenths of what is available]
    #[arg(long, value_name = "DEVICE=SIZE")]
    pub max_memory: Option<String>,
    /// Tokens that prompt and answer together may have [default: what this run needs]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Type in which the keys and values of past tokens are kept; the 16-bit ones take half the memory
    #[arg(long, value_enum, default_value = "f32", value_name = "TYPE")]
    pub kv_dtype: KvType,
    /// Type in which activations are multiplied with weights: f32 is exact, bf16 is faster for prompts (and rounds them, as PyTorch does)
    #[arg(long, value_enum, default_value = "f32", value_name = "TYPE")]
    pub compute: ComputeType,
    /// How places are chosen.
    #[command(flatten)]
    pub places: PlaceArgs,
}

/// How places are chosen.
#[derive(ClapArgs, Debug)]
#[command(next_help_heading = "Choosing places for weights")]
pub struct PlaceArgs {
    /// auto: the fastest placement as predicted; the others are Accelerate's
    #[arg(long, value_enum, default_value = "auto", value_name = "RULE")]
    pub strategy: StrategyArg,
    /// File with a place for each module, JSON or YAML, as Accelerate's hf_device_map: {"lm_head": "disk", "": "cpu"}
    #[arg(long, value_name = "FILE", conflicts_with = "strategy")]
    pub device_map: Option<PathBuf>,
    /// Fail rather than stream weights from disk
    #[arg(long)]
    pub must_fit: bool,
    /// Memory to leave free of the budget of each device: 100MB
    #[arg(long, value_name = "SIZE")]
    pub reserve: Option<String>,
}

/// How places are chosen.
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

/// Types in which activations are multiplied.
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

/// What to do when the context is full.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFullArg {
    /// End the text; a prompt that does not fit is an error
    Refuse,
    /// Forget the oldest tokens and go on
    Slide,
}

/// `outsize run`.
#[derive(ClapArgs, Debug)]
#[command(group = ArgGroup::new("input").required(true))]
pub struct RunArgs {
    /// Model and budget.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text to go on from
    #[arg(long, group = "input", value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Token ids instead of text: 1,2,3
    #[arg(long, group = "input", value_name = "IDS")]
    pub ids: Option<String>,
    /// Put no special tokens around the prompt, such as the one that begins a text
    #[arg(long)]
    pub no_special_tokens: bool,
    /// Show special tokens in the text
    #[arg(long)]
    pub show_special_tokens: bool,
    /// File to take defaults from, or none [default: generation_config.json beside the model]
    #[arg(long, value_name = "FILE")]
    pub generation_config: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// For `outsize bench`: afterwards run the prompt N times more, each from an empty context, and time it; the disk's speed
    /// is not measured
    #[arg(long, value_name = "N", hide = true, requires = "json")]
    pub prompt_again: Option<u32>,
    /// How tokens are chosen.
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// When the text ends.
    #[command(flatten)]
    pub end: EndArgs,
}

/// How tokens are chosen. What is not given is as generation_config.json says.
#[derive(ClapArgs, Debug)]
#[command(next_help_heading = "Choosing tokens (defaults from generation_config.json, if any)")]
pub struct ChoiceArgs {
    /// 0 takes the likeliest token each time; higher is more varied [else: 0]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Choose among the K likeliest tokens only; 0 for all [else: all]
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that together have this probability [else: 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Choose among tokens at least this share as likely as the likeliest [else: 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Above 1, make tokens of the text so far less likely [else: 1]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// The same seed gives the same text
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    pub seed: u64,
}

/// When the text ends. What is not given is as generation_config.json says.
#[derive(ClapArgs, Debug)]
#[command(next_help_heading = "Ending the text (defaults from generation_config.json, if any)")]
pub struct EndArgs {
    /// The most tokens to generate [else: 64]
    #[arg(long, value_name = "N")]
    pub max_new_tokens: Option<usize>,
    /// Text that ends the text, and is cut off; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Tokens that end the text, by id or spelling: 2,32000 or none [else: as config.json says]
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    pub eos: Option<String>,
    /// The same as --eos none
    #[arg(long, conflicts_with = "eos")]
    pub ignore_eos: bool,
    /// What to do when the context is full
    #[arg(long, value_enum, default_value = "refuse", value_name = "RULE")]
    pub when_full: WhenFullArg,
}

/// `outsize logits`.
#[derive(ClapArgs, Debug)]
pub struct LogitsArgs {
    /// Model and budget.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Token ids: 1,2,3
    #[arg(long, value_name = "IDS")]
    pub ids: String,
    /// File to write: one tensor `logits` [1, tokens, vocabulary] of 32-bit floats
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
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

/// `outsize estimate`.
#[derive(ClapArgs, Debug)]
pub struct EstimateArgs {
    /// A checkpoint's folder or file, a config.json, a preset, or a model on the Hub: org/name or org/name@revision, of which only headers are
    /// fetched
    pub model: String,
    /// Types to keep the weights in, one row each
    #[arg(
        long,
        value_enum,
        num_args = 1..,
        value_delimiter = ',',
        value_name = "TYPE",
        default_values = ["stored", "f32", "bf16", "int8", "int4"]
    )]
    pub dtypes: Vec<EstimateDtype>,
    /// Tokens that each text may have [default: 4096, or what the model was made for if that is less]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Texts at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Type in which the keys and values of past tokens are kept
    #[arg(long, value_enum, default_value = "f32", value_name = "TYPE")]
    pub kv_dtype: KvType,
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
}

/// `outsize synth`.
#[derive(ClapArgs, Debug)]
pub struct SynthArgs {
    /// A preset (llama-demo, qwen2-0.5b, llama-1b, llama-7b, mistral-7b), a config.json, or a folder that
    /// holds one
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

/// `outsize demo`.
#[derive(ClapArgs, Debug)]
pub struct DemoArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `outsize env`.
#[derive(ClapArgs, Debug)]
pub struct EnvArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `outsize bench`.
#[derive(ClapArgs, Debug)]
pub struct BenchArgs {
    /// A model: its own files are read to measure the disk, and it is run; or a folder, where a file is made and removed to
    /// measure the disk [default: the cache folder]
    #[arg(value_name = "MODEL_OR_FOLDER")]
    pub place: Option<PathBuf>,
    /// Measure disk, memory and processors in less than 20 seconds, and keep the figures for predictions; no model is run
    #[arg(long, conflicts_with_all = ["max_memory", "prompt_tokens", "new_tokens", "rounds", "context", "compute"])]
    pub calibrate: bool,
    /// Budget to run the model in, as `outsize run` takes it; may be given several times [default: all that is free if the
    /// model fits, then 50 % and 10 % of its weights]
    #[arg(long, value_name = "DEVICE=SIZE")]
    pub max_memory: Vec<String>,
    /// Tokens of the prompt
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N", default_value_t = 128)]
    pub prompt_tokens: u32,
    /// Tokens to generate in each run, the first of which is the prompt's
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..), value_name = "N", default_value_t = 17)]
    pub new_tokens: u32,
    /// Runs with each budget, in turns
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N", default_value_t = 3)]
    pub rounds: u32,
    /// Tokens that prompt and answer together may have [default: what a run needs]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Type in which activations are multiplied with weights
    #[arg(long, value_enum, default_value = "f32", value_name = "TYPE")]
    pub compute: ComputeType,
    /// The most memory to take at once for measuring the machine, and the most to write to disk; less is less exact
    #[arg(long, default_value = "3GB", value_name = "SIZE")]
    pub size: String,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
