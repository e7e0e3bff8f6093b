//! The messages of a conversation, as requests write them.

use outsize_generate::ChatMessage;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;

/// One message.
#[derive(Debug, Deserialize)]
pub(crate) struct MessageField {
    role: String,
    content: Option<Content>,
    tool_calls: Option<Value>,
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
        if self
            .tool_calls
            .is_some_and(|calls| calls.as_array().is_none_or(|calls| !calls.is_empty()))
        {
            return Err(ApiError::field(
                name("tool_calls"),
                "tools are not built in: leave out tool_calls",
            ));
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
            None => return Err(ApiError::field(name("content"), "a message needs a `content`")),
        };
        Ok(ChatMessage::new(self.role, content))
    }
}
