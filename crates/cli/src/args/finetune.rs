//! `outsize finetune`.

use super::values::{ACTIVATION_DTYPES, Named, one_of, some};
use clap::Args;
use outsize::finetune::LearningRateSchedule;
use outsize::models::ActivationDtype;
use outsize::plan::Budget;
use std::path::PathBuf;

/// Schedules of the learning rate.
const SCHEDULES: &Named<LearningRateSchedule> = &[
    ("linear", "Down to zero in a line", LearningRateSchedule::Linear),
    ("cosine", "Down to zero along half a cosine", LearningRateSchedule::Cosine),
    ("constant", "It stays", LearningRateSchedule::Constant),
];

/// `outsize finetune`.
#[derive(Args, Debug)]
pub struct FinetuneArgs {
    /// The model, whose folder stays as it is: as for `run`
    pub model: PathBuf,
    /// Examples: JSON, one object a line, {"text": ".."}, {"prompt": "..", "completion": ".."} or
    /// {"messages": [{"role": "..", "content": ".."}]}; of the latter two what is answered is
    /// learned
    pub data: PathBuf,
    /// The folder to make: an adapter as PEFT saves one, which `run --adapter` takes; with --full a
    /// checkpoint
    #[arg(short, long, value_name = "FOLDER")]
    pub output: PathBuf,
    /// Let all weights learn instead of an adapter. Until the checkpoint is written, weights,
    /// moments of AdamW and gradients are in FOLDER.states: with the checkpoint some 20 bytes of
    /// disk for each value
    #[arg(long, conflicts_with_all = ["rank", "alpha", "target_modules", "adapter"])]
    pub full: bool,
    /// Other examples, of which nothing is learned: their loss is said before and after
    #[arg(long, value_name = "FILE")]
    pub eval: Option<PathBuf>,
    /// The most memory to hold, the process itself included: `cpu=2GB` [default: nine tenths of
    /// what is available]
    #[arg(long, value_name = "DEVICE=SIZE", value_parser = Budget::parse)]
    pub max_memory: Option<Budget>,
    /// Tokens of an example; longer ones are cut [default: 512, or as many as the model can have]
    #[arg(long, value_name = "N", value_parser = some())]
    pub context: Option<usize>,
    /// Examples of one pass over the weights
    #[arg(long, value_name = "N", value_parser = some(), default_value = "1")]
    pub batch: usize,
    /// Such passes of one step, whose gradients are added up
    #[arg(long, value_name = "N", value_parser = some(), default_value = "8")]
    pub accumulate: usize,
    /// Dtype of activations in matmuls: f32 is exact; bf16 rounds them, as PyTorch does
    #[arg(long, value_parser = one_of(ACTIVATION_DTYPES), default_value = "f32", value_name = "TYPE")]
    pub compute: ActivationDtype,
    /// Print one JSON object at the end, and no line for each step
    #[arg(long)]
    pub json: bool,
    /// What the adapter is.
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// How it learns.
    #[command(flatten)]
    pub learning: LearningArgs,
}

/// What the adapter is.
#[derive(Args, Debug)]
#[command(next_help_heading = "The adapter")]
pub struct AdapterArgs {
    /// Rank of the matrices
    #[arg(long, value_name = "N", value_parser = some(), default_value = "16")]
    pub rank: usize,
    /// What the adapter is multiplied by, times the rank [default: twice the rank]
    #[arg(long, value_name = "X")]
    pub alpha: Option<f64>,
    /// Layers that get one, by the ends of their names: q_proj,v_proj; or all-linear
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all-linear")]
    pub target_modules: Vec<String>,
    /// An adapter to go on with, which says its rank and layers itself
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["rank", "alpha", "target_modules"])]
    pub adapter: Option<PathBuf>,
}

/// How an adapter learns.
#[derive(Args, Debug)]
#[command(next_help_heading = "Learning")]
pub struct LearningArgs {
    /// How often all examples are learned from
    #[arg(long, value_name = "N", value_parser = some(), default_value = "1")]
    pub epochs: usize,
    /// The most steps
    #[arg(long, value_name = "N", value_parser = some())]
    pub max_steps: Option<usize>,
    /// The highest learning rate [default: 2e-4, with --full 1e-5]
    #[arg(long, value_name = "X")]
    pub learning_rate: Option<f64>,
    /// How the learning rate changes
    #[arg(long, value_parser = one_of(SCHEDULES), default_value = "linear", value_name = "RULE")]
    pub schedule: LearningRateSchedule,
    /// Steps in which the learning rate rises
    #[arg(long, value_name = "N", default_value = "0")]
    pub warmup_steps: usize,
    /// Weight decay of AdamW
    #[arg(long, value_name = "X", default_value = "0")]
    pub weight_decay: f32,
    /// The greatest norm of the gradients of a step; 0 for any
    #[arg(long, value_name = "X", default_value = "1")]
    pub max_grad_norm: f64,
    /// Draws an adapter's first values and the order of the examples
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
}
