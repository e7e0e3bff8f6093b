//! The messages of a conversation, as requests write them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outsize_generate::{ChatMessage, ImageInput, ToolCall};
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
    image_url: Option<ImageUrl>,
}

/// An image: its address alone, or with what else is said of it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ImageUrl {
    Address(String),
    Object { url: String },
}

impl ImageUrl {
    /// The image, of an address that has it in it; messages name `name` for it.
    fn image(self, name: String) -> Result<ImageInput, String> {
        let url = match self {
            Self::Address(url) | Self::Object { url } => url,
        };
        let Some(data) = url.strip_prefix("data:") else {
            return Err("only addresses are taken that begin with data: and have the image in base64, as nothing is fetched".to_owned());
        };
        let base64 =
            data.split_once(";base64,").ok_or("behind data: and a type, `;base64,` is missing")?;
        let bytes =
            STANDARD.decode(base64.1).map_err(|error| format!("it is not base64: {error}"))?;
        ImageInput::new(name, bytes).map_err(|error| error.to_string())
    }
}

impl MessageField {
    /// The message as chat templates know it; `index` is its place in the list.
    pub fn message(self, index: usize) -> Result<ChatMessage, ApiError> {
        let name = |field: &str| format!("messages[{index}].{field}");
        let (mut tool_calls, mut images) = (Vec::new(), Vec::new());
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
                let mut said = String::new();
                for (at, part) in parts.into_iter().enumerate() {
                    match (&*part.kind, part.text, part.image_url) {
                        ("text", Some(text), _) => said.push_str(&text),
                        ("image_url", _, Some(url)) => {
                            let field = name(&format!("content[{at}].image_url"));
                            let refused = |reason| ApiError::field(&field, reason);
                            images.push((said.len(), url.image(field.clone()).map_err(refused)?));
                        }
                        (kind, ..) => {
                            return Err(ApiError::field(
                                name("content"),
                                format!(
                                    "only parts of type \"text\" and \"image_url\" are built in, not {kind:?}"
                                ),
                            ));
                        }
                    }
                }
                said
            }
            // An answer may be calls alone.
            None if !tool_calls.is_empty() => String::new(),
            None => return Err(ApiError::field(name("content"), "a message needs a `content`")),
        };
        // Other messages have names of people, of which templates know nothing.
        let name = self.name.filter(|_| self.role == "tool");
        let tool_call_id = self.tool_call_id;
        Ok(ChatMessage { role: self.role, content, images, tool_calls, tool_call_id, name })
    }
}
