//! `outsize demo`: the five steps, shown as they happen, on a model that does not fit.

use super::synth;
use crate::args::{Args, BF16, Command, DemoArgs};
use crate::error::Failure;
use crate::views::output;
use crate::{cache, generation, interrupt};
use clap::Parser;
use outsize::checkpoint::OutputFolder;
use outsize::generate::{Step, read_config};
use outsize::models::presets;
use outsize::plan::format_size;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Instant;

/// A model, and how it is run.
struct Demo {
    /// Of its folder in the cache.
    name: &'static str,
    /// What is said while it is made.
    making: &'static str,
    make: fn(&Path) -> Result<(), Failure>,
    prompt: &'static str,
    /// Bytes that the process may take of so many bytes of weights.
    budget: fn(u64) -> u64,
    /// More options of `run`.
    options: &'static [&'static str],
    /// What is said of the words that came.
    words: &'static str,
}

const RANDOM: Demo = Demo {
    name: "llama-demo",
    making: "Making a model of random weights",
    // Several files, as large models come.
    make: |folder| {
        let shard = 200_000_000;
        synth::make(presets::config("llama-demo")?, folder, BF16, 0, shard).map(drop)
    },
    prompt: "Once upon a time",
    budget: |weights| weights / 4,
    // Random weights generate a token that ends a text by chance.
    options: &["--max-new-tokens", "24", "--ignore-eos", "--generation-config", "none"],
    words: "The weights are random, and so are the words.",
};

const TEXT: Demo = Demo {
    name: "llama-kjv",
    making: "Unpacking a model that was trained on the King James Bible",
    make: |folder| {
        let output = OutputFolder::prepare(folder)?;
        for (name, bytes) in FILES {
            let path = output.folder().join(name);
            std::fs::write(&path, bytes)
                .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
        }
        Ok(output.publish()?)
    },
    prompt: "And it came to pass",
    // So small a model stays in memory: a ring to stream it through would be larger.
    budget: |weights| weights + (50 << 20),
    options: &["--max-new-tokens", "96", "--temperature", "0.7", "--seed", "1"],
    words: "The model learned from one book; how is in its card.",
};

/// What `train_text` wrote, and its card.
const FILES: [(&str, &[u8]); 5] = [
    ("README.md", include_bytes!("../../demo/README.md")),
    ("config.json", include_bytes!("../../demo/config.json")),
    ("tokenizer_config.json", include_bytes!("../../demo/tokenizer_config.json")),
    ("tokenizer.json", include_bytes!("../../demo/tokenizer.json")),
    ("model.safetensors", include_bytes!("../../demo/model.safetensors")),
];

/// Runs the command; `began` is when the process did.
pub fn demo(args: &DemoArgs, began: Instant) -> Result<(), Failure> {
    let demo = if args.text { TEXT } else { RANDOM };
    let folder = cache::folder()?.join(demo.name);
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
        show(&format!("{} in {}, once.", demo.making, folder.display()))?;
        (demo.make)(&folder)?;
    }
    drop(lock);
    let weights = read_config(&folder)?.parameter_count() * 2;
    let budget = (demo.budget)(weights);
    show(&format!(
        "The model has {} of weights. This process may take {} in all.\n",
        format_size(weights),
        format_size(budget)
    ))?;
    let limit = format!("cpu={budget}");
    let line = ["outsize", "run", "--prompt", demo.prompt, "--max-memory", &limit]
        .into_iter()
        .chain(demo.options.iter().copied())
        .chain(["--"])
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
            output::print(&format!("5 run         {}{part}", demo.prompt))
        }
        false => output::print(part),
    })?;
    if args.json {
        output::print_json(&report)?;
    } else {
        let peak = report.memory.peak_rss_bytes.map(format_size);
        match &peak {
            Some(peak) => show(&format!("\n              memory: {peak} at its peak"))?,
            None => show("")?,
        }
        show(&format!("({})\n", demo.words))?;
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
