//! Calls of functions as models write them.

use std::collections::BTreeMap;

use minijinja::Value;
use serde::Deserialize;
use serde_json::Deserializer;
use serde_json::value::RawValue;

use super::tool_syntax::{ARGS, CALL_ID, CallMarks, DEEPSEEK, KIMI, ToolForm};
use super::tools::{ChatTool, ToolCall};

/// Why a text is no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoCall {
    /// It may become one with more text.
    Incomplete,
    /// It never will, whatever follows.
    Other,
}

/// Calls, and the text behind them.
type Read<'t> = Result<(Vec<ToolCall>, &'t str), NoCall>;

/// Reads the calls in a text that begins with a mark. What it says of a text holds for every longer
/// one, too, unless that is that the text is incomplete.
pub(super) fn read_calls<'t>(
    text: &'t str,
    mark: &str,
    form: ToolForm,
    tools: &[ChatTool],
) -> Read<'t> {
    let rest = &text[mark.len()..];
    match form {
        ToolForm::Json => json(rest, object_call),
        ToolForm::Named => json(rest, named_call),
        ToolForm::Tagged => match expect(rest, &["{", "[", FUNCTION.begin, ""])? {
            (0 | 1, _) => json(rest, object_call),
            (2, _) => parameters(rest.trim_start(), FUNCTION, tools),
            _ => argument_pairs(rest, tools),
        },
        ToolForm::Function => parameters(text, FUNCTION, tools),
        ToolForm::Invoke if mark == INVOKE.begin => parameters(text, INVOKE, tools),
        ToolForm::Invoke => {
            expect(rest, &[INVOKE.begin])?;
            parameters(rest.trim_start(), INVOKE, tools)
        }
        ToolForm::Mistral => mistral(rest),
        ToolForm::DeepSeek => deepseek(text, mark),
        ToolForm::Kimi => kimi(text, mark),
        ToolForm::End => Ok((Vec::new(), rest)),
    }
}

/// Which of several strings a text begins with behind white space, and what is behind that.
fn expect<'t>(text: &'t str, strings: &[&str]) -> Result<(usize, &'t str), NoCall> {
    let text = text.trim_start();
    // With an empty string any other text is right.
    if strings.iter().any(|string| string.len() > text.len() && string.starts_with(text)) {
        return Err(NoCall::Incomplete);
    }
    let found = strings.iter().enumerate().find_map(|(at, s)| Some((at, text.strip_prefix(s)?)));
    found.ok_or(NoCall::Other)
}

/// What is before `end`, where one of `then` follows that, and what is behind `end`.
fn until<'t>(text: &'t str, end: &str, then: &[&str]) -> Result<(&'t str, &'t str), NoCall> {
    for (at, _) in text.match_indices(end) {
        let rest = &text[at + end.len()..];
        match expect(rest, then) {
            Err(NoCall::Other) => {}
            Err(NoCall::Incomplete) => return Err(NoCall::Incomplete),
            Ok(_) => return Ok((&text[..at], rest)),
        }
    }
    Err(NoCall::Incomplete)
}

/// A name: one word, up to one of these characters, and the text from there on.
fn name<'t>(text: &'t str, ends: &[char]) -> Result<(&'t str, &'t str), NoCall> {
    let end = text.find(ends);
    let name = text[..end.unwrap_or(text.len())].trim();
    if name.contains(char::is_whitespace) || end.is_some() && name.is_empty() {
        return Err(NoCall::Other);
    }
    end.map(|end| (name, &text[end..])).ok_or(NoCall::Incomplete)
}

/// A list or an object, and the text behind it.
fn json_text(text: &str) -> Result<(&str, &str), NoCall> {
    expect(text, &["{", "["])?;
    let text = text.trim_start();
    let read = |text| Deserializer::from_str(text).into_iter::<&RawValue>();
    let mut values = read(text);
    let ends = |error: Option<Result<&RawValue, serde_json::Error>>| {
        error.is_none_or(|read| read.is_err_and(|error| error.is_eof()))
    };
    match values.next() {
        Some(Ok(value)) => Ok((value.get(), &text[values.byte_offset()..])),
        // A number that is cut is no number.
        Some(Err(error)) if !error.is_eof() => {
            let whole = text.trim_end_matches(|letter: char| "+-.eE0123456789".contains(letter));
            let is_cut = whole.len() < text.len() && ends(read(whole).next());
            Err(if is_cut { NoCall::Incomplete } else { NoCall::Other })
        }
        _ => Err(NoCall::Incomplete),
    }
}

/// A call, or a list of calls.
fn json(text: &str, call: fn(&str) -> Option<ToolCall>) -> Read<'_> {
    let (found, rest) = json_text(text)?;
    let calls = match found.starts_with('[') {
        true => match serde_json::from_str::<Vec<&RawValue>>(found) {
            Ok(calls) => calls.iter().map(|value| call(value.get())).collect::<Option<Vec<_>>>(),
            Err(_) => None,
        },
        false => call(found).map(|call| vec![call]),
    };
    let calls = calls.filter(|calls| !calls.is_empty()).ok_or(NoCall::Other)?;
    Ok((calls, rest))
}

/// `{"name": …, "arguments": …}`.
fn object_call(json: &str) -> Option<ToolCall> {
    #[derive(Deserialize)]
    struct ObjectCall<'a> {
        #[serde(alias = "tool_name")]
        name: String,
        #[serde(borrow, alias = "parameters")]
        arguments: Option<&'a RawValue>,
        #[serde(alias = "tool_call_id")]
        id: Option<serde_json::Value>,
    }
    let ObjectCall { name, arguments, id } = serde_json::from_str(json).ok()?;
    let id = id.as_ref().and_then(serde_json::Value::as_str);
    let arguments = arguments.map_or("", RawValue::get);
    // Some write the object as a string.
    let text = serde_json::from_str::<String>(arguments);
    (!name.is_empty()).then(|| ToolCall::new(id, &name, text.as_deref().unwrap_or(arguments)))?
}

/// `{NAME: {…}}`.
fn named_call(json: &str) -> Option<ToolCall> {
    let call: BTreeMap<String, &RawValue> = serde_json::from_str(json).ok()?;
    let (name, arguments) = call.first_key_value().filter(|_| call.len() == 1)?;
    ToolCall::new(None, name, arguments.get())
}

/// How elements are written that hold the parameters of a call, each as text.
#[derive(Clone, Copy)]
struct Elements {
    begin: &'static str,
    parameter: &'static str,
    end: &'static str,
}

/// Those of Qwen3-Coder.
const FUNCTION: Elements =
    Elements { begin: "<function=", parameter: "<parameter=", end: "</function>" };

/// Those of MiniMax.
const INVOKE: Elements =
    Elements { begin: "<invoke name=", parameter: "<parameter name=", end: "</invoke>" };

/// A call whose parameters are elements.
fn parameters<'t>(text: &'t str, elements: Elements, tools: &[ChatTool]) -> Read<'t> {
    let Elements { begin, parameter, end } = elements;
    let (called, mut rest) = name(&text[begin.len()..], &['>', '<'])?;
    let called = called.trim_matches('"');
    rest = rest.strip_prefix('>').ok_or(NoCall::Other)?;
    let mut arguments = Arguments::new(called, tools);
    loop {
        let (found, behind) = expect(rest, &[parameter, end])?;
        if found == 1 {
            return Ok((vec![arguments.call()?], behind));
        }
        let (key, value) = name(behind, &['>', '<'])?;
        let value = value.strip_prefix('>').ok_or(NoCall::Other)?;
        let (value, behind) = until(value, "</parameter>", &[parameter, end])?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        arguments.add(key.trim_matches('"'), value.strip_suffix('\n').unwrap_or(value));
        rest = behind;
    }
}

/// `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…</tool_call>`, of GLM.
fn argument_pairs<'t>(text: &'t str, tools: &[ChatTool]) -> Read<'t> {
    const KEY: &str = "<arg_key>";
    const END: &str = "</tool_call>";
    let (called, mut rest) = name(text, &['<'])?;
    let mut arguments = Arguments::new(called, tools);
    loop {
        let (found, behind) = expect(rest, &[KEY, END])?;
        if found == 1 {
            return Ok((vec![arguments.call()?], behind));
        }
        let (key, behind) = until(behind, "</arg_key>", &["<arg_value>"])?;
        let (_, value) = expect(behind, &["<arg_value>"])?;
        let (value, behind) = until(value, "</arg_value>", &[KEY, END])?;
        arguments.add(key.trim(), value);
        rest = behind;
    }
}

/// A list as JSON, or the name and the arguments.
fn mistral(text: &str) -> Read<'_> {
    if let (0, _) = expect(text, &["[", ""])? {
        return json(text, object_call);
    }
    let (called, mut rest) = name(text, &['[', '{'])?;
    let mut id = None;
    while let (found @ (0 | 1), behind) = expect(rest, &[CALL_ID, ARGS, ""])? {
        rest = behind;
        if found == 0 {
            let (found, behind) = name(rest, &['[', '{'])?;
            (id, rest) = (Some(found), behind);
        }
    }
    call_with_json(id, called, rest)
}

/// A call with these arguments.
fn call_with_json<'t>(id: Option<&str>, name: &str, arguments: &'t str) -> Read<'t> {
    let (arguments, rest) = json_text(arguments)?;
    let call = ToolCall::new(id, name, arguments).filter(|_| !name.is_empty());
    Ok((vec![call.ok_or(NoCall::Other)?], rest))
}

/// What is between the marks before the arguments, and what is behind them. The text begins with a
/// mark of one call or of all.
fn marked<'t>(text: &'t str, mark: &str, marks: CallMarks) -> Result<(&'t str, &'t str), NoCall> {
    let mut rest = &text[mark.len()..];
    if mark != marks.begin {
        (_, rest) = expect(rest, &[marks.begin])?;
    }
    let (head, arguments) = until(rest, marks.middle, &[""])?;
    Ok((head.trim(), arguments))
}

fn deepseek<'t>(text: &'t str, mark: &str) -> Read<'t> {
    let (head, rest) = marked(text, mark, DEEPSEEK)?;
    if head != "function" {
        return call_with_json(None, head, rest);
    }
    // Version 3 and R1.
    let (called, fenced) = until(rest, "\n", &[""])?;
    let (_, arguments) = expect(fenced, &["```json"])?;
    let (calls, rest) = call_with_json(None, called.trim(), arguments)?;
    let (_, rest) = expect(rest, &["```"])?;
    Ok((calls, rest))
}

fn kimi<'t>(text: &'t str, mark: &str) -> Read<'t> {
    let (id, rest) = marked(text, mark, KIMI)?;
    let called = id.strip_prefix("functions.").unwrap_or(id);
    let called = called.rsplit_once(':').map_or(called, |(name, _)| name);
    call_with_json(Some(id), called, rest)
}

/// Arguments that are written as text, and become JSON by what the function says of them.
struct Arguments<'a> {
    name: &'a str,
    tool: Option<&'a ChatTool>,
    json: String,
}

impl<'a> Arguments<'a> {
    fn new(name: &'a str, tools: &'a [ChatTool]) -> Self {
        let tool = tools.iter().find(|tool| tool.name == name);
        Self { name, tool, json: String::new() }
    }

    fn add(&mut self, key: &str, text: &str) {
        let schema = self.tool.map(|tool| tool.parameter(key)).unwrap_or_default();
        let value = value_json(text, &schema);
        let comma = if self.json.is_empty() { "" } else { ", " };
        let key = serde_json::Value::from(key);
        self.json.push_str(&format!("{comma}{key}: {value}"));
    }

    fn call(&self) -> Result<ToolCall, NoCall> {
        let call = ToolCall::new(None, self.name, &format!("{{{}}}", self.json));
        call.filter(|_| !self.name.is_empty()).ok_or(NoCall::Other)
    }
}

/// A value as JSON: a string where the schema says so or nothing, and where it is nothing else.
fn value_json(text: &str, schema: &Value) -> String {
    let string = || serde_json::Value::from(text).to_string();
    let kinds = schema.get_attr("type").unwrap_or_default();
    let has = |kind: &str| {
        let is = |value: &Value| value.as_str() == Some(kind);
        is(&kinds) || kinds.try_iter().is_ok_and(|mut kinds| kinds.any(|value| is(&value)))
    };
    let text = text.trim();
    match text {
        _ if schema.is_undefined() => string(),
        "null" if has("null") => "null".to_owned(),
        _ if has("string") => string(),
        // As Python writes them.
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        "None" => "null".to_owned(),
        _ if serde_json::from_str::<serde_json::Value>(text).is_ok() => text.to_owned(),
        _ => string(),
    }
}
