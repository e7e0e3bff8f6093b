//! JSON as Python's `json.dumps` writes it, for the filter `tojson` of chat templates.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::fuel::charge;

/// The filter `tojson` of transformers: nothing is escaped for HTML, and `ensure_ascii`, `indent`,
/// `separators` and `sort_keys` are what they are in Python.
pub(super) fn tojson(
    state: &State<'_, '_>,
    value: &Value,
    options: Kwargs,
) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let usual = if indent.is_some() { "," } else { ", " };
    let [item, key] = match separators.map(<[String; 2]>::try_from) {
        None => [usual.to_owned(), ": ".to_owned()],
        Some(Ok(separators)) => separators,
        Some(Err(_)) => return refused("tojson: separators are two"),
    };
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    charge(state, value)?;
    let mut writer = Writer { out: String::new(), indent, item, key, ascii, sort };
    writer.value(value, 0)?;
    Ok(writer.out)
}

fn refused<T>(what: &str) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, what.to_owned()))
}

struct Writer {
    out: String,
    indent: Option<usize>,
    /// Between two items.
    item: String,
    /// Between a key and its value.
    key: String,
    ascii: bool,
    sort: bool,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&value.to_string()),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.all('[', ']', &items, depth, |writer, item| writer.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                self.all('{', '}', &keys, depth, |writer, key| {
                    writer.string(&key.to_string());
                    writer.out.push_str(&writer.key.clone());
                    writer.value(&value.get_item(key)?, depth + 1)
                })?;
            }
            kind => return refused(&format!("tojson: a value of kind {kind} is not JSON")),
        }
        Ok(())
    }

    fn all(
        &mut self,
        open: char,
        close: char,
        items: &[Value],
        depth: usize,
        mut write: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.item.clone());
            }
            self.line(depth + 1);
            write(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    /// A line of its own for what comes next, if lines are wanted.
    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent.min(64) * depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                _ if character < ' ' || self.ascii && !(' '..='~').contains(&character) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    use super::*;

    /// What a template that uses the filter gives; expectations are Python's own output.
    fn written(template: &str) -> String {
        let mut environment = Environment::new();
        environment.add_filter("tojson", tojson);
        environment.render_str(template, context! {}).unwrap()
    }

    #[test]
    fn it_is_what_python_writes() {
        let value = r#"{"b": [1, 2.5, true, none], "a": "é<>&'\"\\\n\x7f😀", "c": {}, "d": []}"#;
        let plain = r#"{"b": [1, 2.5, true, null], "a": "é<>&'\"\\\n😀", "c": {}, "d": []}"#;
        let value = value.replace("\\x7f", "");
        assert_eq!(written(&format!("{{{{ {value} | tojson }}}}")), plain);
        let ascii = r#"{"a":"\u00e9<>&'\"\\\n\ud83d\ude00","b":[1,2.5,true,null],"c":{},"d":[]}"#;
        let options = "ensure_ascii=true, sort_keys=true, separators=(',', ':')";
        assert_eq!(written(&format!("{{{{ {value} | tojson({options}) }}}}")), ascii);
        let lines = "{\n  \"x\": [\n    1,\n    2\n  ],\n  \"y\": {}\n}";
        assert_eq!(written(r#"{{ {"x": [1, 2], "y": {}} | tojson(indent=2) }}"#), lines);
    }
}
