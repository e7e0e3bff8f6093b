//! The command's arguments, and what they mean to the libraries.

mod bench;
mod estimate;
mod generate;
mod model;
mod plan;
mod synth;
pub mod workload;

pub use bench::BenchArgs;
pub use estimate::{EstimateArgs, EstimateDtype};
pub use generate::{EndArgs, LogitsArgs, RunArgs, WhenFullArg};
pub use model::{ComputeType, KvType, ModelArgs, PlaceArgs, budget};
pub use plan::{DtypeArgs, PlanArgs, WorkloadArgs};
pub use synth::{SynthArgs, SynthDtype};

use clap::{Args as ClapArgs, Parser, Subcommand};

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
    Plan(PlanArgs),
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
