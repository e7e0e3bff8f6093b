//! Answers that are several messages, each in a channel: harmony, the format of gpt-oss.
//!
//! ```text
//! <|channel|>analysis<|message|>What is thought.<|end|><|start|>assistant<|channel|>final<|message|>What is said.<|return|>
//! ```

use std::mem;
use std::ops::ControlFlow;

/// What begins and ends messages. Each is a token of its own.
const MARKS: [&str; 6] = [MESSAGE, CHANNEL, "<|start|>", "<|end|>", "<|return|>", "<|call|>"];
const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";

/// How the role that the template began may go on.
const RECIPIENT: &str = " to=";

/// The channel of what is said to the user. What is in others is thought.
const FINAL: &str = "final";

/// A part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatPart<'a> {
    /// Of what a model thinks before it answers, where its template tells that apart.
    Thought(&'a str),
    /// Of what is said.
    Answer(&'a str),
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
}

impl Channels {
    /// Takes more of the text, in which no mark is cut, and gives it in parts: an empty one if there is none.
    pub fn push(
        &mut self,
        text: &str,
        mut on_part: impl FnMut(ChatPart<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (mut rest, mut has_part) = (text, false);
        while !rest.is_empty() {
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
                self.mark(mark);
            }
        }
        if has_part { ControlFlow::Continue(()) } else { on_part(ChatPart::Answer("")) }
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
            // Without a channel it is an answer.
            MESSAGE => match header.rsplit_once(CHANNEL).map(|(_, channel)| channel.trim()) {
                Some(channel) if channel.split_whitespace().next() != Some(FINAL) => {
                    // Messages in thought are apart from each other.
                    if !self.thought.is_empty() {
                        self.thought.push('\n');
                    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is thought and said in pieces of a text.
    fn told<'t>(pieces: impl IntoIterator<Item = &'t str>) -> [String; 2] {
        let (mut channels, mut parts) = (Channels::default(), [String::new(), String::new()]);
        for piece in pieces {
            let flow = channels.push(piece, |part| {
                match part {
                    ChatPart::Thought(text) => parts[0].push_str(text),
                    ChatPart::Answer(text) => parts[1].push_str(text),
                }
                ControlFlow::Continue(())
            });
            assert!(flow.is_continue());
        }
        assert_eq!(channels.answer, parts[1]);
        assert_eq!(channels.thought.replace('\n', ""), parts[0].replace('\n', ""));
        [channels.thought, channels.answer]
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
