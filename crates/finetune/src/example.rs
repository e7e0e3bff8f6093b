//! What is learned from.

use outsize_generate::{ChatMessage, ChatTemplate, Error as TextError, Tokenizer};
use serde::Deserialize;

/// A text as tokens, and which of them are to be learned.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Example {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Of each token, whether it is to be foretold by those before it. The first one cannot be.
    pub is_target: Vec<bool>,
}

/// One line of a file of examples, as TRL has them.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum ExampleFormat {
    /// A text, all of which is learned.
    Text {
        /// The text.
        text: String,
    },
    /// A text and how it goes on, which is learned.
    Completion {
        /// What it begins with.
        prompt: String,
        /// How it goes on.
        completion: String,
    },
    /// A conversation, of which what the assistant says is learned.
    Messages {
        /// In order.
        messages: Vec<ChatMessage>,
    },
}

impl Example {
    /// At most the first `context` tokens of what a line says. The tokens of `eos` end a text that does not end with one, if
    /// there are any.
    ///
    /// # Errors
    /// Text that has no tokens, and messages that cannot be written by the template or from which no answer can be told apart.
    pub fn new(
        format: &ExampleFormat,
        tokenizer: &Tokenizer,
        template: Option<&ChatTemplate>,
        eos: &[u32],
        context: usize,
    ) -> Result<Self, ExampleFault> {
        let mut example = match format {
            ExampleFormat::Text { text } => {
                let tokens = tokenizer.encode(text, true)?;
                Self { is_target: vec![true; tokens.len()], tokens }.ended(eos)
            }
            ExampleFormat::Completion { prompt, completion } => {
                let before = tokenizer.encode(prompt, true)?;
                let tokens = tokenizer.encode(&format!("{prompt}{completion}"), true)?;
                let learned = same(&before, &tokens);
                let is_target = (0..tokens.len()).map(|at| at >= learned).collect();
                Self { tokens, is_target }.ended(eos)
            }
            ExampleFormat::Messages { messages } => {
                let template = template.ok_or(ExampleFault::NoTemplate)?;
                Self::of_messages(messages, tokenizer, template)?
            }
        };
        if let Some(first) = example.is_target.first_mut() {
            *first = false;
        }
        example.cut(context)
    }

    /// Its first `context` tokens.
    pub(crate) fn cut(mut self, context: usize) -> Result<Self, ExampleFault> {
        self.tokens.truncate(context);
        self.is_target.truncate(context);
        match self.is_target.contains(&true) {
            true => Ok(self),
            false => Err(ExampleFault::Nothing { context }),
        }
    }

    /// A conversation, of which the assistant's messages are targets, with what ends them.
    fn of_messages(
        messages: &[ChatMessage],
        tokenizer: &Tokenizer,
        template: &ChatTemplate,
    ) -> Result<Self, ExampleFault> {
        let text = template.render(messages, false)?;
        let tokens = tokenizer.encode(&text, false)?;
        let mut is_target = vec![false; tokens.len()];
        for (at, message) in messages.iter().enumerate() {
            if message.role != "assistant" {
                continue;
            }
            let begin = template.render(&messages[..at], true)?;
            let end = template.render(&messages[..=at], false)?;
            if !end.starts_with(&begin) || !text.starts_with(&end) {
                return Err(ExampleFault::Template { message: at });
            }
            let [begin, end] = [begin, end].map(|text| tokenizer.encode(&text, false));
            let (begin, end) = (same(&begin?, &tokens), same(&end?, &tokens));
            is_target[begin..end].fill(true);
        }
        Ok(Self { tokens, is_target })
    }

    /// The same ended by the first of `eos`, if there is one and it does not end with one.
    fn ended(mut self, eos: &[u32]) -> Self {
        let is_ended = self.tokens.last().is_some_and(|last| eos.contains(last));
        if let Some(first) = eos.first().filter(|_| !is_ended) {
            self.tokens.push(*first);
            self.is_target.push(true);
        }
        self
    }

    /// How many tokens are to be learned.
    pub fn targets(&self) -> usize {
        self.is_target.iter().filter(|is_target| **is_target).count()
    }
}

/// How many tokens two texts have in common at their beginning.
fn same(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// Why a line is no example.
#[derive(Debug, thiserror::Error)]
pub enum ExampleFault {
    /// The tokenizer or the template refuses it.
    #[error(transparent)]
    Text(#[from] TextError),
    /// There is no template.
    #[error(
        "it has messages, but the model has no chat template: give `text`, or `prompt` and `completion`"
    )]
    NoTemplate,
    /// An answer cannot be told apart.
    #[error(
        "the chat template writes message {message} otherwise with others behind it, so that it cannot be told what is \
         learned: give `prompt` and `completion`"
    )]
    Template {
        /// Its number, counted from 0.
        message: usize,
    },
    /// There is nothing to learn.
    #[error("there is nothing to learn in its first {context} tokens")]
    Nothing {
        /// The most tokens of an example.
        context: usize,
    },
}
