//! `outsize demo`: the five steps, shown as they happen, on a model that does not fit.

use super::synth;
use crate::args::{DemoArgs, SynthDtype};
use crate::error::Failure;
use crate::generation::{self, Opened};
use crate::request::GenerateRequest;
use crate::views::output;
use crate::{cache, interrupt};
use outsize::generate::{
    GenerationWorkload, Pipeline, PipelineSettings, Request, Sampling, Step, TextOptions,
    Tokenizer, read_config,
};
use outsize::models::{CacheOptions, presets};
use outsize::plan::{Budget, Tier, format_size};
use std::time::Instant;

const PRESET: &str = "llama-demo";
const PROMPT: &str = "Once upon a time";
const NEW_TOKENS: usize = 24;

/// Size of a file of the demo's checkpoint, in bytes: several, as large models come.
const SHARD: u64 = 200_000_000;

/// Runs the command; `began` is when the process did.
pub fn demo(args: &DemoArgs, began: Instant) -> Result<(), Failure> {
    let folder = cache::folder()?.join(PRESET);
    let say = |text: &str| {
        if !args.json {
            println!("{text}");
        }
    };
    if !folder.is_dir() {
        say(&format!("Making a model of random weights in {}, once.", folder.display()));
        synth::make(presets::config(PRESET)?, &folder, SynthDtype::Bf16, 0, SHARD)?;
    }
    let config = read_config(&folder)?;
    let tokenizer = Tokenizer::open(&folder)?;
    let ids = tokenizer.encode(PROMPT, true)?;
    let weights = config.parameter_count() * 2;
    let budget = weights / 4;
    say(&format!(
        "The model has {} of weights. This process may take {} in all.\n",
        format_size(weights),
        format_size(budget)
    ));
    let mut max_memory = Budget::default();
    max_memory.set(Tier::Cpu, budget);
    let settings = PipelineSettings {
        max_memory,
        // The tokenizer is part of the process by now.
        workload: GenerationWorkload::new(CacheOptions::new(ids.len() + NEW_TOKENS), ids.len()),
        planning: Default::default(),
        stop: Some(interrupt::flag()),
    };
    let loading = Instant::now();
    let pipeline = Pipeline::open(&folder, config, &settings, |step| say(&line(&step)))?;
    let opened = Opened { began, load: loading.elapsed() };
    let asked = GenerateRequest {
        request: Request {
            ids,
            max_new_tokens: NEW_TOKENS,
            // Random weights generate it by chance.
            eos: Vec::new(),
            sampling: Sampling::default(),
        },
        text: TextOptions::default(),
        tokenizer: Some(tokenizer),
        prompt_again: None,
    };
    let show = |part: &str| match args.json {
        true => Ok(()),
        false => output::print(part),
    };
    show(&format!("5 run         {PROMPT}"))?;
    let report = generation::run(pipeline, &asked, opened, show)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        match report.peak_rss_bytes {
            Some(peak) => println!("\n              memory: {} at its peak", format_size(peak)),
            None => println!(),
        }
        println!("(The weights are random, and so are the words.)\n");
        println!("{}", report.summary());
        if let Some(peak) = report.peak_rss_bytes {
            println!("{} of weights ran in {} of memory.", format_size(weights), format_size(peak));
        }
    }
    interrupt::check()
}

/// What a step did, and the memory after it.
fn line(step: &Step<'_>) -> String {
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
    format!("{text}\n{}", memory())
}

fn memory() -> String {
    match outsize::machine::current_rss() {
        Some(bytes) => format!("              memory: {}", format_size(bytes)),
        None => String::new(),
    }
}
