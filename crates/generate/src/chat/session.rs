//! A conversation with a model.

use std::ops::ControlFlow;

use super::answer::{ChatAnswer, ChatOptions};
use super::batch::ChatBatch;
use super::channels::ChatPart;
use super::images::ChatImages;
use super::message::{ChatMessage, has_images};
use super::prefix::PrefixCache;
use super::prefix_rows::PrefixRows;
use super::template::ChatTemplate;
use super::tools::ChatTool;
use crate::error::Error;
use crate::pipeline::{Pipeline, PipelineError};
use crate::request::{Finish, GenerateError};
use crate::text::generate_text;
use crate::tokenizer::Tokenizer;

/// A conversation with a model, whose KV cache goes on from turn to turn. Of each prompt only that
/// is run which comes after what the cache holds; the answer is the one that a new run over the
/// whole conversation gives, bit for bit.
#[derive(Debug)]
pub struct ChatSession {
    pub(super) pipeline: Pipeline,
    pub(super) tokenizer: Tokenizer,
    template: ChatTemplate,
    pub(super) vocab_size: usize,
    messages: Vec<ChatMessage>,
    /// The tokens that the KV cache holds.
    pub(super) held: Vec<u32>,
    images: Option<ChatImages>,
}

impl ChatSession {
    /// A conversation with a model of `vocab_size` tokens in which nothing is said yet.
    pub fn new(
        pipeline: Pipeline,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        vocab_size: usize,
    ) -> Self {
        let (messages, held) = (Vec::new(), Vec::new());
        Self { pipeline, tokenizer, template, vocab_size, messages, held, images: None }
    }

    /// The same with messages that have images.
    pub fn with_images(self, images: ChatImages) -> Self {
        Self { images: Some(images), ..self }
    }

    /// What was said.
    pub fn messages(&self) -> &[ChatMessage] {
        &self.messages
    }

    /// Goes on from another conversation. What of it the KV cache holds is not run again.
    ///
    /// # Errors
    /// Messages that the template refuses; the conversation stays as it was.
    pub fn set_messages(&mut self, messages: Vec<ChatMessage>) -> Result<(), Error> {
        if !messages.is_empty() {
            self.template.render(&messages, false)?;
        }
        self.messages = messages;
        Ok(())
    }

    /// The model.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens that the KV cache holds.
    pub fn held_tokens(&self) -> usize {
        self.held.len()
    }

    /// Says `text` as the user, and gives the answer; `on_text` is as that of [`generate_text`].
    /// What functions gave that the answer calls is said by [`set_messages`](Self::set_messages).
    ///
    /// If it ends with an error, or is stopped before it has any text, nothing counts as said.
    ///
    /// # Errors
    /// Messages that the template refuses, a conversation that is longer than the context, and what
    /// the model or a read said.
    pub fn answer(
        &mut self,
        text: impl Into<String>,
        options: &ChatOptions,
        mut on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<ChatAnswer, GenerateError<PipelineError>> {
        self.answer_in_parts(text, options, |part| match part {
            ChatPart::Thought(_) | ChatPart::ToolCall(_) => on_text(""),
            ChatPart::Answer(text) => on_text(text),
        })
    }

    /// The same with what is thought, and with calls of functions.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub fn answer_in_parts(
        &mut self,
        text: impl Into<String>,
        options: &ChatOptions,
        on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> Result<ChatAnswer, GenerateError<PipelineError>> {
        self.answer_message(ChatMessage::new("user", text), options, on_part)
    }

    /// The same to a message, which may have images.
    ///
    /// # Errors
    /// As [`answer`](Self::answer), and images that cannot be seen.
    pub fn answer_message(
        &mut self,
        message: ChatMessage,
        options: &ChatOptions,
        on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> Result<ChatAnswer, GenerateError<PipelineError>> {
        self.messages.push(message);
        let answer = self.reply(options, on_part);
        match &answer {
            Ok(ChatAnswer { outcome, tool_calls, .. })
                if !outcome.text.is_empty() || outcome.outcome.finish != Finish::Stopped =>
            {
                let tool_calls = tool_calls.clone();
                let said = ChatMessage::new("assistant", &outcome.text);
                self.messages.push(ChatMessage { tool_calls, ..said });
            }
            _ => drop(self.messages.pop()),
        }
        answer
    }

    /// The tokens of the conversation, with those that an answer begins with or without.
    fn ids(&self, tools: &[ChatTool], answers: bool) -> Result<Vec<u32>, Error> {
        let prompt = self.template.render_with(&self.messages, tools, answers)?;
        let prompt = match &self.images {
            Some(images) => images.framed(&prompt, &self.messages),
            None => prompt.as_str().into(),
        };
        // The template has written the special tokens.
        let ids = self.tokenizer.encode(&prompt, false)?;
        self.tokenizer.check(&ids, self.vocab_size)?;
        match &self.images {
            Some(images) if has_images(&self.messages) => {
                images.place_in(&ids, &self.messages, &self.tokenizer)
            }
            _ => Ok(ids),
        }
    }

    /// How many of a prompt's tokens are of what was said, if that matters: a template may write
    /// later ones otherwise once there is an answer.
    fn answer_begins(&self, prompt: &[u32], tools: &[ChatTool]) -> usize {
        let said = match self.pipeline.cache_options().snapshot {
            true => self.ids(tools, false).unwrap_or_default(),
            false => Vec::new(),
        };
        said.iter().zip(prompt).take_while(|(said, prompt)| said == prompt).count()
    }

    /// Answers what was said last, and leaves the messages as they are.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    pub fn reply(
        &mut self,
        options: &ChatOptions,
        on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> Result<ChatAnswer, GenerateError<PipelineError>> {
        if has_images(&self.messages) {
            let none = || Error::NoImages { reason: "the model was not opened for any" };
            let images = self.images.as_mut().ok_or_else(none)?;
            images.see(&self.messages, &mut self.pipeline).map_err(|error| match error {
                PipelineError::File(error) => GenerateError::Request(error),
                error => GenerateError::Model(error),
            })?;
        }
        let ids = self.ids(&options.tools, true)?;
        let snapshot = self.answer_begins(&ids, &options.tools);
        self.generate(ids, snapshot, true, options, on_part)
    }

    /// Goes on from a text, with the special tokens that begin one, and leaves the messages as they
    /// are. Of the text, too, only that is run which comes after what the KV cache holds.
    ///
    /// # Errors
    /// A text that is longer than the context, and what the model or a read said.
    pub fn complete(
        &mut self,
        prompt: &str,
        options: &ChatOptions,
        on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> Result<ChatAnswer, GenerateError<PipelineError>> {
        let ids = self.tokenizer.encode(prompt, true)?;
        self.complete_ids(ids, options, on_part)
    }

    /// The same of a text that is given by its tokens, to which none are added.
    ///
    /// # Errors
    /// As [`complete`](Self::complete), and ids outside the vocabulary.
    pub fn complete_ids(
        &mut self,
        ids: Vec<u32>,
        options: &ChatOptions,
        on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> Result<ChatAnswer, GenerateError<PipelineError>> {
        self.tokenizer.check(&ids, self.vocab_size)?;
        let end = ids.len();
        self.generate(ids, end, false, options, on_part)
    }

    fn generate(
        &mut self,
        ids: Vec<u32>,
        snapshot: usize,
        is_chat: bool,
        options: &ChatOptions,
        mut on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> Result<ChatAnswer, GenerateError<PipelineError>> {
        let prompt_tokens = ids.len();
        let template = is_chat.then_some(&self.template);
        let (request, text, mut parts) = options.request(ids, template)?;
        let mut model = PrefixCache::new(&mut self.pipeline, &mut self.held, snapshot);
        let on_text = |text: &str| parts.push(text, &mut on_part);
        let outcome = generate_text(&mut model, &self.tokenizer, &request, &text, on_text)?;
        if outcome.outcome.finish != Finish::Stopped {
            // Nothing comes after it that could break.
            let _ = parts.finish(&mut on_part);
        }
        let counts = [prompt_tokens, model.reused];
        Ok(ChatAnswer::new(outcome, parts, counts))
    }

    /// Answers side by side, as long as `run` has them go on, and leaves the messages as they are.
    /// What the KV cache holds is forgotten before and after.
    ///
    /// # Errors
    /// Those of `run`.
    pub fn side_by_side<T, E: From<GenerateError<PipelineError>>>(
        &mut self,
        run: impl FnOnce(&mut ChatBatch<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.held.clear();
        let mut model = PrefixRows::new(&mut self.pipeline);
        let mut batch =
            ChatBatch::new(&mut model, &self.tokenizer, &self.template, self.vocab_size)?;
        let done = run(&mut batch);
        self.pipeline.clear();
        done
    }
}
