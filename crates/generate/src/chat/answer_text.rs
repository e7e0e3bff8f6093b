//! The text of an answer in its parts.

use std::ops::ControlFlow;

use super::channels::{Channels, ChatPart};
use super::forced_calls::ForcedCalls;
use super::template::ChatTemplate;
use super::tool_text::ToolText;
use super::tools::{ChatTool, ToolCall};

/// What tells the parts of an answer apart.
#[derive(Debug)]
pub(super) enum AnswerText {
    /// All of it is said.
    Plain,
    /// Messages in channels.
    Channels(Channels),
    /// Text with calls in it.
    Tools(ToolText),
    /// Calls alone.
    Forced(ForcedCalls),
}

/// What came beside the text, and the text where it is not all of it.
#[derive(Debug, Default)]
pub(super) struct AnswerPieces {
    pub thought: String,
    pub text: Option<String>,
    pub calls: Vec<ToolCall>,
}

impl AnswerText {
    /// An answer to a conversation by this template, in which these functions may be called, or one
    /// of them.
    pub fn new(template: &ChatTemplate, tools: &[ChatTool], is_single: bool) -> Self {
        let syntax = template.tool_syntax();
        match (template.has_channels(), tools) {
            (true, tools) => Self::Channels(Channels::new(!tools.is_empty(), is_single)),
            (false, []) => Self::Plain,
            (false, _) if syntax.is_empty() => Self::Plain,
            (false, tools) => Self::Tools(ToolText::new(syntax, tools.to_vec(), is_single)),
        }
    }

    /// Takes more of the text, in which no mark of a channel is cut, and gives it in parts: an
    /// empty one if there is none. Breaks if `on_part` does, or the answer [has
    /// ended](Self::has_ended).
    pub fn push(
        &mut self,
        text: &str,
        mut on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let flow = match self {
            Self::Plain => on_part(ChatPart::Answer(text)),
            Self::Channels(channels) => channels.push(text, on_part),
            Self::Tools(tools) => tools.push(text, on_part),
            Self::Forced(calls) => calls.push(text, on_part),
        };
        if self.has_ended() { ControlFlow::Break(()) } else { flow }
    }

    /// Whether the answer has ended with a call, whatever text may follow.
    pub fn has_ended(&self) -> bool {
        match self {
            Self::Plain | Self::Forced(_) => false,
            Self::Channels(channels) => channels.has_ended(),
            Self::Tools(tools) => tools.has_ended(),
        }
    }

    /// Gives the rest: there is no more text.
    pub fn finish(
        &mut self,
        on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Self::Plain => ControlFlow::Continue(()),
            Self::Channels(channels) => channels.finish(on_part),
            Self::Tools(text) => text.finish(on_part),
            Self::Forced(calls) => calls.finish(on_part),
        }
    }

    /// What there was.
    pub fn into_pieces(self) -> AnswerPieces {
        match self {
            Self::Plain => AnswerPieces::default(),
            Self::Channels(Channels { thought, answer, calls, .. }) => {
                AnswerPieces { thought, text: Some(answer), calls }
            }
            Self::Tools(ToolText { answer, calls, .. })
            | Self::Forced(ForcedCalls { answer, calls, .. }) => {
                AnswerPieces { thought: String::new(), text: Some(answer), calls }
            }
        }
    }
}
