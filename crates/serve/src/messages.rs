//! The messages of a conversation, as requests write them.

use outsize_generate::{ChatMessage, ToolCall};
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;

/// One message.
#[derive(Debug, Deserialize)]
pub(crate) struct MessageField {
    role: String,
    content: Option<Content>,
    tool_calls: Option<Vec<Value>>,
    tool_call_id: Option<String>,
    name: Option<String>,
}

/// What is said: a text, or parts of one.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of what is said.
#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl MessageField {
    /// The message as chat templates know it; `index` is its place in the list.
    pub fn message(self, index: usize) -> Result<ChatMessage, ApiError> {
        let name = |field: &str| format!("messages[{index}].{field}");
        let mut tool_calls = Vec::new();
        for (at, call) in self.tool_calls.into_iter().flatten().enumerate() {
            let call: Result<ToolCall, _> = serde_json::from_value(call);
            let refused = |error: serde_json::Error| {
                ApiError::field(name(&format!("tool_calls[{at}]")), error.to_string())
            };
            tool_calls.push(call.map_err(refused)?);
        }
        let content = match self.content {
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                let text = |part: Part| match (&*part.kind, part.text) {
                    ("text", Some(text)) => Ok(text),
                    (kind, _) => Err(ApiError::field(
                        name("content"),
                        format!("only parts of type \"text\" are built in, not {kind:?}"),
                    )),
                };
                parts.into_iter().map(text).collect::<Result<String, _>>()?
            }
            // An answer may be calls alone.
            None if !tool_calls.is_empty() => String::new(),
            None => return Err(ApiError::field(name("content"), "a message needs a `content`")),
        };
        // Other messages have names of people, of which templates know nothing.
        let name = self.name.filter(|_| self.role == "tool");
        let tool_call_id = self.tool_call_id;
        Ok(ChatMessage { role: self.role, content, tool_calls, tool_call_id, name })
    }
}
