//! `outsize demo`: the five steps, shown as they happen, on a model that does not fit.

use super::synth;
use crate::args::{Args, BF16, Command, JsonArgs};
use crate::error::Failure;
use crate::views::output;
use crate::{cache, generation, interrupt};
use clap::Parser;
use outsize::generate::{Step, read_config};
use outsize::models::presets;
use outsize::plan::format_size;
use std::ffi::OsStr;
use std::time::Instant;

const PRESET: &str = "llama-demo";
const PROMPT: &str = "Once upon a time";
const NEW_TOKENS: usize = 24;

/// Size of a file of the demo's checkpoint, in bytes: several, as large models come.
const SHARD: u64 = 200_000_000;

/// Runs the command; `began` is when the process did.
pub fn demo(args: &JsonArgs, began: Instant) -> Result<(), Failure> {
    let folder = cache::folder()?.join(PRESET);
    let show = |text: &str| match args.json {
        true => Ok(()),
        false => output::print(&format!("{text}\n")),
    };
    // Of several first demos, one makes the model, and the others wait for it.
    let lock = match folder.is_dir() {
        true => None,
        false => cache::lock(&cache::made_folder()?)?,
    };
    if !folder.is_dir() {
        show(&format!("Making a model of random weights in {}, once.", folder.display()))?;
        synth::make(presets::config(PRESET)?, &folder, BF16, 0, SHARD)?;
    }
    drop(lock);
    let weights = read_config(&folder)?.parameter_count() * 2;
    let budget = weights / 4;
    show(&format!(
        "The model has {} of weights. This process may take {} in all.\n",
        format_size(weights),
        format_size(budget)
    ))?;
    let limit = format!("cpu={budget}");
    let tokens = NEW_TOKENS.to_string();
    // Random weights generate a token that ends a text by chance.
    let line = ["outsize", "run", "--prompt", PROMPT, "--max-new-tokens", &tokens, "--ignore-eos"]
        .into_iter()
        .chain(["--generation-config", "none", "--max-memory", &limit, "--"])
        .map(OsStr::new)
        .chain([folder.as_os_str()]);
    let Command::Run(run) = Args::parse_from(line).command else {
        return Err(Failure::usage("`run` runs a model"));
    };
    let opening = |step: &Step<'_>, _: &_| show(&opened(step));
    let mut first = true;
    let report = generation::run(&run, began, opening, |part| match args.json {
        true => Ok(()),
        false if std::mem::take(&mut first) => {
            output::print(&format!("5 run         {PROMPT}{part}"))
        }
        false => output::print(part),
    })?;
    if args.json {
        output::print_json(&report)?;
    } else {
        let peak = report.peak_rss_bytes.map(format_size);
        match &peak {
            Some(peak) => show(&format!("\n              memory: {peak} at its peak"))?,
            None => show("")?,
        }
        show("(The weights are random, and so are the words.)\n")?;
        show(&report.summary())?;
        if let Some(peak) = peak {
            show(&format!("{} of weights ran in {peak} of memory.", format_size(weights)))?;
        }
    }
    interrupt::check()
}

/// What a step did, and the memory after it.
fn opened(step: &Step<'_>) -> String {
    let text = match step {
        Step::Empty { parameters } => format!(
            "1 empty model {:.0} million parameters with shapes and no storage",
            *parameters as f64 / 1e6
        ),
        Step::Opened { checkpoint } => format!(
            "2 open        {} tensors in {} files, headers only",
            checkpoint.tensors().len(),
            checkpoint.files().len()
        ),
        Step::Planned { map, .. } => format!("3 plan        {}", output::picture(map)),
        Step::Dispatched => {
            "4 dispatch    a handle on every parameter; reading has begun".to_string()
        }
    };
    let memory = outsize::machine::current_rss().map(format_size);
    let memory = memory.map(|size| format!("              memory: {size}"));
    format!("{text}\n{}", memory.unwrap_or_default())
}
