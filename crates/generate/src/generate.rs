//! The loop: prompt in, one token after the other out.

use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

use crate::error::Error;
use crate::sampling::{Sampler, Sampling};

/// What the loop needs from a model: one sequence, with a memory of the tokens it has seen.
pub trait LanguageModel {
    /// Why a forward pass failed.
    type Error;

    /// Appends `ids` to the sequence; returns the logits after the last of them, shape `[vocab]`. `ids` is never empty.
    ///
    /// # Errors
    /// The model's own.
    fn forward(&mut self, ids: &[u32]) -> Result<Vec<f32>, Self::Error>;

    /// What the sequence begins with, given a prompt: the prompt itself, unless an encoder reads it.
    fn beginning<'a>(&'a self, prompt: &'a [u32]) -> &'a [u32] {
        prompt
    }

    /// How many tokens the sequence can hold, in tokens; `None` if the oldest make room for new ones.
    fn context(&self) -> Option<usize>;

    /// How many tokens the sequence holds now, in tokens.
    fn position(&self) -> usize;

    /// What can be done where a text of `needed` tokens leaves no room for a new one.
    fn advice(&self, _needed: usize) -> String {
        "shorten the prompt".to_owned()
    }

    /// Whether a forward pass failed only because somebody wants it to end: generation then ends as if
    /// the caller had asked.
    fn is_stopped(_error: &Self::Error) -> bool {
        false
    }
}

/// What to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The prompt, appended to what the decoder already holds.
    pub ids: Vec<u32>,
    /// The most tokens to generate.
    pub max_new_tokens: usize,
    /// Tokens that end the text; see [`GenerationConfig::eos_token_id`](crate::GenerationConfig::eos_token_id).
    pub eos: Vec<u32>,
    /// How tokens are chosen. A repetition penalty counts the tokens of this request: new ones, and those of the prompt unless
    /// an encoder reads it.
    pub sampling: Sampling,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model chose a token that ends the text.
    Eos,
    /// `max_new_tokens` were generated.
    Length,
    /// The context is full, before `max_new_tokens` were generated.
    Context,
    /// The text holds a string that ends it; see [`generate_text`](crate::generate_text).
    StopString,
    /// The caller asked to stop, between tokens or in the middle of a pass.
    Stopped,
}

/// What was generated, and how long it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The new tokens, without the prompt. As in transformers, a token that ended the text is the last of them.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub finish: Finish,
    /// From the start to the first new token, in seconds.
    pub prefill_seconds: f64,
    /// For each new token after the first, from the call of the model to the choice of the token, in seconds. The caller's own
    /// work on tokens does not count.
    pub token_seconds: Vec<f64>,
}

impl Outcome {
    /// The new tokens that are text: all but the one that ended it.
    pub fn text_tokens(&self) -> &[u32] {
        match (self.finish, self.tokens.as_slice()) {
            (Finish::Eos, [text @ .., _]) => text,
            (_, tokens) => tokens,
        }
    }
}

/// Why generation failed.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError<E> {
    /// The request does not fit the model, or its logits cannot be used.
    #[error(transparent)]
    Request(#[from] Error),
    /// The model failed.
    #[error(transparent)]
    Model(E),
}

/// Generates tokens until the text ends, the request's or the context's limit is reached, or `on_token` breaks.
///
/// `on_token` gets each new token as soon as it is chosen, except a token that ends the text. The prompt and the new tokens
/// together never exceed [`LanguageModel::context`], if there is one. The last new token is not given to the model, so the decoder's position ends one
/// short of the text. Nothing is computed if `max_new_tokens` is 0.
///
/// # Errors
/// An empty prompt, a prompt that leaves no room in the context, sampling values out of range, logits that are not numbers; and
/// what the model returns.
pub fn generate<D: LanguageModel>(
    decoder: &mut D,
    request: &Request,
    mut on_token: impl FnMut(u32) -> ControlFlow<()>,
) -> Result<Outcome, GenerateError<D::Error>> {
    let mut sampler = Sampler::new(request.sampling)?;
    sampler.see(decoder.beginning(&request.ids));
    let (limit, at_limit) = limit(decoder, request)?;
    let mut outcome = Outcome {
        tokens: Vec::new(),
        finish: at_limit,
        prefill_seconds: 0.0,
        token_seconds: Vec::new(),
    };

    while outcome.tokens.len() < limit {
        let started = Instant::now();
        let logits = match outcome.tokens.last() {
            None => decoder.forward(&request.ids),
            Some(&last) => decoder.forward(&[last]),
        };
        let logits = match logits {
            Err(error) if D::is_stopped(&error) => {
                outcome.finish = Finish::Stopped;
                break;
            }
            logits => logits.map_err(GenerateError::Model)?,
        };
        let token = sampler.sample(&logits)?;
        let seconds = started.elapsed().as_secs_f64();
        if outcome.tokens.is_empty() {
            outcome.prefill_seconds = seconds;
        } else {
            outcome.token_seconds.push(seconds);
        }
        outcome.tokens.push(token);
        if request.eos.contains(&token) {
            outcome.finish = Finish::Eos;
            break;
        }
        if on_token(token).is_break() {
            outcome.finish = Finish::Stopped;
            break;
        }
    }
    Ok(outcome)
}

/// How many tokens may be generated, and what it means to reach that number.
fn limit<D: LanguageModel>(decoder: &D, request: &Request) -> Result<(usize, Finish), Error> {
    if request.ids.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    let Some(context) = decoder.context() else {
        return Ok((request.max_new_tokens, Finish::Length));
    };
    let needed = decoder.position().saturating_add(decoder.beginning(&request.ids).len());
    let room = match context.checked_sub(needed) {
        Some(room) if room > 0 || request.max_new_tokens == 0 => room,
        _ => {
            let advice = decoder.advice(needed);
            return Err(Error::PromptTooLong { needed, context, advice });
        }
    };
    Ok(if request.max_new_tokens <= room {
        (request.max_new_tokens, Finish::Length)
    } else {
        (room, Finish::Context)
    })
}
