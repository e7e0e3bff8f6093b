//! What is asked of the model, and what becomes of it.

use outsize_generate::{ChatAnswer, ChatOptions, ChatPrompt, TokenScore, Tokenizer, ToolCall};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::ApiError;
use crate::logprobs::LoggedToken;

/// One answer that is asked for: a request may ask for several.
#[derive(Debug)]
pub(crate) struct Job {
    pub prompt: ChatPrompt,
    pub options: ChatOptions,
    /// Whether the prompt is sent back before the answer.
    pub echo: bool,
    pub listener: Listener,
}

impl Job {
    /// Whether the prompt's tokens are scored too.
    pub fn is_scored(&self) -> bool {
        self.echo && self.options.text.logprobs.is_some()
    }
}

/// Who is told of an answer.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    /// The answer's number in the request.
    pub number: usize,
    pub events: UnboundedSender<(usize, Event)>,
}

impl Listener {
    /// Tells it; whether anybody listens. Once nobody does, the answer ends.
    pub fn send(&self, event: Event) -> bool {
        self.events.send((self.number, event)).is_ok()
    }

    /// Whether nobody listens any more.
    pub fn is_gone(&self) -> bool {
        self.events.is_closed()
    }
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Event {
    Thought(String),
    Text(String),
    Call(ToolCall),
    Done(Box<Answered>),
    Failed(ApiError),
}

/// An answer that has ended.
#[derive(Debug)]
pub(crate) struct Answered {
    pub answer: ChatAnswer,
    /// The prompt's text, if it is sent back.
    pub prompt: Option<String>,
    /// How likely the tokens were, if that was asked for.
    pub tokens: Option<Vec<LoggedToken>>,
}

impl Answered {
    /// One whose prompt is sent back, if it is given, and has no scores.
    pub fn new(answer: ChatAnswer, prompt: Option<&ChatPrompt>, tokenizer: &Tokenizer) -> Self {
        let prompt = prompt.map(|prompt| match prompt {
            ChatPrompt::Text(text) => text.clone(),
            ChatPrompt::Ids(ids) => tokenizer.decode(ids, true).unwrap_or_default(),
            ChatPrompt::Messages(_) => String::new(),
        });
        let scores = &answer.outcome.outcome.scores;
        let tokens = scores.iter().map(|score| LoggedToken::scored(score, tokenizer)).collect();
        let tokens = Some(tokens).filter(|_| !scores.is_empty());
        Self { answer, prompt, tokens }
    }

    /// The same with the prompt's tokens, each with no more than so many of the likeliest ones,
    /// before those of the answer.
    pub fn with_prompt(
        self,
        first: Option<u32>,
        mut scores: Vec<TokenScore>,
        top: usize,
        tokenizer: &Tokenizer,
    ) -> Self {
        scores.iter_mut().for_each(|score| score.top.truncate(top));
        let first = first.map(|token| LoggedToken::first(token, tokenizer));
        let scored = scores.iter().map(|score| LoggedToken::scored(score, tokenizer));
        let tokens = first.into_iter().chain(scored).chain(self.tokens.into_iter().flatten());
        Self { tokens: Some(tokens.collect()), ..self }
    }
}
