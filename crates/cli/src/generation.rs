//! One generation: shows the text as it comes and reports the run at the end.

use crate::args::RunArgs;
use crate::error::Failure;
use crate::images::PromptImages;
use crate::request::{GenerateRequest, without_prompts};
use crate::views::memory::MemoryHeld;
use crate::views::output::say;
use crate::views::progress::{Following, bytes, count};
use crate::views::run::RunOutput;
use crate::{cache, interrupt, model};
use outsize::bench::{RepeatedRun, median};
use outsize::generate::{
    Finish, Generation, LanguageModel, OpenedModel, Pipeline, Request, Step, TextOutcome,
    generate_text,
};
use outsize::machine::{Machine, Provenance};
use outsize::models::{CacheOptions, WhenFull};
use outsize::stream::Stats;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes that are read to find the disk's speed after a run.
const PROBE_BYTES: u64 = 512 << 20;

/// The most memory that these are read into: as with the ring, more than the processor's cache.
const PROBE_MEMORY: u64 = 64 << 20;

/// Generates what the arguments ask for; `began` is when the process did. `opening` is called at
/// every step of opening the model, `show` with the new text at every token; the text may be empty
/// while a character or a stop string is not complete.
pub fn run(
    args: &RunArgs,
    began: Instant,
    mut opening: impl FnMut(&Step<'_>, &Provenance) -> Result<(), Failure>,
    mut show: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<RunOutput, Failure> {
    // Detecting the machine takes as long as reading a tokenizer.
    let machine = std::thread::Builder::new().spawn(Machine::detect).ok();
    let config = model::config(&args.model)?;
    // Before the language model: the memory is theirs alone.
    let images = PromptImages::new(&args.images, &args.model, args.json)?;
    let (folder, opened_at) = (args.model.folder(), Instant::now());
    let mut model = model::opened(&args.model, config)?;
    let opened = opened_at.elapsed();
    let machine = machine.and_then(|thread| thread.join().ok()).unwrap_or_else(Machine::detect);
    let mut settings = model::settings(&args.model, model.config(), least(args, &model), &machine)?;
    settings.workload.cache.when_full = args.text.end.when_full;
    settings.workload.cache.batch = args.copies.unwrap_or(1);
    if let Some(images) = &images {
        settings.workload.images = images.bytes;
        settings.workload.least_pass = images.least_pass;
    }
    model::draft(&args.drafts, folder, &mut model, &mut settings)?;
    let tokenizer = model.load_tokenizer(folder, &mut settings);
    let tokenizer = match args.ids {
        Some(_) => tokenizer?,
        None => tokenizer.map_err(without_prompts)?,
    };
    let asked = GenerateRequest::new(args, model.config(), tokenizer, images.as_ref())?;
    let prompt = asked.request.ids.len();
    let begins = model.config().context_of_prompt(prompt);
    let needed = begins.saturating_add(asked.request.max_new_tokens);
    let cache = model.config().cache();
    let workload = &mut settings.workload;
    workload.cache.context = args.model.context.unwrap_or(needed.min(cache.longest_context));
    workload.prompt = cache.tokens_to_run(prompt, &workload.cache);
    // A token in the middle of the answer, as far as there is room for one.
    workload.position = begins.midpoint(needed.min(workload.cache.context.max(begins)));
    let (profile, figures) = cache::figures(&machine, folder);
    settings.planning.figures = profile;
    let loading = Instant::now();
    let mut shown = [
        Step::Empty { parameters: model.config().parameter_count() },
        Step::Opened { checkpoint: model.checkpoint() },
    ]
    .iter()
    .try_for_each(|step| opening(step, &figures));
    let mut pipeline = model.dispatch(&settings, |step| {
        if shown.is_ok() {
            shown = opening(&step, &figures);
        }
    })?;
    shown?;
    if let Some(images) = images {
        images.add_to(&mut pipeline)?;
    }
    let mut timing = Timing {
        load: opened + loading.elapsed(),
        first_token: loading.elapsed(),
        at_first_token: pipeline.stats(),
        at_end: pipeline.stats(),
    };
    let to_run = pipeline.tokens_to_run(prompt);
    let CacheOptions { context: held, when_full, .. } = *pipeline.cache_options();
    if begins > held && when_full == WhenFull::Slide && !args.json {
        say(format!(
            "note: the prompt has {prompt} tokens and the context holds {held}: the last {to_run} are run, as the answer \
             depends on so many through all layers"
        ));
    }
    let mut reading = Some(following(&pipeline, to_run));
    let watched = pipeline.watch();
    let mut failure = None;
    let on_text = |part: &str| {
        // Clears the bar before the text begins.
        if reading.take().is_some() {
            timing.first_token = began.elapsed();
            timing.at_first_token = watched();
        }
        match show(part) {
            Ok(()) if interrupt::asked() => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    };
    let (tokenizer, request) = (asked.tokenizer.as_ref(), &asked.request);
    let outcome = match args.copies {
        Some(_) => copies(&mut pipeline, request, on_text)?,
        None => generate_text(&mut pipeline, tokenizer, request, &asked.text, on_text)?,
    };
    if let Some(failure) = failure {
        return Err(failure);
    }
    timing.at_end = pipeline.stats();
    let again = again(&mut pipeline, &asked.request.ids, args.prompt_again.unwrap_or(0))?;
    Ok(output(pipeline, prompt, outcome, timing, again, figures))
}

/// Tokens of prompt and context that the model is run for at least, as far as they are known
/// without a tokenizer.
fn least(args: &RunArgs, model: &OpenedModel) -> [usize; 2] {
    let prompt = args.ids.as_ref().map_or(1, |ids| ids.split(',').count());
    let config = model.config();
    let begins = config.context_of_prompt(prompt);
    let needed = begins.saturating_add(args.text.end.max_new_tokens.unwrap_or(0));
    [prompt, needed.min(config.cache().longest_context)]
}

/// A bar that follows the prompt if it takes several passes, else what is read.
pub fn following(pipeline: &Pipeline, to_run: usize) -> Following {
    if to_run > pipeline.longest_pass() {
        return Following::new(count(to_run as u64, "prompt"), pipeline.watch_tokens());
    }
    let (map, read) = (pipeline.device_map(), pipeline.watch());
    let bar = bytes(map.resident_bytes() + map.streamed_bytes(), "reading");
    Following::new(bar, move || read().bytes_read)
}

/// Generates as many texts of one prompt as there is room for; gives the first. All are alike but
/// for their sampling.
fn copies(
    pipeline: &mut Pipeline,
    request: &Request,
    mut on_text: impl FnMut(&str) -> ControlFlow<()>,
) -> Result<TextOutcome, Failure> {
    let rows = pipeline.cache_options().batch;
    let mut generation = Generation::new(pipeline, vec![request.clone(); rows])?;
    while generation.advance()?.is_some() {
        if on_text("").is_break() {
            (0..rows).for_each(|row| generation.end(row, Finish::Stopped));
        }
    }
    let outcome = generation.into_outcomes().remove(0);
    Ok(TextOutcome { text: String::new(), stop_string: None, outcome })
}

/// Runs the prompt again as often as `outsize bench` asks.
fn again(pipeline: &mut Pipeline, ids: &[u32], times: u32) -> Result<Vec<RepeatedRun>, Failure> {
    let run = |_| {
        pipeline.clear();
        let (before, began) = (pipeline.stats(), Instant::now());
        pipeline.forward_rows(&vec![ids; pipeline.cache_options().batch])?;
        let seconds = began.elapsed().as_secs_f64();
        let since = pipeline.stats().since(&before);
        Ok(RepeatedRun {
            seconds,
            bytes_read: since.bytes_read,
            waiting_for_data_seconds: since.waiting_for_data.as_secs_f64(),
        })
    };
    (0..times).map(run).collect()
}

/// What is measured around a generation.
#[derive(Debug, Clone, Copy)]
struct Timing {
    /// Opening the model.
    load: Duration,
    /// From the start of the process to the first token.
    first_token: Duration,
    /// The stream's counts after the first token.
    at_first_token: Stats,
    /// The stream's counts after the last token.
    at_end: Stats,
}

/// Collects the report of a run, and measures the disk afterwards, in the memory that the model
/// gave back.
fn output(
    pipeline: Pipeline,
    prompt_tokens: usize,
    generated: TextOutcome,
    timing: Timing,
    again: Vec<RepeatedRun>,
    figures: Provenance,
) -> RunOutput {
    let outcome = generated.outcome;
    let cache = *pipeline.cache_options();
    let stats = timing.at_end;
    // The sum of nothing is -0.0.
    let decode = outcome.token_seconds.iter().sum::<f64>() + 0.0;
    let after = stats.since(&timing.at_first_token);
    let link = if decode > 0.0 {
        after.bytes_read as f64 / decode
    } else {
        stats.bytes_read as f64 / outcome.prefill_seconds.max(1e-9)
    };
    let share = |time: Duration| (decode > 0.0).then(|| time.as_secs_f64() / decode);
    let placement = pipeline.device_map().clone();
    let prediction = pipeline.prediction().clone();
    let drafts = pipeline.draft_stats();
    let seconds_per_token = match drafts {
        // A guess that was right took no time of its own.
        Some(_) => {
            Some(decode / outcome.token_seconds.len() as f64).filter(|mean| mean.is_finite())
        }
        None => median(&outcome.token_seconds),
    };
    // What is predicted is a pass over one token.
    let measured = seconds_per_token.filter(|seconds| *seconds > 0.0 && drafts.is_none());
    let predicted = prediction.decode.seconds;
    let streamed = pipeline.streamed_range();
    let memory = MemoryHeld::now(&placement);
    let can_slide = pipeline.can_slide();
    drop(pipeline);
    let ring = placement.ring_bytes();
    let disk = streamed
        .filter(|_| again.is_empty() && !interrupt::asked())
        .and_then(|(path, range)| disk_speed(&path, range, ring));
    RunOutput {
        text: generated.text,
        prompt_tokens,
        finish: outcome.finish,
        tokens: outcome.tokens,
        stop_string: generated.stop_string,
        context: cache.context,
        can_slide,
        kv_dtype: cache.dtype.name(),
        load_seconds: timing.load.as_secs_f64(),
        prefill_seconds: outcome.prefill_seconds,
        first_token_seconds: timing.first_token.as_secs_f64(),
        seconds_per_token,
        drafts,
        decode_seconds: decode,
        bytes_read: stats.bytes_read,
        prefill_bytes_read: timing.at_first_token.bytes_read,
        decode_bytes_read: after.bytes_read,
        link_bytes_per_second: link,
        link_utilisation: disk.map(|disk| link / disk),
        disk_bytes_per_second: disk,
        waiting_for_data_seconds: after.waiting_for_data.as_secs_f64(),
        waiting_for_data_share: share(after.waiting_for_data),
        reads_in_flight: share(after.reading),
        bytes_per_read: (after.reads > 0).then(|| after.bytes_read as f64 / after.reads as f64),
        waiting_for_buffers_seconds: after.waiting_for_buffers.as_secs_f64(),
        memory,
        placement,
        prediction,
        prediction_error: measured.map(|measured| predicted / measured - 1.0),
        figures,
        prompt_again: again,
    }
}

/// The speed of direct reads where the streamed weights lie, in bytes per second.
fn disk_speed(path: &Path, range: Range<u64>, ring: u64) -> Option<f64> {
    let range = range.start..range.end.min(range.start + PROBE_BYTES);
    let speed = outsize::machine::direct_read_speed(path, range, ring.min(PROBE_MEMORY)).ok()?;
    // Through the page cache it would be the memory's speed, not the disk's.
    speed.direct.then_some(speed.bytes_per_second)
}
