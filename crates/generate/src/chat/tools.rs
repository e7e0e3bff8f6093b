//! Functions that a model may call, and its calls.

use std::hash::{BuildHasher, RandomState};

use minijinja::Value;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;

/// The length of a call's id. Templates of Mistral ask for just so many letters and digits.
const ID_LENGTH: usize = 9;

/// A function that a model may call, as OpenAI's requests describe it:
/// `{"type": "function", "function": {"name", "description", "parameters"}}`.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatTool {
    /// Its name.
    pub name: String,
    /// All of the description, in its order, as templates write it.
    pub(super) definition: Value,
    /// Bytes of the description as JSON.
    pub(super) len: usize,
}

impl<'de> Deserialize<'de> for ChatTool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let definition = Value::deserialize(deserializer)?;
        let text = serde_json::to_string(&definition).map_err(D::Error::custom)?;
        let attribute = |value: &Value, name: &str| value.get_attr(name).unwrap_or_default();
        let kind = attribute(&definition, "type");
        if kind.as_str() != Some("function") {
            return Err(D::Error::custom("a tool needs \"type\": \"function\""));
        }
        let name = attribute(&attribute(&definition, "function"), "name");
        match name.as_str() {
            Some(name) if !name.is_empty() => {
                Ok(Self { name: name.to_owned(), definition, len: text.len() })
            }
            _ => Err(D::Error::custom("a tool needs a \"function\" with a \"name\"")),
        }
    }
}

impl ChatTool {
    /// The JSON schema of a call: the schema of its parameters, in which references begin at
    /// `root`.
    pub(super) fn call_schema(&self, root: &str) -> serde_json::Value {
        let parameters = ["function", "parameters"];
        let parameters =
            parameters.iter().try_fold(self.definition.clone(), |value, key| value.get_attr(key));
        let parameters = serde_json::to_value(parameters.unwrap_or_default()).unwrap_or_default();
        let parameters = match parameters {
            serde_json::Value::Object(mut schema) => {
                schema.entry("type").or_insert_with(|| json!("object"));
                rebased(serde_json::Value::Object(schema), &format!("{root}/properties/arguments"))
            }
            _ => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        };
        json!({
            "type": "object",
            "properties": { "name": { "const": self.name }, "arguments": parameters },
            "required": ["name", "arguments"],
            "additionalProperties": false,
        })
    }

    /// What the JSON schema of the parameters says of one of them; undefined if it says nothing.
    pub(super) fn parameter(&self, name: &str) -> Value {
        let path = ["function", "parameters", "properties", name];
        path.iter()
            .try_fold(self.definition.clone(), |value, key| value.get_attr(key))
            .unwrap_or_default()
    }
}

/// Which functions a model calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Those that it likes, in its own syntax, or none.
    #[default]
    Auto,
    /// At least one, as JSON.
    Required,
    /// The one of this name, as JSON.
    Named(String),
}

/// A call of a function. As JSON it is OpenAI's object:
/// `{"id", "type": "function", "function": {"name", "arguments"}}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// What its answer is known by.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments: an object as JSON.
    pub arguments: String,
}

impl ToolCall {
    /// A call with an id of its own, if it has none; `None` if the arguments are no JSON object.
    pub(super) fn new(id: Option<&str>, name: &str, arguments: &str) -> Option<Self> {
        let arguments = match arguments.trim() {
            "" => "{}",
            arguments => arguments,
        };
        // Of a depth that can be read again.
        serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(arguments).ok()?;
        let id = id.filter(|id| !id.is_empty()).map_or_else(some_id, str::to_owned);
        Some(Self { id, name: name.to_owned(), arguments: arguments.to_owned() })
    }

    /// The call as templates see it: they expect the arguments as an object.
    pub(super) fn value(&self) -> Value {
        let arguments = serde_json::from_str::<Value>(&self.arguments);
        let arguments = arguments.unwrap_or_else(|_| Value::from(&self.arguments));
        let function = [("name", Value::from(&self.name)), ("arguments", arguments)];
        Value::from_pairs([
            ("id", Value::from(&self.id)),
            ("type", Value::from("function")),
            ("function", Value::from_pairs(function)),
        ])
    }
}

/// OpenAI's form.
#[derive(Serialize, Deserialize)]
struct WrittenCall<F> {
    #[serde(default)]
    id: Option<String>,
    #[serde(rename = "type", default)]
    kind: Option<String>,
    function: F,
}

#[derive(Serialize)]
struct WrittenFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[derive(Deserialize)]
struct ReadFunction {
    name: String,
    /// An object, or a string in which there is one.
    #[serde(default)]
    arguments: Value,
}

impl Serialize for ToolCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let function = WrittenFunction { name: &self.name, arguments: &self.arguments };
        let (id, kind) = (Some(self.id.clone()), Some("function".to_owned()));
        WrittenCall { id, kind, function }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WrittenCall { id, kind, function: ReadFunction { name, arguments } } =
            WrittenCall::deserialize(deserializer)?;
        if kind.is_some_and(|kind| kind != "function") {
            return Err(D::Error::custom("a call of a tool has \"type\": \"function\""));
        }
        let arguments = match (arguments.as_str(), arguments.is_none() || arguments.is_undefined())
        {
            (Some(text), _) => text.to_owned(),
            (None, true) => String::new(),
            (None, false) => serde_json::to_string(&arguments).map_err(D::Error::custom)?,
        };
        Self::new(id.as_deref(), &name, &arguments).ok_or_else(|| {
            D::Error::custom(format!("the arguments of a call of {name:?} are no JSON object"))
        })
    }
}

/// A schema that is at another place now: references to its own parts follow.
fn rebased(mut schema: serde_json::Value, root: &str) -> serde_json::Value {
    match &mut schema {
        serde_json::Value::Object(entries) => {
            for (key, value) in entries {
                let part = value.as_str().and_then(|target| target.strip_prefix('#'));
                *value = match part.filter(|_| key == "$ref") {
                    Some(part) => json!(format!("#{root}{}", part.trim_end_matches('/'))),
                    None => rebased(value.take(), root),
                };
            }
        }
        serde_json::Value::Array(items) => {
            items.iter_mut().for_each(|item| *item = rebased(item.take(), root));
        }
        _ => {}
    }
    schema
}

/// Letters and digits that no other call has.
fn some_id() -> String {
    const DIGITS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    // The standard library's own random numbers.
    let mut number = RandomState::new().hash_one(0);
    let digits = (0..ID_LENGTH).map(|_| {
        let digit = DIGITS[(number % 62) as usize];
        number /= 62;
        char::from(digit)
    });
    digits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_and_written_as_openai_does() {
        let text = r#"{"id":"a1","type":"function","function":{"name":"f","arguments":"{\"b\": 1, \"a\": [2.50]}"}}"#;
        let call: ToolCall = serde_json::from_str(text).unwrap();
        assert_eq!(call.arguments, r#"{"b": 1, "a": [2.50]}"#);
        assert_eq!(serde_json::to_string(&call).unwrap(), text);
        let object = r#"{"function": {"name": "f", "arguments": {"b": 1, "a": [2.50]}}}"#;
        let call: ToolCall = serde_json::from_str(object).unwrap();
        assert_eq!(call.arguments, r#"{"b":1,"a":[2.5]}"#);
        assert_eq!(call.id.len(), ID_LENGTH);
        for none in
            [r#"{"function": {"name": "f"}}"#, r#"{"function": {"name": "f", "arguments": ""}}"#]
        {
            assert_eq!(serde_json::from_str::<ToolCall>(none).unwrap().arguments, "{}");
        }
        for (wrong, message) in [
            (r#"{"function": {"name": "f", "arguments": "[1]"}}"#, "no JSON object"),
            (r#"{"function": {"name": "f", "arguments": "{"}}"#, "no JSON object"),
            (r#"{"type": "custom", "function": {"name": "f"}}"#, "\"type\""),
            (r#"{"function": {}}"#, "name"),
        ] {
            let error = serde_json::from_str::<ToolCall>(wrong).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn tools_have_a_name() {
        let tool = |text: &str| serde_json::from_str::<ChatTool>(text);
        let named = r#"{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}}"#;
        let named = tool(named).unwrap();
        assert_eq!(named.name, "f");
        assert_eq!(named.parameter("x").get_attr("type").unwrap().as_str(), Some("string"));
        assert!(named.parameter("y").is_undefined());
        for wrong in
            ["1", "{}", r#"{"type": "web_search"}"#, r#"{"type": "function", "function": {}}"#]
        {
            assert!(tool(wrong).is_err(), "{wrong}");
        }
    }
}
