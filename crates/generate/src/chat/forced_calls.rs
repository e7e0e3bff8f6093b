//! Answers that have to be calls of functions.

use std::ops::ControlFlow;

use serde_json::{Value, json};

use super::channels::ChatPart;
use super::tool_forms::read_calls;
use super::tool_syntax::ToolForm;
use super::tools::{ChatTool, ToolCall, ToolChoice};
use crate::constraint::JsonConstraint;
use crate::error::{Error, Result};

/// The text of an answer that is calls as JSON, whatever syntax the model has for them.
#[derive(Debug, Default)]
pub(super) struct ForcedCalls {
    text: String,
    /// The calls, once the text is whole.
    pub calls: Vec<ToolCall>,
    /// What was said instead, if the text is none.
    pub answer: String,
}

/// What an answer has to be in which these functions are called; none if it is the model's choice.
/// It is one call, or a list.
///
/// # Errors
/// A function that there is not.
pub(super) fn forced(
    tools: &[ChatTool],
    choice: &ToolChoice,
    is_single: bool,
) -> Result<Option<JsonConstraint>> {
    let refused = |reason: String| Error::ToolChoice { reason };
    let schema = match choice {
        ToolChoice::Auto => return Ok(None),
        ToolChoice::Required if tools.is_empty() => {
            return Err(refused("a call is required and there are no tools".to_owned()));
        }
        ToolChoice::Required => {
            let schema =
                |(at, tool): (usize, &ChatTool)| tool.call_schema(&format!("/items/anyOf/{at}"));
            let calls: Vec<Value> = tools.iter().enumerate().map(schema).collect();
            let mut list = json!({ "type": "array", "items": { "anyOf": calls }, "minItems": 1 });
            if is_single {
                list["maxItems"] = json!(1);
            }
            list
        }
        ToolChoice::Named(name) => match tools.iter().find(|tool| tool.name == *name) {
            Some(tool) => tool.call_schema(""),
            None => return Err(refused(format!("there is no tool {name:?}"))),
        },
    };
    Ok(Some(JsonConstraint::new(schema)))
}

impl ForcedCalls {
    /// Takes more of the text.
    pub fn push(
        &mut self,
        text: &str,
        mut on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.text.push_str(text);
        on_part(ChatPart::Answer(""))
    }

    /// Gives the calls: there is no more text.
    pub fn finish(
        &mut self,
        mut on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match read_calls(&self.text, "", ToolForm::Json, &[]) {
            Ok((calls, _)) => {
                self.calls = calls;
                self.calls.iter().try_for_each(|call| on_part(ChatPart::ToolCall(call)))
            }
            // It was cut.
            Err(_) => {
                self.answer = std::mem::take(&mut self.text);
                on_part(ChatPart::Answer(&self.answer))
            }
        }
    }
}
