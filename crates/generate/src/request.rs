//! What to generate, and what came of it.

use outsize_kernels::TokenScore;
use serde::Serialize;

use crate::error::Error;
use crate::language_model::LanguageModel;
use crate::sampling::Sampling;

/// What to generate.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The prompt, appended to what the decoder already holds.
    pub ids: Vec<u32>,
    /// The most tokens to generate.
    pub max_new_tokens: usize,
    /// Tokens that end the text; see
    /// [`GenerationConfig::eos_token_id`](crate::GenerationConfig::eos_token_id).
    pub eos: Vec<u32>,
    /// How tokens are chosen. A repetition penalty counts the tokens of this request: new ones, and
    /// those of the prompt unless an encoder reads it.
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
    /// The text is whole: its constraint has nothing follow.
    Complete,
    /// The text is not what its constraint has it be, and no token leads there, or it takes too
    /// much to tell.
    Stuck,
    /// The caller asked to stop, between tokens or in the middle of a pass.
    Stopped,
}

/// What was generated, and how long it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The new tokens, without the prompt. As in transformers, a token that ended the text is the
    /// last of them.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub finish: Finish,
    /// From the start to the first new token, in seconds.
    pub prefill_seconds: f64,
    /// For each new token after the first, from the call of the model to the choice of the token,
    /// in seconds. The caller's own work on tokens does not count.
    pub token_seconds: Vec<f64>,
    /// How likely each token was, if [asked for](crate::TextOptions::logprobs).
    pub scores: Vec<TokenScore>,
}

impl Outcome {
    /// Tokens that took no time yet.
    pub(crate) fn new(tokens: Vec<u32>, finish: Finish) -> Self {
        Self { tokens, finish, prefill_seconds: 0.0, token_seconds: Vec::new(), scores: Vec::new() }
    }

    /// The new tokens that are text: all but the one that ended it.
    pub fn text_tokens(&self) -> &[u32] {
        text_tokens(&self.tokens, self.finish)
    }
}

/// Tokens that are text: all but the one that ended it.
pub(crate) fn text_tokens(tokens: &[u32], finish: Finish) -> &[u32] {
    match (finish, tokens) {
        (Finish::Eos, [text @ .., _]) => text,
        (_, tokens) => tokens,
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

/// How many tokens may be generated of a request beside others, of which the longest begins with
/// `longest` tokens; and what it means to reach that number.
pub(crate) fn limit<D: LanguageModel>(
    decoder: &D,
    request: &Request,
    longest: usize,
) -> Result<(usize, Finish), Error> {
    if request.ids.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    let Some(context) = decoder.context() else {
        return Ok((request.max_new_tokens, Finish::Length));
    };
    let needed = decoder.position().saturating_add(longest);
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

/// The tokens of the longest beginning.
pub(crate) fn longest<D: LanguageModel>(decoder: &D, requests: &[Request]) -> usize {
    requests.iter().map(|request| decoder.beginning(&request.ids).len()).max().unwrap_or(0)
}
