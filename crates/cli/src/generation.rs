//! One generation: each part of the text shown as it comes, and what happened reported at the end.

use crate::error::Failure;
use crate::interrupt;
use crate::report::{Report, Timing};
use outsize::generate::{Pipeline, Request, Tokenizer, generate};
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

/// Generates as `request` says. `show` is called with the new text at every token; the text may be
/// empty while a character is not complete. Without a tokenizer the text is the tokens' numbers.
pub fn run(
    mut pipeline: Pipeline,
    request: &Request,
    tokenizer: Option<&Tokenizer>,
    opened: Opened,
    mut show: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Report, Failure> {
    let mut timing = Timing {
        load: opened.load,
        first_token: opened.load,
        at_first_token: pipeline.stats(),
    };
    let watched = pipeline.watch();
    let mut stream = tokenizer.map(Tokenizer::stream);
    let mut text = String::new();
    let mut count = 0;
    let mut failure = None;
    let mut on_token = |token| -> Result<(), Failure> {
        if count == 0 {
            timing.first_token = opened.began.elapsed();
            timing.at_first_token = watched();
        }
        let part = match &mut stream {
            Some(stream) => stream.push(token)?.unwrap_or_default(),
            None if count == 0 => token.to_string(),
            None => format!(",{token}"),
        };
        count += 1;
        text.push_str(&part);
        show(&part)
    };
    let outcome = generate(&mut pipeline, request, |token| match on_token(token) {
        Ok(()) if interrupt::asked() => ControlFlow::Break(()),
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failure = Some(error);
            ControlFlow::Break(())
        }
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    if let Some(rest) = stream.map(|stream| stream.finish()).transpose()?.flatten() {
        text.push_str(&rest);
        show(&rest)?;
    }
    Ok(Report::new(pipeline, &outcome, text, timing))
}
