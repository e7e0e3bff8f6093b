//! Conversations with one model side by side.

use std::ops::ControlFlow;

use super::answer::{ChatAnswer, ChatOptions};
use super::answer_text::AnswerText;
use super::channels::ChatPart;
use super::message::{ChatMessage, has_images};
use super::prefix_rows::PrefixRows;
use super::template::ChatTemplate;
use crate::error::Error;
use crate::pipeline::PipelineError;
use crate::request::{Finish, GenerateError};
use crate::text::TextGeneration;
use crate::tokenizer::Tokenizer;

/// What is answered.
#[derive(Debug, Clone, PartialEq)]
pub enum ChatPrompt {
    /// A conversation, by the model's template.
    Messages(Vec<ChatMessage>),
    /// A text, which is gone on with.
    Text(String),
    /// The same by its tokens, to which none are added.
    Ids(Vec<u32>),
}

/// Answers that grow side by side, as many at once as the model's KV cache is [made
/// for](outsize_models::CacheOptions::batch), each as it would alone. A pass gives all of them a
/// token, and reads the weights once for all.
///
/// One begins as soon as another has ended, where the cache
/// [replaces](outsize_models::WhenFull::Replace) texts. Of its prompt only that is run which comes
/// after what the cache holds of any text, ended or not.
#[derive(Debug)]
pub struct ChatBatch<'s> {
    texts: TextGeneration<'s, PrefixRows<'s>>,
    tokenizer: &'s Tokenizer,
    template: &'s ChatTemplate,
    vocab_size: usize,
    rows: Vec<Option<ChatRow>>,
}

/// One answer that grows.
#[derive(Debug)]
struct ChatRow {
    parts: AnswerText,
    prompt_tokens: usize,
    reused_tokens: Option<usize>,
}

/// Answers that have ended, each with the number that it had.
pub type EndedAnswers = Vec<(usize, ChatAnswer)>;

impl<'s> ChatBatch<'s> {
    pub(super) fn new(
        model: &'s mut PrefixRows<'s>,
        tokenizer: &'s Tokenizer,
        template: &'s ChatTemplate,
        vocab_size: usize,
    ) -> Result<Self, GenerateError<PipelineError>> {
        let rows = (0..model.len()).map(|_| None).collect();
        let texts = TextGeneration::empty(model, Some(tokenizer))?;
        Ok(Self { texts, tokenizer, template, vocab_size, rows })
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &'s Tokenizer {
        self.tokenizer
    }

    /// Whether nothing is answered now.
    pub fn is_idle(&self) -> bool {
        self.rows.iter().all(Option::is_none)
    }

    /// Whether another answer can begin.
    pub fn has_room(&self) -> bool {
        let free = self.rows.iter().any(Option::is_none);
        free && (self.texts.replaces_rows() || self.is_idle())
    }

    /// Begins an answer, of which nothing is computed yet; gives its number, which is below the
    /// number of texts side by side.
    ///
    /// # Errors
    /// Messages that the template refuses, a prompt that is longer than the context, sampling
    /// values out of range. The others go on.
    ///
    /// # Panics
    /// Without [room](Self::has_room).
    pub fn begin(
        &mut self,
        prompt: &ChatPrompt,
        options: &ChatOptions,
    ) -> Result<usize, GenerateError<PipelineError>> {
        let (ids, template) = match prompt {
            ChatPrompt::Messages(messages) => {
                if has_images(messages) {
                    let reason = "a text with images runs alone, not beside others";
                    return Err(Error::NoImages { reason }.into());
                }
                let text = self.template.render_with(messages, &options.tools, true)?;
                (self.tokenizer.encode(&text, false)?, Some(self.template))
            }
            ChatPrompt::Text(text) => (self.tokenizer.encode(text, true)?, None),
            ChatPrompt::Ids(ids) => (ids.clone(), None),
        };
        self.tokenizer.check(&ids, self.vocab_size)?;
        let (request, text, parts) = options.request(ids, template)?;
        let prompt_tokens = request.ids.len();
        let free = self.rows.iter().position(Option::is_none);
        let number = free.expect("there is room for another answer");
        self.texts.replace(number, (request, text))?;
        self.rows[number] = Some(ChatRow { parts, prompt_tokens, reused_tokens: None });
        Ok(number)
    }

    /// Runs one pass. `on_part` gets the number of each answer that has more text, and the text; an
    /// answer for which it breaks ends. Gives the answers that have ended.
    ///
    /// # Errors
    /// What the model or a read said: all answers have then ended.
    pub fn advance(
        &mut self,
        mut on_part: impl FnMut(usize, ChatPart<'_>) -> ControlFlow<()>,
    ) -> Result<EndedAnswers, GenerateError<PipelineError>> {
        let ended = self.pass(&mut on_part);
        if ended.is_err() {
            self.rows.fill_with(|| None);
        }
        ended
    }

    fn pass(
        &mut self,
        on_part: &mut impl FnMut(usize, ChatPart<'_>) -> ControlFlow<()>,
    ) -> Result<EndedAnswers, GenerateError<PipelineError>> {
        for (number, part) in self.texts.advance()?.unwrap_or_default() {
            self.say(number, &part, on_part);
        }
        let mut ended = Vec::new();
        for number in 0..self.rows.len() {
            let Some(row) = &mut self.rows[number] else { continue };
            let tokens = self.texts.tokens();
            if let (None, Some(sequence)) = (row.reused_tokens, tokens.sequence(number)) {
                row.reused_tokens = Some(tokens.decoder().reused(sequence));
            }
            let rest = self.texts.finish(number)?;
            if !rest.is_empty() {
                self.say(number, &rest, on_part);
            }
            if let Some(outcome) = self.texts.ended(number)?
                && let Some(mut row) = self.rows[number].take()
            {
                if outcome.outcome.finish != Finish::Stopped {
                    // Nothing comes after it that could break.
                    let _ = row.parts.finish(|part| on_part(number, part));
                }
                let counts = [row.prompt_tokens, row.reused_tokens.unwrap_or(0)];
                ended.push((number, ChatAnswer::new(outcome, row.parts, counts)));
            }
        }
        Ok(ended)
    }

    /// Hands out more of an answer.
    fn say(
        &mut self,
        number: usize,
        part: &str,
        on_part: &mut impl FnMut(usize, ChatPart<'_>) -> ControlFlow<()>,
    ) {
        let Some(row) = &mut self.rows[number] else { return };
        if row.parts.push(part, |part| on_part(number, part)).is_break() {
            self.texts.end(number);
        }
    }
}
