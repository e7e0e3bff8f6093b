//! What is learned from.

use outsize_generate::{ChatMessage, ChatTemplate, Error as TextError, Tokenizer};
use serde::Deserialize;

/// The most bytes of text that one token is made of; longer ones are words that no tokenizer knows.
const TOKEN_BYTES: usize = 64;

/// A text as tokens, and which of them are to be learned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Of each token, whether it is to be predicted from those before it. The first one cannot be.
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

/// What makes examples of lines.
#[derive(Debug)]
pub(crate) struct ExampleReader {
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// Tokens of the longest example.
    pub context: usize,
    /// Tokens that the model knows.
    pub vocab_size: usize,
}

impl ExampleReader {
    /// At most the first tokens of what a line says, and whether it has more. `now` is what
    /// templates take for the time.
    pub fn example(
        &self,
        format: &ExampleFormat,
        now: &jiff::Zoned,
    ) -> Result<(Example, bool), ExampleFault> {
        let mut example = match format {
            ExampleFormat::Text { text } => {
                let tokens = self.tokenizer.encode(self.cut(text), true)?;
                self.ended(Example { is_target: vec![true; tokens.len()], tokens })
            }
            ExampleFormat::Completion { prompt, completion } => {
                let before = self.tokenizer.encode(self.cut(prompt), true)?;
                let all = format!("{prompt}{completion}");
                let tokens = self.tokenizer.encode(self.cut(&all), true)?;
                let learned = same(&before, &tokens);
                let is_target = (0..tokens.len()).map(|at| at >= learned).collect();
                self.ended(Example { tokens, is_target })
            }
            ExampleFormat::Messages { messages } => self.conversation(messages, now)?,
        };
        if let Some(first) = example.is_target.first_mut() {
            *first = false;
        }
        if !example.is_target.contains(&true) {
            return Err(ExampleFault::Empty);
        }
        let is_cut = example.tokens.len() > self.context;
        example.tokens.truncate(self.context);
        example.is_target.truncate(self.context);
        example.tokens.shrink_to_fit();
        example.is_target.shrink_to_fit();
        self.tokenizer.check(&example.tokens, self.vocab_size)?;
        match example.is_target.contains(&true) {
            true => Ok((example, is_cut)),
            false => Err(ExampleFault::TooLong),
        }
    }

    /// A conversation, of which the assistant's messages are targets, with what ends them.
    fn conversation(
        &self,
        messages: &[ChatMessage],
        now: &jiff::Zoned,
    ) -> Result<Example, ExampleFault> {
        let template = self.template.as_ref().ok_or(ExampleFault::NoTemplate)?;
        let text = template.render_at(messages, &[], false, now)?;
        let tokens = self.tokenizer.encode(self.cut(&text), false)?;
        let mut is_target = vec![false; tokens.len()];
        for (at, message) in messages.iter().enumerate() {
            if message.role != "assistant" {
                continue;
            }
            let begin = template.render_at(&messages[..at], &[], true, now)?;
            let end = template.render_at(&messages[..=at], &[], false, now)?;
            if !text.starts_with(&end) {
                return Err(ExampleFault::Template { message: at });
            }
            let place = |text: &str| -> Result<usize, ExampleFault> {
                Ok(same(&self.tokenizer.encode(self.cut(text), false)?, &tokens))
            };
            let (begin, end) = (place(&begin)?, place(&end)?);
            // At the boundary tokens may be others than in the whole.
            is_target[begin.min(end)..end].fill(true);
            if end > self.context {
                break;
            }
        }
        Ok(Example { tokens, is_target })
    }

    /// The beginning of a text: more than the tokens of an example are made of.
    fn cut<'t>(&self, text: &'t str) -> &'t str {
        let most = TOKEN_BYTES.saturating_mul(self.context.saturating_add(1));
        &text[..text.floor_char_boundary(most)]
    }

    /// An example ended by the first of the tokens that end a text, if there are such and it does
    /// not end with one.
    fn ended(&self, mut example: Example) -> Example {
        let is_ended = example.tokens.last().is_some_and(|last| self.eos.contains(last));
        if let Some(first) = self.eos.first().filter(|_| !is_ended) {
            example.tokens.push(*first);
            example.is_target.push(true);
        }
        example
    }
}

impl Example {
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
pub(crate) enum ExampleFault {
    /// The tokenizer or the template refuses it, or it has tokens that the model does not know.
    #[error(transparent)]
    Text(#[from] TextError),
    /// There is no template.
    #[error(
        "it has messages, but the model has no chat template: give `text`, or `prompt` and `completion`"
    )]
    NoTemplate,
    /// An answer cannot be told apart.
    #[error(
        "the chat template renders message {message} differently when later messages follow, so that the answer's tokens \
         cannot be located: give `prompt` and `completion`"
    )]
    Template {
        /// Its number, counted from 0.
        message: usize,
    },
    /// There is nothing to learn.
    #[error(
        "it has no token to learn: a text needs two tokens, a conversation an assistant's message"
    )]
    Empty,
    /// What is to be learned is behind the longest context.
    #[error("what is to be learned begins behind the context")]
    TooLong,
}
