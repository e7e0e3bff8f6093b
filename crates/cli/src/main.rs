//! The `outsize` command: arguments in, one call of the libraries, text or JSON out.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod cache;
mod demo;
mod env;
mod error;
mod estimate;
mod generation;
mod hub;
mod interrupt;
mod logits;
mod map_file;
mod model;
mod plan;
mod progress;
mod report;
mod request;
mod run;
mod synth;
mod table;
mod views;

use args::{Args, Command};
use clap::Parser;
use error::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let began = std::time::Instant::now();
    // The budget counts the whole process: what the allocator would keep is not free.
    outsize::stream::return_freed_memory();
    quiet_caught_panics();
    let args = Args::parse();
    let done = interrupt::watch().and_then(|()| match args.command {
        Command::Run(args) => run::run(&args, began),
        Command::Plan(args) => plan::plan(&args),
        Command::Logits(args) => logits::logits(&args),
        Command::Synth(args) => synth::synth(&args),
        Command::Estimate(args) => estimate::estimate(&args),
        Command::Demo(args) => demo::demo(&args, began),
        Command::Env(args) => env::env(&args),
        Command::Bench(args) => bench::bench(&args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
        Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(Failure::Failed(message)) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Keeps panics of other people's code that become errors from being written beside the error.
fn quiet_caught_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !outsize::generate::panic_is_caught() {
            report(panic);
        }
    }));
}
