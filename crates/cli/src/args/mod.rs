//! The command's arguments, and what they mean to the libraries.

mod bench;
mod embed;
mod estimate;
mod fetch;
mod finetune;
mod generate;
mod image;
mod launch;
mod model;
mod perplexity;
mod plan;
mod quantize;
mod serve;
mod shard;
mod synth;
pub mod values;
pub mod workload;

pub use bench::BenchArgs;
pub use embed::EmbedArgs;
pub use estimate::EstimateArgs;
pub use fetch::FetchArgs;
pub use finetune::FinetuneArgs;
pub use generate::{
    ChatArgs, ChoiceArgs, DraftArgs, EndArgs, LogitsArgs, PromptImageArgs, RunArgs, SessionArgs,
    TextArgs,
};
pub use image::ImageArgs;
pub use launch::{ConfigAction, ConfigArgs, LaunchArgs, SettingArgs, TestArgs};
pub use model::{ModelArgs, PlaceArgs, RunDtypeArgs};
pub use perplexity::PerplexityArgs;
pub use plan::{DtypeArgs, PlanArgs, WorkloadArgs};
pub use quantize::QuantizeArgs;
pub use serve::ServeArgs;
pub use shard::{RewriteArgs, ShardArgs};
pub use synth::{BF16, SynthArgs, SynthBlocks, SynthDtype};

use clap::{Args as ClapArgs, Parser, Subcommand};
use std::path::PathBuf;

/// Run and train models bigger than memory, straight from their checkpoint.
#[derive(Parser, Debug)]
#[command(name = "outsize", version, max_term_width = 100, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
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
    /// Talk with a model under a memory budget
    Chat(ChatArgs),
    /// Answer programs that speak OpenAI's HTTP interface, under a memory budget
    Serve(ServeArgs),
    /// Make vectors of texts under a memory budget, to search and compare them
    Embed(EmbedArgs),
    /// Have a LoRA adapter learn from examples, under a memory budget
    Finetune(FinetuneArgs),
    /// Make a picture of a text under a memory budget
    Image(ImageArgs),
    /// Draw the device map under a memory budget and predict the speed
    Plan(PlanArgs),
    /// Print the memory that a model needs to run and to train, by the dtype of its weights
    Estimate(EstimateArgs),
    /// Download a model of the Hugging Face Hub to its cache, as `run` does by itself
    Fetch(FetchArgs),
    /// List the models in the Hub's cache, and which of them fit in memory
    List(JsonArgs),
    /// Write a checkpoint whose linear layers become integers of 4 or 8 bits
    Quantize(QuantizeArgs),
    /// Make a model of 500 MB once, and run it in a quarter of that
    Demo(DemoArgs),
    /// Show what this machine has, with the source of each figure
    Env(JsonArgs),
    /// Measure this machine's limits, and what share of them a model gets
    Bench(BenchArgs),
    /// Start a training program on one rank or many
    Launch(LaunchArgs),
    // Hidden, these, so that the list fits a screen of 24 lines; the documents name them.
    /// Ask how `launch` starts programs, and keep the answers
    #[command(hide = true)]
    Config(ConfigArgs),
    /// Try whether ranks exchange, share, train and save as they should
    #[command(hide = true)]
    Test(TestArgs),
    /// Write a checkpoint of any format as safetensors, in shards (`merge`: in one file)
    #[command(hide = true)]
    Shard(ShardArgs),
    /// Write a checkpoint of any format as safetensors, in one file
    #[command(hide = true)]
    Merge(RewriteArgs),
    /// Measure how well a model predicts a text, under a memory budget
    #[command(hide = true)]
    Perplexity(PerplexityArgs),
    /// Write the raw logits of some tokens as safetensors, to compare with other software
    #[command(hide = true)]
    Logits(LogitsArgs),
    /// Make a checkpoint with random weights, for tests and benchmarks
    #[command(hide = true)]
    Synth(SynthArgs),
    /// Print a shell's completions of this command
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Write this command's manual pages to a folder
    #[command(hide = true)]
    Man(ManArgs),
}

/// `outsize completions`.
#[derive(ClapArgs, Debug)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// `outsize man`.
#[derive(ClapArgs, Debug)]
pub struct ManArgs {
    /// The folder, made if it is not there
    pub folder: PathBuf,
}

/// `outsize demo`.
#[derive(ClapArgs, Debug)]
pub struct DemoArgs {
    /// Run a small model that was trained on a book, and writes sentences, instead of a large one
    /// of random weights
    #[arg(long)]
    pub text: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// `outsize env` and `outsize list`.
#[derive(ClapArgs, Debug)]
pub struct JsonArgs {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
