//! Tells calls of functions from what is said, in an answer that grows.

use std::ops::ControlFlow;

use super::channels::ChatPart;
use super::tool_forms::{NoCall, read_calls};
use super::tool_syntax::{ToolForm, ToolSyntax};
use super::tools::{ChatTool, ToolCall};

/// An answer that grows. Text that may become a call is held back until it is one or is not; what is not stays text. White space
/// between calls, and between them and text, is theirs.
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

    /// What becomes of the beginning of `text`. It is the same for every longer text, unless it is to wait.
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

    /// Calls without a mark. Other objects may be meant for the user: only functions that there are count.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is said, and the calls with their arguments, in pieces of a text.
    fn told<'t>(
        template: &str,
        pieces: impl IntoIterator<Item = &'t str>,
    ) -> (String, Vec<[String; 2]>) {
        let tools = r#"[{"type": "function", "function": {"name": "f", "parameters": {"properties": {
            "n": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": ["string", "null"]}}}}},
            {"type": "function", "function": {"name": "g"}}]"#;
        let tools: Vec<ChatTool> = serde_json::from_str(tools).unwrap();
        let mut text = ToolText::new(ToolSyntax::of_template(template), tools, false);
        let (mut said, mut calls) = (String::new(), Vec::new());
        let mut take = |part: ChatPart<'_>| {
            match part {
                ChatPart::Answer(text) => said.push_str(text),
                ChatPart::ToolCall(call) => {
                    assert!(!call.id.is_empty());
                    calls.push([call.name.clone(), call.arguments.clone()]);
                }
                ChatPart::Thought(_) => panic!("nothing is thought"),
            }
            ControlFlow::Continue(())
        };
        for piece in pieces {
            assert!(text.push(piece, &mut take).is_continue());
        }
        assert!(text.finish(&mut take).is_continue());
        assert_eq!((&text.answer, text.calls.len()), (&said, calls.len()));
        (said, calls)
    }

    const DEEPSEEK: &str = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    const KIMI: &str = "<|tool_calls_section_begin|><|tool_call_begin|><|tool_call_end|><|tool_calls_section_end|>";
    const LLAMA: &str = "<|start_header_id|> \"parameters\": <|python_tag|>";
    const TAGGED: &str = "<tool_call></tool_call><function=";
    const MINIMAX: &str = "<minimax:tool_call><invoke name=</minimax:tool_call>";

    /// Templates by their marks, answers, what is said and what is called.
    type Case = (&'static str, &'static str, &'static str, &'static [[&'static str; 2]]);
    const CASES: &[Case] = &[
        (TAGGED, " Plain <text>\n", " Plain <text>\n", &[]),
        (
            TAGGED,
            "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1.50, \"s\": \"</tool_call>\"}}\n</tool_call>\n\
             <tool_call>\n{\"name\": \"h\"}\n</tool_call>\n",
            "Let me see.",
            &[["f", "{\"n\": 1.50, \"s\": \"</tool_call>\"}"], ["h", "{}"]],
        ),
        (
            TAGGED,
            "<tool_call>{\"name\": \"g\", \"arguments\": \"{\\\"a\\\": 1}\"}",
            "",
            &[["g", "{\"a\": 1}"]],
        ),
        (
            TAGGED,
            "<tool_call>\n{\"name\": \"f\", \"argu",
            "<tool_call>\n{\"name\": \"f\", \"argu",
            &[],
        ),
        (
            TAGGED,
            "a <tool_call>{]</tool_call> <tool_call>{\"name\": \"g\"}</tool_call> b",
            "a <tool_call>{]</tool_call> b",
            &[["g", "{}"]],
        ),
        (
            TAGGED,
            "<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>\n<parameter=s>\n5\n\n</parameter>x\n</parameter>\n\
             <parameter=o>\nnull\n</parameter>\n</function>\n</tool_call>",
            "",
            &[["f", "{\"n\": 5, \"s\": \"5\\n\\n</parameter>x\", \"o\": null}"]],
        ),
        (TAGGED, "<function=g>\n</function>\n</tool_call>", "", &[["g", "{}"]]),
        (TAGGED, "<function=g>\n<parameter=a>", "<function=g>\n<parameter=a>", &[]),
        (
            TAGGED,
            "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>[1, 2]</arg_value>\n<arg_key>s</arg_key>\n<arg_value>[1]</arg_value>\n\
             </tool_call>\n<tool_call>g\n</tool_call>",
            "",
            &[["f", "{\"n\": [1, 2], \"s\": \"[1]\"}"], ["g", "{}"]],
        ),
        (TAGGED, "<tool_call>is a mark", "<tool_call>is a mark", &[]),
        (TAGGED, "</tool_call> alone", "</tool_call> alone", &[]),
        (
            MINIMAX,
            "Well.\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"n\">7</parameter>\n</invoke>\n\
             <invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
            "Well.",
            &[["f", "{\"n\": 7}"], ["g", "{}"]],
        ),
        (
            "[TOOL_CALLS]",
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"abcdefghi\"}, {\"name\": \"g\", \"arguments\": {}}]",
            "",
            &[["f", "{\"n\": 1}"], ["g", "{}"]],
        ),
        (
            "[TOOL_CALLS]",
            "Hm[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]g[CALL_ID]x1[ARGS]{}[TOOL_CALLS]g{\"a\": []}",
            "Hm",
            &[["f", "{\"n\": 1}"], ["g", "{}"], ["g", "{\"a\": []}"]],
        ),
        ("[TOOL_CALLS]", "[TOOL_CALLS]not a call", "[TOOL_CALLS]not a call", &[]),
        (
            "<|tool_call|>",
            "<|tool_call|>[{\"name\": \"g\", \"arguments\": {}}]<|/tool_call|>",
            "",
            &[["g", "{}"]],
        ),
        ("<|tools_prefix|>", "<|tools_prefix|>[{\"f\": {\"n\": 1}}]", "", &[["f", "{\"n\": 1}"]]),
        (
            "<|START_ACTION|><|END_ACTION|>",
            "<|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"n\": 1}}\n]<|END_ACTION|>",
            "",
            &[["f", "{\"n\": 1}"]],
        ),
        (LLAMA, "{\"name\": \"f\", \"parameters\": {\"n\": 1}}", "", &[["f", "{\"n\": 1}"]]),
        (LLAMA, "<|python_tag|>{\"name\": \"h\", \"parameters\": {}}", "", &[["h", "{}"]]),
        (
            LLAMA,
            "\n{\"name\": \"f\", \"parameters\": {}}; {\"type\": \"function\", \"name\": \"g\", \"parameters\": {}}",
            "",
            &[["f", "{}"], ["g", "{}"]],
        ),
        (LLAMA, "{\"name\": \"Ada\", \"born\": 1815}", "{\"name\": \"Ada\", \"born\": 1815}", &[]),
        (
            LLAMA,
            "So: {\"name\": \"f\", \"parameters\": {}}",
            "So: {\"name\": \"f\", \"parameters\": {}}",
            &[],
        ),
        (
            DEEPSEEK,
            "Ok\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 1}\n```<｜tool▁call▁end｜>\n\
             <｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "Ok",
            &[["f", "{\"n\": 1}"], ["g", "{}"]],
        ),
        (
            KIMI,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_end|>\
             <|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            "",
            &[["f", "{\"n\": 1}"], ["g", "{}"]],
        ),
    ];

    #[test]
    fn calls_are_told_from_what_is_said() {
        for (template, text, said, calls) in CASES {
            let (found, found_calls) = told(template, [*text]);
            assert_eq!(
                (&*found, found_calls.as_slice()),
                (*said, &*calls.iter().map(|call| call.map(str::to_owned)).collect::<Vec<_>>()),
                "{text}"
            );
        }
    }

    #[test]
    fn one_call_ends_an_answer_that_may_have_one() {
        let mut text = ToolText::new(ToolSyntax::of_template("[TOOL_CALLS]"), Vec::new(), true);
        let go_on = |_: ChatPart<'_>| ControlFlow::Continue(());
        let _ = text.push("a [TOOL_CALLS][{\"name\": \"f\"}, {\"name\": \"g\"}] b", go_on);
        let _ = text.finish(go_on);
        assert!(text.has_ended());
        assert_eq!((&*text.answer, text.calls.len(), &*text.calls[0].name), ("a", 1, "f"));
    }

    /// Marks and what may be around them.
    fn fragment() -> impl Strategy<Value = String> {
        const OTHERS: &[&str] = &[
            "{",
            "}",
            "[",
            "]",
            "\"",
            ":",
            ",",
            ";",
            " ",
            "\n",
            "f",
            "g",
            "x",
            "1",
            "é",
            "\\",
            "<",
            ">",
            "functions.f:0",
            "function",
            "{\"name\": \"f\", \"arguments\": {\"n\": 1}}",
            "{\"name\": \"f\", \"parameters\": {}}",
            "{}",
            "\n```json\n",
            "```",
            "f\n",
            "<parameter=n>",
            "</parameter>",
            "</function>",
            "f>",
            "</invoke>",
            "\"f\">",
            "<parameter name=\"n\">",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
            "[ARGS]",
            "[CALL_ID]",
            "<｜tool▁sep｜>",
            "<|tool_call_argument_begin|>",
            "</tool_call>",
        ];
        let marks: Vec<String> =
            ToolSyntax::of_template(ALL).marks.iter().map(|(mark, _)| (*mark).to_owned()).collect();
        let others: Vec<String> = OTHERS.iter().map(|text| (*text).to_owned()).collect();
        prop_oneof![prop::sample::select(marks), prop::sample::select(others)]
    }

    /// A template with every mark.
    const ALL: &str = concat!(
        "<tool_call></tool_call><function=<minimax:tool_call></minimax:tool_call><invoke name=[TOOL_CALLS]<|tool_call|>",
        "<|tools_prefix|><|tools_suffix|><|START_ACTION|><|END_ACTION|><|python_tag|><｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜><｜tool▁call▁end｜><｜tool▁calls▁end｜><|tool_calls_section_begin|><|tool_call_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>header \"parameters\": ",
    );

    /// Cuts a text after some of its characters.
    fn cut<'t>(text: &'t str, cuts: &[bool]) -> Vec<&'t str> {
        let (mut pieces, mut from) = (Vec::new(), 0);
        for ((at, _), cut) in text.char_indices().zip(cuts.iter().cycle()) {
            if *cut {
                pieces.push(&text[from..at]);
                from = at;
            }
        }
        pieces.push(&text[from..]);
        pieces
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// However an answer is cut, its parts are the same, and nothing is lost of what is no call.
        #[test]
        fn pieces_do_not_matter(
            fragments in prop::collection::vec(fragment(), 0..24),
            cuts in prop::collection::vec(any::<bool>(), 1..40),
        ) {
            let text = fragments.concat();
            let whole = told(ALL, [&*text]);
            prop_assert_eq!(&told(ALL, cut(&text, &cuts)), &whole);
            prop_assert_eq!(&told(ALL, cut(&text, &[true])), &whole);
            match whole.1.is_empty() {
                true => prop_assert_eq!(&whole.0, &text),
                false => {
                    let mut rest = text.chars();
                    prop_assert!(whole.0.chars().all(|letter| rest.any(|other| other == letter)));
                }
            }
        }

        /// The same of answers with calls in them.
        #[test]
        fn pieces_of_calls_do_not_matter(
            cases in prop::collection::vec(0..CASES.len(), 1..4),
            cuts in prop::collection::vec(any::<bool>(), 1..40),
        ) {
            let text: String = cases.iter().map(|case| CASES[*case].1).collect();
            let whole = told(ALL, [&*text]);
            prop_assert_eq!(&told(ALL, cut(&text, &cuts)), &whole);
            prop_assert_eq!(&told(ALL, cut(&text, &[true])), &whole);
        }
    }
}
