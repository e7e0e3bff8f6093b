//! `outsize run`: a prompt in, text out, under a budget.

use crate::args::{RunArgs, WhenFullArg};
use crate::error::Failure;
use crate::generation::{self, Opened};
use crate::request::GenerateRequest;
use crate::views::output::{picture, print};
use crate::views::progress::Following;
use crate::views::run::seconds;
use crate::{interrupt, model};
use outsize::generate::Step;
use outsize::machine::{Machine, Provenance};
use outsize::models::WhenFull;
use outsize::plan::Prediction;
use std::io::IsTerminal;
use std::time::Instant;

/// Runs the command; `began` is when the process did.
pub fn run(args: &RunArgs, began: Instant) -> Result<(), Failure> {
    // Detecting the machine takes as long as reading a tokenizer.
    let machine = std::thread::Builder::new().spawn(Machine::detect).ok();
    let config = model::config(&args.model)?;
    let asked = GenerateRequest::new(args, &config)?;
    let prompt = asked.request.ids.len();
    let trained = config.cache().trained_context;
    let begins = config.context_of_prompt(prompt);
    let context = begins.saturating_add(asked.request.max_new_tokens).min(trained);
    let mut workload = model::workload(&args.model, context, prompt);
    workload.position = begins.saturating_add(asked.request.max_new_tokens / 2);
    workload.tokenizer = asked.tokenizer_bytes;
    workload.cache.when_full = match args.end.when_full {
        WhenFullArg::Refuse => WhenFull::Refuse,
        WhenFullArg::Slide => WhenFull::Slide,
    };
    let machine = machine.and_then(|thread| thread.join().ok()).unwrap_or_else(Machine::detect);
    let (planning, figures) = model::planning(&args.model, &machine)?;
    let loading = Instant::now();
    let pipeline = model::open(&args.model, config, workload, planning, &machine, |step| {
        if let (Step::Planned { map, prediction }, false) = (step, args.json) {
            eprintln!("{}", picture(map));
            eprintln!("{}", predicted(prediction, &figures));
        }
    })?;
    let opened = Opened { began, load: loading.elapsed() };
    let mut reading = Some(Following::new(
        pipeline.device_map().resident_bytes() + pipeline.device_map().streamed_bytes(),
        "reading",
        {
            let watched = pipeline.watch();
            move || watched().bytes_read
        },
    ));
    let mut report = generation::run(pipeline, &asked, opened, |part| {
        let first = reading.take().is_some(); // clears the bar before the text begins
        match &args.prompt {
            _ if args.json => Ok(()),
            // On a terminal the prompt comes first, so that the text reads on from it.
            Some(prompt) if first && std::io::stdout().is_terminal() => {
                print(&format!("{prompt}{part}"))
            }
            _ => print(part),
        }
    })?;
    report.figures = Some(figures);
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        if !report.tokens.is_empty() {
            print("\n")?;
        }
        eprintln!("{}", report.summary());
    }
    interrupt::check()
}

/// One line on the predicted speed.
fn predicted(prediction: &Prediction, figures: &Provenance) -> String {
    format!(
        "predicted {} s per token, prompt {} s with loading ({figures})",
        seconds(prediction.decode.seconds),
        seconds(prediction.first_pass_seconds),
    )
}
