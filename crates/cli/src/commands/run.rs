//! `outsize run`: a prompt in, text out, under a budget.

use crate::args::{RunArgs, WhenFullArg};
use crate::error::Failure;
use crate::generation::{self, Opened};
use crate::request::GenerateRequest;
use crate::views::output::{picture, print};
use crate::views::progress::{Following, bytes, count};
use crate::views::run::seconds;
use crate::{cache, interrupt, model};
use outsize::generate::{GenerationWorkload, OpenedModel, Step, TokenizerFile};
use outsize::machine::{Machine, Provenance};
use outsize::models::WhenFull;
use outsize::plan::Prediction;
use std::io::IsTerminal;
use std::time::Instant;

/// Bytes of a tokenizer.json that the account of the process itself has room for.
const SMALL_TOKENIZER: u64 = 16 << 20;

/// Runs the command; `began` is when the process did.
pub fn run(args: &RunArgs, began: Instant) -> Result<(), Failure> {
    // Detecting the machine takes as long as reading a tokenizer.
    let machine = std::thread::Builder::new().spawn(Machine::detect).ok();
    let config = model::config(&args.model)?;
    let folder = args.model.folder();
    let opening = Instant::now();
    let opened = OpenedModel::new(&args.model.model, config)?;
    let opening = opening.elapsed();
    let machine = machine.and_then(|thread| thread.join().ok()).unwrap_or_else(Machine::detect);
    let mut settings = model::settings(&args.model, least_workload(args, &opened), &machine)?;
    settings.workload.cache.when_full = match args.end.when_full {
        WhenFullArg::Refuse => WhenFull::Refuse,
        WhenFullArg::Slide => WhenFull::Slide,
    };
    // A tokenizer may take more than the budget: what is refused is refused before it is loaded, and a large one before it is
    // read.
    let length = TokenizerFile::length(folder);
    if length > SMALL_TOKENIZER {
        settings.workload.tokenizer = length;
        opened.check(&settings)?;
    }
    let tokenizer = TokenizerFile::read(folder);
    settings.workload.tokenizer = tokenizer.as_ref().map_or(0, TokenizerFile::memory);
    opened.check(&settings)?;
    let asked = GenerateRequest::new(args, opened.config(), tokenizer)?;
    let prompt = asked.request.ids.len();
    let workload = &mut settings.workload;
    let needed = prompt.saturating_add(asked.request.max_new_tokens);
    let longest = opened.config().cache().longest_context;
    workload.cache.context = args.model.context.unwrap_or(needed.min(longest));
    workload.prompt = prompt.min(opened.config().cache().reach(&workload.cache));
    // A token in the middle of the answer, as far as there is room for one.
    workload.position = prompt.midpoint(needed.min(workload.cache.context.max(prompt)));
    let (figures, provenance) = cache::figures(&machine, folder);
    settings.planning.figures = figures;
    let loading = Instant::now();
    let pipeline = opened.dispatch(&settings, |step| {
        if let (Step::Planned { map, prediction }, false) = (step, args.json) {
            eprintln!("{}", picture(map));
            eprintln!("{}", predicted(prediction, &provenance));
        }
    })?;
    let opened = Opened { began, load: opening + loading.elapsed() };
    let to_run = pipeline.tokens_to_run(prompt);
    let held = pipeline.cache_options().context;
    if prompt > held && !args.json {
        eprintln!(
            "note: the prompt has {prompt} tokens and the context holds {held}: the last {to_run} are run, as the answer depends \
             on so many through all layers"
        );
    }
    let mut reading = Some(match to_run > pipeline.longest_pass() {
        true => Following::new(count(to_run as u64, "prompt"), pipeline.watch_tokens()),
        false => {
            let map = pipeline.device_map();
            let bar = bytes(map.resident_bytes() + map.streamed_bytes(), "reading");
            let watched = pipeline.watch();
            Following::new(bar, move || watched().bytes_read)
        }
    });
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
    report.figures = Some(provenance);
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

/// The least that the model is run for, as far as it is known without a tokenizer.
fn least_workload(args: &RunArgs, model: &OpenedModel) -> GenerationWorkload {
    let prompt = args.ids.as_ref().map_or(1, |ids| ids.split(',').count());
    let needed = prompt.saturating_add(args.end.max_new_tokens.unwrap_or(0));
    let context = needed.min(model.config().cache().longest_context);
    model::workload(&args.model, context, prompt)
}

/// One line on the predicted speed.
fn predicted(prediction: &Prediction, figures: &Provenance) -> String {
    format!(
        "predicted {} s per token, prompt {} s with loading ({figures})",
        seconds(prediction.decode.seconds),
        seconds(prediction.first_pass_seconds),
    )
}
