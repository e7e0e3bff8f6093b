//! The `outsize` command: arguments in, one call of the libraries, text or JSON out.
#![forbid(unsafe_code)]

mod args;
mod cache;
mod chat_input;
mod child;
mod commands;
mod description;
mod embedding;
mod error;
mod generation;
mod hub;
mod images;
mod interrupt;
mod map_file;
mod model;
mod prompts;
mod request;
mod session;
mod views;

use args::Args;
use clap::Parser;
use error::Failure;
use std::process::ExitCode;
use views::output::say;

fn main() -> ExitCode {
    let began = std::time::Instant::now();
    // The budget counts the whole process: what the allocator would keep is not free.
    outsize::stream::return_freed_memory();
    outsize::stream::fail_at_file_size_limit();
    quiet_caught_panics();
    let run = |args: Args| interrupt::watch().and_then(|()| commands::run(args.command, began));
    let done = arguments().and_then(run);
    let (message, status) = match done {
        Ok(()) | Err(Failure::Closed) => return ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => (message, 2),
        Err(Failure::Status(status)) => return ExitCode::from(status),
        Err(Failure::Interrupted) => ("interrupted".to_string(), interrupt::STATUS),
        Err(Failure::Failed(message)) => (message, 1),
    };
    say(format!("error: {message}"));
    ExitCode::from(status)
}

/// The arguments. A call for help and errors in them end the process.
fn arguments() -> Result<Args, Failure> {
    Args::try_parse().or_else(|error| match error.print() {
        Err(cause) if !error.use_stderr() => Err(Failure::writing("the help", cause)),
        _ => std::process::exit(error.exit_code()),
    })
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
