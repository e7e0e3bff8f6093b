//! How a model answers, and an answer.

use super::answer_text::{AnswerPieces, AnswerText};
use super::forced_calls::{ForcedCalls, forced};
use super::template::ChatTemplate;
use super::tools::{ChatTool, ToolCall, ToolChoice};
use crate::error::{Error, Result};
use crate::request::{Finish, Request};
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
    /// Functions that the model may call.
    pub tools: Vec<ChatTool>,
    /// Which of them it calls.
    pub tool_choice: ToolChoice,
    /// Whether an answer ends with the first call of one.
    pub single_tool_call: bool,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatAnswer {
    /// Its text and tokens. What was thought before is no text of it, nor are calls of functions.
    pub outcome: TextOutcome,
    /// What the model thought before, where its template tells that apart; no part of the
    /// conversation.
    pub thought: String,
    /// Functions that the model calls: whoever asked is to call them, and to say what they gave as
    /// messages of the role `tool`.
    pub tool_calls: Vec<ToolCall>,
    /// Tokens of the conversation before it, with the template's.
    pub prompt_tokens: usize,
    /// Of these, those that the KV cache held already: they were not run again.
    pub reused_tokens: usize,
}

impl ChatOptions {
    /// What is generated from a prompt of these tokens, and what tells the parts of the answer
    /// apart: it is to a conversation by this template, or no template's.
    pub(super) fn request(
        &self,
        ids: Vec<u32>,
        template: Option<&ChatTemplate>,
    ) -> Result<(Request, TextOptions, AnswerText)> {
        let request = Request {
            ids,
            max_new_tokens: self.max_new_tokens.unwrap_or(usize::MAX),
            eos: self.eos.clone(),
            sampling: self.sampling,
        };
        let mut parts = template.map_or(AnswerText::Plain, |template| {
            AnswerText::new(template, &self.tools, self.single_tool_call)
        });
        let mut text = self.text.clone();
        let forced = forced(&self.tools, &self.tool_choice, self.single_tool_call)?;
        if let Some(calls) = forced.filter(|_| template.is_some()) {
            (text.constraint, parts) = (Some(calls), AnswerText::Forced(ForcedCalls::default()));
        }
        if text.constraint.is_some() && template.is_some_and(ChatTemplate::has_channels) {
            let reason = "answers of this model are messages in channels, which are no JSON";
            return Err(Error::Constraint { reason: reason.to_owned() });
        }
        match &parts {
            AnswerText::Plain | AnswerText::Forced(_) => {}
            AnswerText::Channels(_) => text.show_special_tokens = true,
            AnswerText::Tools(tools) => text.shown_tokens.extend(tools.tokens()),
        }
        Ok((request, text, parts))
    }
}

impl ChatAnswer {
    /// An answer to a prompt of so many tokens, of which so many were not run.
    pub(super) fn new(
        mut outcome: TextOutcome,
        parts: AnswerText,
        [prompt_tokens, reused_tokens]: [usize; 2],
    ) -> Self {
        if parts.has_ended() {
            outcome.outcome.finish = Finish::Complete;
        }
        let AnswerPieces { thought, text, calls: tool_calls } = parts.into_pieces();
        outcome.text = text.unwrap_or(outcome.text);
        Self { outcome, thought, tool_calls, prompt_tokens, reused_tokens }
    }
}
