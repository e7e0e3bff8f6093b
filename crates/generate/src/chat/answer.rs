//! How a model answers, and an answer.

use super::channels::Channels;
use crate::request::Request;
use crate::sampling::Sampling;
use crate::text::{TextOptions, TextOutcome};

/// How a model answers.
#[derive(Debug, Clone, Default)]
pub struct ChatOptions {
    /// The most tokens of an answer; else as many as the context has room for.
    pub max_new_tokens: Option<usize>,
    /// Tokens that end an answer.
    pub eos: Vec<u32>,
    /// How tokens are chosen; each answer begins with the seed.
    pub sampling: Sampling,
    /// How tokens become text.
    pub text: TextOptions,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatAnswer {
    /// Its text and tokens. What was thought before is no text of it.
    pub outcome: TextOutcome,
    /// What the model thought before, where its template tells that apart; no part of the conversation.
    pub thought: String,
    /// Tokens of the conversation before it, with the template's.
    pub prompt_tokens: usize,
    /// Of these, those that the KV cache held already: they were not run again.
    pub reused_tokens: usize,
}

impl ChatOptions {
    /// What is generated from a prompt of these tokens, and what tells its channels apart.
    pub(super) fn request(
        &self,
        ids: Vec<u32>,
        has_channels: bool,
    ) -> (Request, TextOptions, Option<Channels>) {
        let request = Request {
            ids,
            max_new_tokens: self.max_new_tokens.unwrap_or(usize::MAX),
            eos: self.eos.clone(),
            sampling: self.sampling,
        };
        let mut text = self.text.clone();
        text.show_special_tokens |= has_channels;
        (request, text, has_channels.then(Channels::default))
    }
}

impl ChatAnswer {
    /// An answer to a prompt of so many tokens, of which so many were not run.
    pub(super) fn new(
        mut outcome: TextOutcome,
        channels: Option<Channels>,
        [prompt_tokens, reused_tokens]: [usize; 2],
    ) -> Self {
        let mut thought = String::new();
        if let Some(channels) = channels {
            (thought, outcome.text) = (channels.thought, channels.answer);
        }
        Self { outcome, thought, prompt_tokens, reused_tokens }
    }
}
