//! Answers that are several messages, each in a channel: harmony, the format of gpt-oss.
//!
//! ```text
//! <|channel|>analysis<|message|>What is thought.<|end|><|start|>assistant<|channel|>final<|message|>What is said.<|return|>
//! ```

use std::mem;
use std::ops::ControlFlow;

use super::tools::ToolCall;

/// What begins and ends messages. Each is a token of its own.
const MARKS: [&str; 6] = [MESSAGE, CHANNEL, "<|start|>", "<|end|>", "<|return|>", "<|call|>"];
const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";

/// How the role that the template began may go on.
const RECIPIENT: &str = " to=";

/// Who the message of a call is for, before the function's name.
const FUNCTIONS: &str = " to=functions.";

/// The channel of what is said to the user. What is in others is thought.
const FINAL: &str = "final";

/// A part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatPart<'a> {
    /// Of what a model thinks before it answers, where its template tells that apart.
    Thought(&'a str),
    /// Of what is said.
    Answer(&'a str),
    /// A function is called.
    ToolCall(&'a ToolCall),
}

/// Whether a chat template is of this format.
pub(super) fn has_channels(template: &str) -> bool {
    [CHANNEL, MESSAGE].iter().all(|mark| template.contains(mark))
}

/// Tells what is thought from what is said, of a text that grows and has its special tokens in it.
#[derive(Debug, Default)]
pub(super) struct Channels {
    place: Place,
    /// The text of a header so far.
    header: String,
    /// What was thought.
    pub thought: String,
    /// What was said.
    pub answer: String,
    /// Whether messages to functions are calls; else they are thought.
    has_tools: bool,
    /// Whether the first call ends the answer.
    is_single: bool,
    /// The function that is called now, and the arguments so far.
    call: Option<(String, String)>,
    /// The calls so far.
    pub calls: Vec<ToolCall>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing came: the template has begun a message.
    #[default]
    Beginning,
    /// Between the marks before a message.
    Header,
    Thought,
    Answer,
    Call,
}

impl Channels {
    /// An answer of which nothing came, of a model that may call functions or not, and only one of
    /// them.
    pub fn new(has_tools: bool, is_single: bool) -> Self {
        Self { has_tools, is_single, ..Self::default() }
    }

    /// Whether the only call has come: no more text matters.
    pub fn has_ended(&self) -> bool {
        self.is_single && !self.calls.is_empty()
    }

    /// Takes more of the text, in which no mark is cut, and gives it in parts: an empty one if
    /// there is none.
    pub fn push(
        &mut self,
        text: &str,
        mut on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (mut rest, mut has_part) = (text, false);
        while !rest.is_empty() && !self.has_ended() {
            let found = MARKS.iter().filter_map(|mark| Some((rest.find(mark)?, *mark))).min();
            let (before, mark) = match found {
                Some((at, mark)) => (&rest[..at], Some(mark)),
                None => (rest, None),
            };
            rest = &rest[before.len() + mark.map_or(0, str::len)..];
            if let Some(flow) = self.text(before, &mut on_part) {
                has_part = true;
                flow?;
            }
            if let Some(mark) = mark {
                if let Some(flow) = self.end_call(&mut on_part) {
                    has_part = true;
                    flow?;
                }
                self.mark(mark);
            }
        }
        if has_part { ControlFlow::Continue(()) } else { on_part(ChatPart::Answer("")) }
    }

    /// Gives the rest: there is no more text.
    pub fn finish(
        &mut self,
        mut on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.end_call(&mut on_part).unwrap_or(ControlFlow::Continue(()))
    }

    /// Ends a call, if one is on its way. One without proper arguments is thought.
    fn end_call(
        &mut self,
        on_part: &mut impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> Option<ControlFlow<()>> {
        let (name, arguments) = self.call.take()?;
        if let Some(call) = ToolCall::new(None, &name, &arguments) {
            let flow = on_part(ChatPart::ToolCall(&call));
            self.calls.push(call);
            return Some(flow);
        }
        self.begin_thought();
        self.text(&arguments, on_part)
    }

    /// Messages in thought are apart from each other.
    fn begin_thought(&mut self) {
        self.place = Place::Thought;
        if !self.thought.is_empty() {
            self.thought.push('\n');
        }
    }

    fn text(
        &mut self,
        text: &str,
        on_part: &mut impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> Option<ControlFlow<()>> {
        if text.is_empty() {
            return None;
        }
        if self.place == Place::Thought {
            self.thought.push_str(text);
            return Some(on_part(ChatPart::Thought(text)));
        }
        if self.place == Place::Answer {
            self.answer.push_str(text);
            return Some(on_part(ChatPart::Answer(text)));
        }
        if let Some((_, arguments)) = &mut self.call {
            arguments.push_str(text);
            return None;
        }
        self.header.push_str(text);
        let is_beginning = self.place == Place::Beginning;
        if is_beginning && self.header.starts_with(RECIPIENT) {
            self.place = Place::Header;
        } else if is_beginning && !RECIPIENT.starts_with(&self.header) {
            // A model that knows no channels just answers.
            (self.place, self.answer) = (Place::Answer, mem::take(&mut self.header));
            return Some(on_part(ChatPart::Answer(&self.answer)));
        }
        None
    }

    fn mark(&mut self, mark: &str) {
        let header = mem::take(&mut self.header);
        self.place = match mark {
            MESSAGE
                if self.has_tools
                    && let Some(name) = function(&header) =>
            {
                self.call = Some((name.to_owned(), String::new()));
                Place::Call
            }
            // Without a channel it is an answer.
            MESSAGE => match header.rsplit_once(CHANNEL).map(|(_, channel)| channel.trim()) {
                Some(channel) if channel.split_whitespace().next() != Some(FINAL) => {
                    self.begin_thought();
                    Place::Thought
                }
                _ => Place::Answer,
            },
            CHANNEL => {
                self.header = header + CHANNEL;
                Place::Header
            }
            _ => Place::Header,
        };
    }
}

/// The function that a message with this header is for.
fn function(header: &str) -> Option<&str> {
    let (_, name) = header.split_once(FUNCTIONS)?;
    let name =
        name.split(|character: char| character.is_whitespace() || character == '<').next()?;
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is thought and said in pieces of a text.
    fn told<'t>(pieces: impl IntoIterator<Item = &'t str>) -> [String; 2] {
        told_with(false, pieces).0
    }

    /// The same, and the calls.
    fn told_with<'t>(
        has_tools: bool,
        pieces: impl IntoIterator<Item = &'t str>,
    ) -> ([String; 2], Vec<(String, String)>) {
        let (mut channels, mut parts) =
            (Channels::new(has_tools, false), [String::new(), String::new()]);
        let mut calls = Vec::new();
        let mut take = |part: ChatPart<'_>| {
            match part {
                ChatPart::Thought(text) => parts[0].push_str(text),
                ChatPart::Answer(text) => parts[1].push_str(text),
                ChatPart::ToolCall(call) => {
                    calls.push((call.name.clone(), call.arguments.clone()));
                }
            }
            ControlFlow::Continue(())
        };
        for piece in pieces {
            assert!(channels.push(piece, &mut take).is_continue());
        }
        assert!(channels.finish(&mut take).is_continue());
        assert_eq!(channels.calls.len(), calls.len());
        assert_eq!(channels.answer, parts[1]);
        assert_eq!(channels.thought.replace('\n', ""), parts[0].replace('\n', ""));
        ([channels.thought, channels.answer], calls)
    }

    const ANSWERS: [(&str, &str, &str); 8] = [
        ("<|channel|>final<|message|>Seven.<|return|>", "", "Seven."),
        (
            "<|channel|>analysis<|message|>Hm, <b>?<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            "Hm, <b>?",
            "Yes.",
        ),
        (
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>",
            "a\nb",
            "",
        ),
        (" to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>", "{}", ""),
        ("<|message|>No channel<|end|>", "", "No channel"),
        ("Just an answer, <|endoftext|>", "", "Just an answer, <|endoftext|>"),
        ("<|channel|>analysis<|message|>cut off", "cut off", ""),
        ("<|channel|>final <|constrain|>json<|message|>{}", "", "{}"),
    ];

    #[test]
    fn what_is_thought_is_told_from_what_is_said() {
        for (text, thought, answer) in ANSWERS {
            assert_eq!(told([text]), [thought, answer], "{text}");
        }
    }

    #[test]
    fn messages_to_functions_are_calls() {
        for (text, thought, calls) in [
            (
                "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions.f \
                 <|constrain|>json<|message|>{\"a\": 1}<|call|>",
                "Hm",
                &[("f", "{\"a\": 1}")][..],
            ),
            (" to=functions.g<|channel|>commentary json<|message|>{}", "", &[("g", "{}")]),
            (
                "<|channel|>commentary to=functions.f<|message|>{}<|end|><|start|>assistant to=functions.g<|channel|>\
                 commentary<|message|>{\"b\":2}",
                "",
                &[("f", "{}"), ("g", "{\"b\":2}")],
            ),
            ("<|channel|>commentary to=functions.f<|message|>[1<|call|>", "[1", &[]),
            ("<|channel|>analysis to=browser.open<|message|>{}<|call|>", "{}", &[]),
        ] {
            let (parts, found) = told_with(true, [text]);
            let found: Vec<_> = found.iter().map(|(name, json)| (&**name, &**json)).collect();
            assert_eq!((parts, &*found), ([thought.to_owned(), String::new()], calls), "{text}");
        }
    }

    proptest! {
        /// However tokens come, as long as none is cut.
        #[test]
        fn pieces_do_not_matter(answer in 0..ANSWERS.len(), joined in prop::collection::vec(any::<bool>(), 200)) {
            let text = ANSWERS[answer].0;
            let (mut pieces, mut at) = (Vec::<&str>::new(), 0);
            let mut joined = joined.into_iter();
            while at < text.len() {
                let mark = MARKS.iter().find(|mark| text[at..].starts_with(**mark));
                let end = at + mark.map_or(1, |mark| mark.len());
                match pieces.last_mut() {
                    Some(last) if joined.next() == Some(true) => *last = &text[at - last.len()..end],
                    _ => pieces.push(&text[at..end]),
                }
                at = end;
            }
            prop_assert_eq!(told(pieces), [ANSWERS[answer].1, ANSWERS[answer].2]);
        }
    }
}
