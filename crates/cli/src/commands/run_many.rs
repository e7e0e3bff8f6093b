//! `outsize run --prompts`: many prompts side by side, results to a file.

use crate::args::RunArgs;
use crate::error::Failure;
use crate::prompts::{LinesOf, PromptLine, PromptLines, PromptResult, ResultLine, ResultsFile};
use crate::request::{TextRules, encoded, without_prompts};
use crate::views::memory::MemoryHeld;
use crate::views::output::{is_same_file, print_json, refuse_to_overwrite, say, say_wrapped};
use crate::views::progress;
use crate::views::run::say_planned;
use crate::{cache, interrupt, model};
use outsize::generate::{Request, generate_many};
use outsize::machine::Machine;
use outsize::models::WhenFull;
use outsize::plan::{DeviceMap, format_size};
use serde::Serialize;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Prompts that run side by side if nothing is said.
const BATCH: usize = 8;

/// The result of `outsize run --prompts --json`. All times in seconds, all sizes in bytes.
#[derive(Serialize, Debug)]
struct ManyOutput {
    /// Prompts of the file.
    prompts: usize,
    /// Of these, those whose results were there already.
    skipped: usize,
    /// Results written.
    results: usize,
    /// Of these, those that say why there is no text.
    failed: usize,
    /// Prompts that run side by side.
    batch: usize,
    /// Tokens that each has room for.
    context: usize,
    /// Tokens of prompts that were run.
    prompt_tokens: u64,
    /// Tokens that were generated.
    tokens: u64,
    /// From the first pass to the last, loading included.
    seconds: f64,
    /// Generated tokens per second of that.
    tokens_per_second: f64,
    /// Read from the checkpoint.
    bytes_read: u64,
    #[serde(flatten)]
    memory: MemoryHeld,
    /// Where everything lived.
    placement: DeviceMap,
}

/// A prompt that was given out and has no result.
struct GivenPrompt {
    index: usize,
    id: Option<Value>,
    prompt_tokens: usize,
}

/// What all prompts that are still to be run need.
#[derive(Default)]
struct Needs {
    prompts: usize,
    skipped: usize,
    /// Tokens of the longest prompt.
    longest: usize,
    /// Tokens of the longest prompt and its answer together.
    context: usize,
}

/// Runs the command.
pub fn run(args: &RunArgs, prompts: &Path, output: &Path) -> Result<(), Failure> {
    if args.text.end.when_full != WhenFull::Refuse {
        return Err(Failure::usage(
            "--when-full: a context slides for one prompt alone, without --prompts",
        ));
    }
    if args.drafts.prompt_lookup || args.drafts.draft_model.is_some() {
        return Err(Failure::usage(
            "--prompt-lookup and --draft-model: tokens are guessed for one prompt alone, without --prompts",
        ));
    }
    refuse_to_overwrite(&args.model.model, output)?;
    if is_same_file(prompts, output) {
        return Err(Failure::usage("--output: it is the file of the prompts"));
    }
    let batch = args.batch.unwrap_or(BATCH);
    let machine = Machine::detect();
    let config = model::config(&args.model)?;
    let folder = args.model.folder();
    let opened = model::opened(&args.model, config)?;
    let mut settings = model::settings(&args.model, opened.config(), [1, 1], &machine)?;
    let cache = &mut settings.workload.cache;
    (cache.batch, cache.when_full) = (batch, WhenFull::Replace);
    let tokenizer = opened.load_tokenizer(folder, &mut settings).map_err(without_prompts)?;
    let config = opened.config().clone();
    let rules = TextRules::new(&args.text, folder, &config, tokenizer.as_ref())?;
    let request = |line: &PromptLine| -> Result<Request, Failure> {
        let ids = match (&line.prompt, &line.ids) {
            (Some(prompt), _) => {
                let found = tokenizer.as_ref();
                let found = found.map_err(|missing| Failure::Failed(missing.to_string()))?;
                encoded(prompt, args, found, &config)?
            }
            (None, ids) => {
                let ids = ids.clone().unwrap_or_default();
                ids.into_iter().map(|id| model::id("ids", id, &config)).collect::<Result<_, _>>()?
            }
        };
        rules.request(ids, line.max_new_tokens, &config)
    };
    let mut results = ResultsFile::open(output)?;
    let needs = needs(prompts, &results, |line| {
        let request = request(line)?;
        let begins = config.context_of_prompt(request.ids.len());
        Ok([request.ids.len(), begins.saturating_add(request.max_new_tokens)])
    })?;
    let left = needs.prompts - needs.skipped;
    if left == 0 {
        say(format!("{} has the results of all {} prompts", output.display(), needs.prompts));
        return results.check_all();
    }
    let longest = config.cache().longest_context;
    let context = args.model.context.unwrap_or(needs.context.clamp(1, longest));
    let workload = &mut settings.workload;
    workload.cache.context = context;
    workload.cache.batch = batch.min(left);
    workload.prompt = match config.decoder_start() {
        Some(_) => needs.longest.max(1),
        None => needs.longest.clamp(1, context),
    };
    workload.position = context.div_ceil(2);
    let batch = workload.cache.batch;
    let (profile, figures) = cache::figures(&machine, folder);
    settings.planning.figures = profile;
    let mut pipeline = opened.dispatch(&settings, |_| {})?;
    let placement = pipeline.device_map().clone();
    if !args.json {
        say_planned(&placement, pipeline.prediction(), &figures);
    }
    let watched = pipeline.watch();
    let bar = progress::count(left as u64, "prompts");
    bar.tick();

    let given: RefCell<HashMap<usize, GivenPrompt>> = RefCell::default();
    let failure = RefCell::new(None);
    let fail = |error| {
        *failure.borrow_mut() = Some(error);
        None
    };
    let mut lines = PromptLines::open(LinesOf::Prompts, prompts)?;
    let done: Vec<bool> = (0..needs.prompts).map(|index| results.has(index)).collect();
    let mut count = 0;
    let requests = std::iter::from_fn(|| {
        loop {
            let (index, line) = match lines.next()? {
                Ok((index, _)) if done.get(index) != Some(&false) => continue,
                Ok(line) => line,
                Err(error) => return fail(error),
            };
            let request = match request(&line) {
                Ok(request) => request,
                Err(error) => return fail(error),
            };
            let prompt_tokens = request.ids.len();
            let prompt = GivenPrompt { index, id: line.id, prompt_tokens };
            given.borrow_mut().insert(count, prompt);
            count += 1;
            return Some((request, rules.text.clone()));
        }
    });
    let (mut written, mut failed, mut prompt_tokens, mut tokens) = (0, 0, 0, 0);
    let began = Instant::now();
    let known = tokenizer.as_ref().ok();
    let all = generate_many(&mut pipeline, known, batch, requests, |number, outcome| {
        let Some(GivenPrompt { index, id, prompt_tokens: prompt }) =
            given.borrow_mut().remove(&number)
        else {
            return ControlFlow::Continue(());
        };
        let result = match &outcome {
            Ok(outcome) => {
                prompt_tokens += prompt as u64;
                tokens += outcome.outcome.tokens.len() as u64;
                PromptResult::of(prompt, outcome)
            }
            Err(error) => {
                failed += 1;
                PromptResult::Failed { error: error.to_string() }
            }
        };
        written += 1;
        bar.inc(1);
        match results.append(&ResultLine { index, id: id.as_ref(), result }) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                *failure.borrow_mut() = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    bar.finish_and_clear();
    let all = all?;
    if let Some(failure) = failure.take() {
        return Err(failure);
    }
    let seconds = began.elapsed().as_secs_f64();
    let report = ManyOutput {
        prompts: needs.prompts,
        skipped: needs.skipped,
        results: written,
        failed,
        batch,
        context,
        prompt_tokens,
        tokens,
        seconds,
        tokens_per_second: tokens as f64 / seconds.max(1e-9),
        bytes_read: watched().bytes_read,
        memory: MemoryHeld::now(&placement),
        placement,
    };
    drop(pipeline);
    match args.json {
        true => print_json(&report)?,
        false => say_wrapped(&summary(&report)),
    }
    if !all {
        interrupt::check()?;
    }
    results.check_all()
}

/// Reads all prompts once, to know what they need; so a broken line is found before any work is
/// done.
fn needs(
    prompts: &Path,
    results: &ResultsFile,
    tokens: impl Fn(&PromptLine) -> Result<[usize; 2], Failure>,
) -> Result<Needs, Failure> {
    let mut needs = Needs::default();
    for line in PromptLines::open(LinesOf::Prompts, prompts)? {
        let (index, line) = line?;
        interrupt::check()?;
        needs.prompts += 1;
        if results.has(index) {
            results.check(index, &line)?;
            needs.skipped += 1;
            continue;
        }
        let [prompt, whole] = tokens(&line)
            .map_err(|failure| failure.at(format!("{}, prompt {index}", prompts.display())))?;
        needs.longest = needs.longest.max(prompt);
        needs.context = needs.context.max(whole);
    }
    match needs.prompts {
        0 => Err(Failure::usage(format!("{} has no prompts", prompts.display()))),
        _ => Ok(needs),
    }
}

fn summary(report: &ManyOutput) -> String {
    format!(
        "{} of {} prompts done · {} tokens in {:.1} s: {:.2} tokens/s, {} side by side · read {}{}",
        report.skipped + report.results,
        report.prompts,
        report.tokens,
        report.seconds,
        report.tokens_per_second,
        report.batch,
        format_size(report.bytes_read),
        report.memory,
    )
}
