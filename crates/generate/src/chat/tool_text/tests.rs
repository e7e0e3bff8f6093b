//! Calls among text, in pieces.

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
const KIMI: &str =
    "<|tool_calls_section_begin|><|tool_call_begin|><|tool_call_end|><|tool_calls_section_end|>";
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
    (TAGGED, "<tool_call>\n{\"name\": \"f\", \"argu", "<tool_call>\n{\"name\": \"f\", \"argu", &[]),
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
