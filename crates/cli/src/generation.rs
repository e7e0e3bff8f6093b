//! One generation: shows the text as it comes and reports the run at the end.

use crate::error::Failure;
use crate::interrupt;
use crate::request::GenerateRequest;
use crate::views::run::RunOutput;
use outsize::bench::{RepeatedRun, median};
use outsize::generate::{
    Finish, LanguageModel, Outcome, Pipeline, TextOutcome, generate, generate_text,
};
use outsize::stream::Stats;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes that are read to find the disk's speed after a run.
const PROBE_BYTES: u64 = 512 << 20;

/// The most memory that these are read into: as with the ring, more than the processor's cache.
const PROBE_MEMORY: u64 = 64 << 20;

/// When the process began, and how long opening the model took.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    /// The start of the process.
    pub began: Instant,
    /// From opening the checkpoint until the first pass could begin.
    pub load: Duration,
}

/// Generates what is asked for. `show` is called with the new text at every token; the text may be
/// empty while a character or a stop string is not complete.
pub fn run(
    mut pipeline: Pipeline,
    asked: &GenerateRequest,
    opened: Opened,
    mut show: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<RunOutput, Failure> {
    let mut timing = Timing {
        load: opened.load,
        first_token: opened.load,
        at_first_token: pipeline.stats(),
        at_end: pipeline.stats(),
    };
    let watched = pipeline.watch();
    let mut first = true;
    let mut failure = None;
    let mut on_text = |part: &str| {
        if std::mem::take(&mut first) {
            timing.first_token = opened.began.elapsed();
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
    let outcome = match &asked.tokenizer {
        Some(tokenizer) => {
            generate_text(&mut pipeline, tokenizer, &asked.request, &asked.text, on_text)?
        }
        None => {
            let mut text = String::new();
            let outcome = generate(&mut pipeline, &asked.request, |token| {
                let comma = if text.is_empty() { "" } else { "," };
                let part = format!("{comma}{token}");
                text.push_str(&part);
                on_text(&part)
            })?;
            TextOutcome { text, stop_string: None, outcome }
        }
    };
    if let Some(failure) = failure {
        return Err(failure);
    }
    timing.at_end = pipeline.stats();
    let again = again(&mut pipeline, asked)?;
    let prompt_tokens = asked.request.ids.len();
    Ok(output(pipeline, prompt_tokens, outcome, timing, again))
}

/// Runs the prompt again as often as `outsize bench` asks.
fn again(
    pipeline: &mut Pipeline,
    asked: &GenerateRequest,
) -> Result<Option<Vec<RepeatedRun>>, Failure> {
    let Some(times) = asked.prompt_again else {
        return Ok(None);
    };
    let mut runs = Vec::new();
    for _ in 0..times {
        pipeline.clear();
        let (before, began) = (pipeline.stats(), Instant::now());
        pipeline.forward(&asked.request.ids)?;
        let seconds = began.elapsed().as_secs_f64();
        let since = pipeline.stats().since(&before);
        runs.push(RepeatedRun {
            seconds,
            bytes_read: since.bytes_read,
            waiting_for_data_seconds: since.waiting_for_data.as_secs_f64(),
        });
    }
    Ok(Some(runs))
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
    again: Option<Vec<RepeatedRun>>,
) -> RunOutput {
    let outcome = generated.outcome;
    let cache = *pipeline.cache_options();
    let stats = timing.at_end;
    let decode: f64 = outcome.token_seconds.iter().sum();
    let after = stats.since(&timing.at_first_token);
    let link = if decode > 0.0 {
        after.bytes_read as f64 / decode
    } else {
        stats.bytes_read as f64 / outcome.prefill_seconds.max(1e-9)
    };
    let share = |time: Duration| (decode > 0.0).then(|| time.as_secs_f64() / decode);
    let placement = pipeline.device_map().clone();
    let prediction = pipeline.prediction().clone();
    let measured = median(&outcome.token_seconds).filter(|seconds| *seconds > 0.0);
    let predicted = prediction.decode.seconds;
    let streamed = pipeline.streamed_range();
    drop(pipeline);
    let ring = placement.ring_bytes();
    let disk = streamed
        .filter(|_| again.is_none() && !interrupt::asked())
        .and_then(|(path, range)| disk_speed(&path, range, ring));
    RunOutput {
        text: generated.text,
        prompt_tokens,
        finish: finish(&outcome),
        tokens: outcome.tokens,
        stop_string: generated.stop_string,
        context: cache.context,
        kv_dtype: cache.dtype.name(),
        load_seconds: timing.load.as_secs_f64(),
        prefill_seconds: outcome.prefill_seconds,
        first_token_seconds: timing.first_token.as_secs_f64(),
        seconds_per_token: median(&outcome.token_seconds),
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
        peak_rss_bytes: outsize::machine::peak_rss(),
        placement,
        prediction,
        prediction_error: measured.map(|measured| predicted / measured - 1.0),
        figures: None,
        prompt_again: again.unwrap_or_default(),
    }
}

fn finish(outcome: &Outcome) -> &'static str {
    match outcome.finish {
        Finish::Eos => "eos",
        Finish::Length => "length",
        Finish::Context => "context",
        Finish::StopString => "stop_string",
        Finish::Stopped => "stopped",
    }
}

/// The speed of direct reads where the streamed weights lie, in bytes per second.
fn disk_speed(path: &Path, range: Range<u64>, ring: u64) -> Option<f64> {
    let range = range.start..range.end.min(range.start + PROBE_BYTES);
    let speed = outsize::machine::direct_read_speed(path, range, ring.min(PROBE_MEMORY)).ok()?;
    // Through the page cache it would be the memory's speed, not the disk's.
    speed.direct.then_some(speed.bytes_per_second)
}
