//! Chat templates: Jinja as transformers renders it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Zoned;
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, ErrorKind, State, Value, escape_formatter};

use super::channels::has_channels;
use super::fuel::{charge, method};
use super::message::ChatMessage;
use super::python_json::tojson;
use super::tool_syntax::ToolSyntax;
use super::tools::{ChatTool, ToolCall};
use crate::error::{Error, Result};

/// The fuel of a rendering beside that for its messages: an instruction takes one, and so do 64
/// bytes that are made.
const FUEL: u64 = 100_000;

/// The fuel for each byte of the messages: the template may make each of them anew some 64 times.
const FUEL_PER_BYTE: u64 = 1;

/// The name of the template within its environment.
const NAME: &str = "chat";

/// The longest template, in bytes. Real ones have at most 20 kB.
const LONGEST: usize = 64 << 10;

/// Room for the recursion of a parser in a chain of as many operators as such a template can have.
/// A real template uses some kilobytes of it.
const STACK: usize = 256 << 20;

/// A chat template: makes the text of a prompt of the messages of a conversation, as transformers'
/// `apply_chat_template` does.
///
/// The language is Jinja with transformers' settings and additions: blocks trimmed, loop controls,
/// `tojson`, `raise_exception`, `strftime_now`, methods of Python's strings and dicts, and
/// `{% generation %}`, which changes nothing here. A template is untrusted input: what one
/// rendering may compute and hold is bounded (about 6 MB and 64 times the messages), and it can
/// reach no file.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    path: PathBuf,
    /// `bos_token` and the like, and their texts.
    tokens: BTreeMap<String, String>,
    flags: BTreeMap<&'static str, bool>,
}

impl ChatTemplate {
    /// A template of a model with these special tokens, such as `bos_token`. Messages name `path`
    /// for it.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] if it is not Jinja, not of the kind that is built in, or longer than
    /// 64 KiB.
    pub fn new(
        path: impl Into<PathBuf>,
        source: &str,
        tokens: BTreeMap<String, String>,
    ) -> Result<Self> {
        let template = Self {
            source: without_generation(source),
            path: path.into(),
            tokens,
            flags: BTreeMap::new(),
        };
        if source.len() > LONGEST {
            return Err(template.refused(&format!(
                "it is longer than {LONGEST} bytes, which no chat template should be"
            )));
        }
        template.with_stack(|| compiled(&template.source).map(drop))?;
        Ok(template)
    }

    /// The same told that `name`, which some templates look at, is so, such as `enable_thinking`.
    pub fn with_flag(mut self, name: &'static str, value: bool) -> Self {
        self.flags.insert(name, value);
        self
    }

    /// The file that it is of.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether answers are messages in channels, of which one is what is said.
    pub(super) fn has_channels(&self) -> bool {
        has_channels(&self.source)
    }

    /// The marks that the model puts around calls of functions.
    pub(super) fn tool_syntax(&self) -> ToolSyntax {
        ToolSyntax::of_template(&self.source)
    }

    /// The text of `messages`, and behind them, with `add_generation_prompt`, what an answer begins
    /// with.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`], if it refuses the messages or asks for too much.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String> {
        self.render_with(messages, &[], add_generation_prompt)
    }

    /// The same with functions that the model may call.
    ///
    /// # Errors
    /// As [`render`](Self::render), and [`Error::NoTools`] if the template has no place for
    /// functions.
    pub fn render_with(
        &self,
        messages: &[ChatMessage],
        tools: &[ChatTool],
        add_generation_prompt: bool,
    ) -> Result<String> {
        self.render_at(messages, tools, add_generation_prompt, &Zoned::now())
    }

    /// The same at another time, which some templates write down.
    ///
    /// # Errors
    /// As [`render_with`](Self::render_with).
    pub fn render_at(
        &self,
        messages: &[ChatMessage],
        tools: &[ChatTool],
        add_generation_prompt: bool,
        now: &Zoned,
    ) -> Result<String> {
        if !tools.is_empty() && !self.source.contains("tools") {
            return Err(Error::NoTools { path: self.path.clone() });
        }
        self.with_stack(|| {
            let mut environment = compiled(&self.source)?;
            let now = now.clone();
            environment.add_function("strftime_now", move |format: &str| {
                let text = jiff::fmt::strtime::format(format, &now);
                text.map_err(|error| invalid(error.to_string()))
            });
            let bytes =
                messages.iter().map(ChatMessage::len).chain(tools.iter().map(|tool| tool.len));
            let bytes = bytes.sum::<usize>() as u64;
            environment.set_fuel(Some(FUEL.saturating_add(bytes.saturating_mul(FUEL_PER_BYTE))));
            let tokens =
                self.tokens.iter().map(|(name, token)| (name.as_str(), Value::from(token)));
            let flags = self.flags.iter().map(|(name, flag)| (*name, Value::from(*flag)));
            let tells_null = tells_null_content(&self.source);
            let messages = messages.iter().map(|said| message(said, tells_null));
            let messages: Vec<Value> = messages.collect();
            let tools = match tools {
                [] => Value::from(()),
                tools => tools.iter().map(|tool| tool.definition.clone()).collect(),
            };
            let context = tokens.chain(flags).chain([
                ("messages", Value::from(messages)),
                ("tools", tools),
                ("documents", Value::from(())),
                ("add_generation_prompt", Value::from(add_generation_prompt)),
            ]);
            environment.get_template(NAME)?.render(Value::from_pairs(context))
        })
    }

    /// Does something with the engine where there is enough stack for it.
    fn with_stack<T: Send>(
        &self,
        call: impl FnOnce() -> Result<T, minijinja::Error> + Send,
    ) -> Result<T> {
        let done = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .stack_size(STACK)
                .spawn_scoped(scope, || call().map_err(|error| self.engine_error(&error)));
            match thread {
                Ok(thread) => thread.join().map_err(|_| self.refused("the template engine failed")),
                Err(error) => {
                    Err(self.refused(&format!("no thread can be started for it: {error}")))
                }
            }
        });
        done?
    }

    fn engine_error(&self, error: &minijinja::Error) -> Error {
        let reason = match (error.kind(), error.detail()) {
            (ErrorKind::OutOfFuel, _) => "it computes too much".to_owned(),
            (_, Some(detail)) => outsize_checkpoint::shown(detail, 400),
            (kind, None) => kind.to_string(),
        };
        let line = error.line().map(|line| format!(", line {line}")).unwrap_or_default();
        Error::ChatTemplate { path: self.path.clone(), line, reason }
    }

    fn refused(&self, reason: &str) -> Error {
        let (path, reason) = (self.path.clone(), reason.to_owned());
        Error::ChatTemplate { path, line: String::new(), reason }
    }
}

/// The engine with transformers' settings and additions, and the template.
fn compiled(source: &str) -> Result<Environment<'_>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| {
        charge(state, value)?;
        escape_formatter(out, state, value)
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |state: &State<'_, '_>, value: &Value| {
        charge(state, value)?;
        Ok::<_, minijinja::Error>(value.to_string())
    });
    // To Python, nothing is no list.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment
        .add_function("raise_exception", |message: String| Err::<Value, _>(invalid(message)));
    environment.add_template(NAME, source)?;
    Ok(environment)
}

fn invalid(reason: String) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, reason)
}

/// Whether a template tells messages of calls alone by that their content is none.
fn tells_null_content(source: &str) -> bool {
    source.match_indices(" is none").any(|(at, _)| {
        let name = source[..at].trim_end_matches(['"', '\'', ']', ')']);
        // Not reasoning_content.
        name.strip_suffix("content").is_some_and(|before| !before.ends_with('_'))
    })
}

/// A message as templates see it. Of an answer of calls alone the content is none where the
/// template asks for that, else empty: other templates write "None", or refuse it.
fn message(message: &ChatMessage, tells_null: bool) -> Value {
    let ChatMessage { role, content, tool_calls, tool_call_id, name, .. } = message;
    let content = match tells_null && content.is_empty() && !tool_calls.is_empty() {
        true => Value::from(()),
        false if message.images.is_empty() => Value::from(content),
        false => content_parts(message),
    };
    let mut pairs = vec![("role", Value::from(role)), ("content", content)];
    if !tool_calls.is_empty() {
        pairs.push(("tool_calls", tool_calls.iter().map(ToolCall::value).collect()));
    }
    let named = [("tool_call_id", tool_call_id), ("name", name)];
    pairs.extend(
        named.into_iter().filter_map(|(key, text)| Some((key, Value::from(text.as_ref()?)))),
    );
    Value::from_pairs(pairs)
}

/// What is said and images in it, as a list of parts.
fn content_parts(message: &ChatMessage) -> Value {
    let text = |text: &str| Value::from_pairs([("type", "text"), ("text", text)]);
    let (mut parts, mut start) = (Vec::new(), 0);
    for (at, _) in &message.images {
        // A place that is none is the end.
        let before = message.content.get(start..*at).unwrap_or(&message.content[start..]);
        if !before.is_empty() {
            parts.push(text(before));
        }
        start += before.len();
        parts.push(Value::from_pairs([("type", "image")]));
    }
    if start < message.content.len() {
        parts.push(text(&message.content[start..]));
    }
    Value::from(parts)
}

/// The source with `{% generation %}` as a plain block: it marks what an assistant said, for
/// training.
fn without_generation(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, behind) = tag.split_at(end);
        let inner = tag.trim_start_matches("{%").trim_end_matches("%}");
        let word = inner.trim_matches(['-', '+']).trim();
        match word {
            // The same scope as in Jinja, where the body is called like a macro.
            "generation" => out.push_str(&tag.replacen(word, "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen(word, "endwith", 1)),
            _ => out.push_str(tag),
        }
        rest = behind;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Result<ChatTemplate> {
        ChatTemplate::new("chat_template.jinja", source, BTreeMap::new())
    }

    fn render(source: &str) -> Result<String> {
        template(source)?.render(&[ChatMessage::new("user", "Hi")], true)
    }

    #[test]
    fn generation_marks_change_nothing() {
        let source = "a\n  {%- generation -%}\n  b {% set x = 1 %}\n  {%- endgeneration %}\nc{% if x %}d{% endif %}";
        assert_eq!(render(source).unwrap(), "ab c");
    }

    #[test]
    fn flags_are_told() {
        let source = "{{ enable_thinking is defined and enable_thinking is true }}";
        let messages = [ChatMessage::new("user", "Hi")];
        let template = template(source).unwrap();
        assert_eq!(template.render(&messages, true).unwrap(), "False");
        let told = template.with_flag("enable_thinking", true);
        assert_eq!(told.render(&messages, true).unwrap(), "True");
    }

    #[test]
    fn calls_and_their_answers_are_told() {
        let call = r#"{"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}"#;
        let answer = r#"{"role": "tool", "content": "7", "tool_call_id": "a", "name": "f"}"#;
        let messages = [call, answer].map(|text| serde_json::from_str(text).unwrap());
        let tools =
            [r#"{"type": "function", "function": {"name": "f", "zoo": [], "animals": 1.0}}"#];
        let tools = tools.map(|text| serde_json::from_str(text).unwrap());
        let source =
            "{{ tools | tojson }} {{ messages | tojson }} {{ messages[0].content is none }}";
        let expected = r#"[{"type": "function", "function": {"name": "f", "zoo": [], "animals": 1.0}}] [{"role": "assistant", "content": null, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}, {"role": "tool", "content": "7", "tool_call_id": "a", "name": "f"}] True"#;
        let rendered = template(source).unwrap().render_with(&messages, &tools, false);
        assert_eq!(rendered.unwrap(), expected);
        let source =
            "{{ messages[0].reasoning_content is none }} {{ messages[0].content is string }}";
        assert_eq!(template(source).unwrap().render(&messages, false).unwrap(), "False True");
        let error = template(source).unwrap().render_with(&messages, &tools, false).unwrap_err();
        assert!(
            error.to_string().contains("chat_template.jinja has no place for tools"),
            "{error}"
        );
    }

    #[test]
    fn what_a_template_refuses_is_said_with_its_file_and_line() {
        let message =
            render("\n{{ raise_exception('Roles must alternate') }}").unwrap_err().to_string();
        assert!(message.contains("chat_template.jinja, line 2: Roles must alternate"), "{message}");
        for broken in
            ["{% if %}", "{{ messages[0].content.nothing() }}", "{% include 'x' %}", "{{ a.b.c }}"]
        {
            let message = render(broken).unwrap_err().to_string();
            assert!(message.contains("chat_template.jinja, line 1: "), "{broken}: {message}");
        }
    }

    #[test]
    fn hostile_templates_end_with_an_error() {
        let doubled = |end: &str| {
            let start = "{% set ns = namespace(x=[]) %}{% for i in range(64) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
            start.to_owned() + end
        };
        for hostile in [
            "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
            "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "{{ 'a' * 100000000 }}",
            "{{ [1] * 100000000 }}",
            "{{ 'a'.replace('', 'b' * 1000000).replace('b', 'c' * 1000000) }}",
            "{{ ('b' * 1000000).join(['a'] * 50000) }}",
            "{{ ('a' * 3000000).split('a') }}",
            "{{ ('a' * 3000000).split() }}",
            "{{ '{:999999999}'.format(1) }}",
            "{{ '%999999999d' | format(1) }}",
            "{{ strftime_now('%') }}",
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            "{{ range(9999999999) | list }}",
            &doubled("{{ ns.x }}"),
            &doubled("{{ ns.x | tojson }}"),
            &doubled("{{ ns.x | string }}"),
            &doubled("{{ ' '.join(ns.x) }}"),
        ] {
            assert!(render(hostile).is_err(), "{hostile}");
        }
        // Lists as deep as the fuel allows, and chains as long as a template: an error or not, and
        // the end of neither the stack nor the memory.
        let deep = "{% set ns = namespace(x=[]) %}{% for i in range(15000) %}{% set ns.x = [ns.x] %}{% endfor %}";
        let _ = render(deep);
        assert!(render(&format!("{deep}{{{{ ns.x }}}}")).is_err());
        for (link, count) in
            [("-", 60_000), ("not ", 15_000), ("(", 60_000), ("[", 30_000), ("x ~ ", 2000)]
        {
            let _ = render(&format!("{{{{ {} 1 }}}}", link.repeat(count)));
        }
        let _ = render(&format!("{{{{ x{} }}}}", " | list".repeat(9000)));
        assert!(render(&"{% if 1 %}".repeat(6000)).is_err());
        assert!(render(&" ".repeat(LONGEST + 1)).is_err());
    }
}
