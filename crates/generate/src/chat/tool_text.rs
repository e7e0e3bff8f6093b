//! Tells calls of functions from what is said, in an answer that grows.

use std::ops::ControlFlow;

use super::channels::ChatPart;
use super::tool_forms::{NoCall, read_calls};
use super::tool_syntax::{ToolForm, ToolSyntax};
use super::tools::{ChatTool, ToolCall};

/// An answer that grows. Text that may become a call is held back until it is one or is not; what
/// is not stays text. White space between calls, and between them and text, is theirs.
#[derive(Debug)]
pub(super) struct ToolText {
    syntax: ToolSyntax,
    tools: Vec<ChatTool>,
    /// Whether the first call ends the answer.
    is_single: bool,
    /// What is neither said nor a call yet.
    held: String,
    /// What was said.
    pub answer: String,
    /// The calls so far.
    pub calls: Vec<ToolCall>,
    /// Whether a call was the last that came.
    is_behind_call: bool,
}

/// What becomes of the beginning of the text that is held.
enum Step {
    /// So much is said.
    Say(usize),
    /// So much is these calls.
    Call(Vec<ToolCall>, usize),
    /// More has to come.
    Wait,
}

impl ToolText {
    /// An answer of a model that may call these functions, or only one of them.
    pub fn new(syntax: ToolSyntax, tools: Vec<ChatTool>, is_single: bool) -> Self {
        let (held, answer, calls) = (String::new(), String::new(), Vec::new());
        Self { syntax, tools, is_single, held, answer, calls, is_behind_call: false }
    }

    /// Whether the only call has come: no more text matters.
    pub fn has_ended(&self) -> bool {
        self.is_single && !self.calls.is_empty()
    }

    /// Tokens that have to be part of the text although they are special.
    pub fn tokens(&self) -> impl Iterator<Item = String> {
        self.syntax.tokens()
    }

    /// Takes more of the text and gives what is certain by it: an empty text if that is nothing.
    pub fn push(
        &mut self,
        text: &str,
        mut on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.held.push_str(text);
        self.advance(false, &mut on_part)
    }

    /// Gives the rest: there is no more text.
    pub fn finish(
        &mut self,
        mut on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.advance(true, &mut on_part)
    }

    fn advance(
        &mut self,
        is_end: bool,
        on_part: &mut impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (mut from, mut has_part) = (0, false);
        let mut flow = ControlFlow::Continue(());
        // After a break, too: what is certain is part of the answer.
        while !self.has_ended() {
            match self.step(&self.held[from..], is_end) {
                Step::Wait => break,
                Step::Say(len) => {
                    let text = &self.held[from..][..len];
                    (from, has_part, self.is_behind_call) = (from + len, true, false);
                    self.answer.push_str(text);
                    if flow.is_continue() {
                        flow = on_part(ChatPart::Answer(text));
                    }
                }
                Step::Call(mut calls, len) => {
                    calls.truncate(if self.is_single { 1 } else { usize::MAX });
                    (from, has_part) = (from + len, has_part || !calls.is_empty());
                    self.is_behind_call = true;
                    for call in &calls {
                        if flow.is_continue() {
                            flow = on_part(ChatPart::ToolCall(call));
                        }
                    }
                    self.calls.extend(calls);
                }
            }
        }
        self.held.drain(..from);
        if has_part { flow } else { on_part(ChatPart::Answer("")) }
    }

    /// What becomes of the beginning of `text`. It is the same for every longer text, unless it is
    /// to wait.
    fn step(&self, text: &str, is_end: bool) -> Step {
        if text.is_empty() {
            return Step::Wait;
        }
        if self.syntax.is_bare && self.answer.is_empty() {
            // Calls without a mark are apart by semicolons.
            let is_apart =
                |letter: char| letter.is_whitespace() || self.is_behind_call && letter == ';';
            let object = text.trim_start_matches(is_apart);
            if object.starts_with('{') {
                match self.bare_calls(object) {
                    Ok((calls, rest)) => return Step::Call(calls, text.len() - rest.len()),
                    Err(NoCall::Incomplete) if !is_end => return Step::Wait,
                    Err(_) => return Step::Say(text.len() - object.len() + 1),
                }
            }
            if object.is_empty() && !is_end {
                return Step::Wait;
            }
        }
        let marks = self.syntax.marks.iter();
        let found = marks.filter_map(|(mark, form)| Some((text.find(mark)?, *mark, *form)));
        let found = found.min_by_key(|(at, ..)| *at);
        let said = |end: usize| text[..end].trim_end().len();
        let Some((at, mark, form)) = found else {
            let end = if is_end { text.len() } else { text.len() - self.begun(text) };
            return match said(end) {
                // White space behind calls is theirs.
                0 if is_end && self.is_behind_call => Step::Call(Vec::new(), text.len()),
                0 if !is_end => Step::Wait,
                _ if is_end => Step::Say(text.len()),
                len => Step::Say(len),
            };
        };
        if said(at) > 0 {
            return Step::Say(said(at));
        }
        let read = match form {
            ToolForm::End if !self.is_behind_call => Err(NoCall::Other),
            form => read_calls(&text[at..], mark, form, &self.tools),
        };
        match read {
            Ok((calls, rest)) => Step::Call(calls, text.len() - rest.len()),
            Err(NoCall::Incomplete) if !is_end => Step::Wait,
            Err(_) => Step::Say(at + mark.len()),
        }
    }

    /// Calls without a mark. Other objects may be meant for the user: only functions that there are
    /// count.
    fn bare_calls<'t>(&self, text: &'t str) -> Result<(Vec<ToolCall>, &'t str), NoCall> {
        let (calls, rest) = read_calls(text, "", ToolForm::Json, &self.tools)?;
        let is_known = |call: &ToolCall| self.tools.iter().any(|tool| tool.name == call.name);
        match calls.iter().all(is_known) {
            true => Ok((calls, rest)),
            false => Err(NoCall::Other),
        }
    }

    /// The bytes at the end of a text that a mark may begin with.
    fn begun(&self, text: &str) -> usize {
        let begun = |mark: &str| {
            let ends = mark.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|end| text.ends_with(&mark[..*end])).max().unwrap_or(0)
        };
        self.syntax.marks.iter().map(|(mark, _)| begun(mark)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
