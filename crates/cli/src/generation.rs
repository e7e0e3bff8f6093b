//! One generation: each part of the text shown as it comes, and what happened reported at the end.

use crate::error::Failure;
use crate::interrupt;
use crate::report::{RunOutput, Timing};
use crate::request::GenerateRequest;
use outsize::bench::RepeatedRun;
use outsize::generate::{Decoder, Pipeline, TextOutcome, generate, generate_text};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

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
        Some(tokenizer) => generate_text(
            &mut pipeline,
            tokenizer,
            &asked.request,
            &asked.text,
            on_text,
        )?,
        None => {
            let mut text = String::new();
            let outcome = generate(&mut pipeline, &asked.request, |token| {
                let comma = if text.is_empty() { "" } else { "," };
                let part = format!("{comma}{token}");
                text.push_str(&part);
                on_text(&part)
            })?;
            TextOutcome {
                text,
                stop_string: None,
                outcome,
            }
        }
    };
    if let Some(failure) = failure {
        return Err(failure);
    }
    timing.at_end = pipeline.stats();
    let again = again(&mut pipeline, asked)?;
    let prompt_tokens = asked.request.ids.len();
    Ok(RunOutput::new(
        pipeline,
        prompt_tokens,
        outcome,
        timing,
        again,
    ))
}

/// Runs the prompt as many times more as somebody wants to know about.
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
