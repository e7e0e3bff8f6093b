//! `outsize run`: a prompt in, text out, under a budget.

use super::run_many;
use crate::args::RunArgs;
use crate::error::Failure;
use crate::views::output::{print, print_json, say_wrapped};
use crate::views::run::say_planned;
use crate::{generation, interrupt};
use outsize::generate::{Finish, Step};
use std::io::IsTerminal;
use std::time::Instant;

/// Runs the command; `began` is when the process did.
pub fn run(args: &RunArgs, began: Instant) -> Result<(), Failure> {
    if let (Some(prompts), Some(output)) = (&args.prompts, &args.output) {
        return run_many::run(args, prompts, output);
    }
    // In clap, an argument does not require one that another of its group excludes.
    let of_many = [("--output", args.output.is_some()), ("--batch", args.batch.is_some())];
    if let Some((flag, _)) = of_many.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!("{flag}: for many prompts: give them with --prompts")));
    }
    let opening = |step: &Step<'_>, figures: &_| {
        if let (Step::Planned { map, prediction }, false) = (step, args.json) {
            say_planned(map, prediction, figures);
        }
        Ok(())
    };
    let mut first = true;
    let report = generation::run(args, began, opening, |part| {
        let first = std::mem::take(&mut first);
        match &args.prompt {
            _ if args.json => Ok(()),
            // On a terminal the prompt comes first, so that the text reads on from it.
            Some(prompt) if first && std::io::stdout().is_terminal() => {
                print(&format!("{prompt}{part}"))
            }
            _ => print(part),
        }
    })?;
    if args.json {
        print_json(&report)?;
    } else {
        if !report.tokens.is_empty() {
            print("\n")?;
        }
        if report.finish == Finish::Context {
            let slide = if report.can_slide { ", or --when-full slide" } else { "" };
            say_wrapped(&format!(
                "note: the context of {} tokens is full: give more with --context{slide}",
                report.context
            ));
        }
        report.summary().lines().for_each(say_wrapped);
    }
    interrupt::check()
}
