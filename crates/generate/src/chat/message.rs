//! One message of a conversation.

use serde::{Deserialize, Deserializer, Serialize};

use super::tools::ToolCall;
use crate::vision::ImageInput;

/// What a template may take for an image, as if it were text of so many bytes.
const IMAGE_BYTES: usize = 256;

/// One message of a conversation, as chat templates know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// Who says it: `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// What is said.
    pub content: String,
    /// Images in it, each with the byte of `content` that it is before; in order.
    #[serde(skip)]
    pub images: Vec<(usize, ImageInput)>,
    /// The functions that the assistant calls.
    #[serde(default, deserialize_with = "calls", skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool's answer, the call that it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Of a tool's answer, the function's name, where templates ask for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl ChatMessage {
    /// A message of who has that role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }

    /// The same with an image behind what is said so far.
    pub fn with_image(mut self, image: ImageInput) -> Self {
        self.images.push((self.content.len(), image));
        self
    }

    /// The bytes of all that it says.
    pub(super) fn len(&self) -> usize {
        let calls = self.tool_calls.iter();
        let calls = calls.map(|call| call.id.len() + call.name.len() + call.arguments.len());
        let (id, name) = (self.tool_call_id.as_deref(), self.name.as_deref());
        self.content.len()
            + self.images.len() * IMAGE_BYTES
            + calls.sum::<usize>()
            + id.unwrap_or_default().len()
            + name.unwrap_or_default().len()
    }
}

/// Calls, or null for none.
fn calls<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ToolCall>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Whether a conversation has images.
pub(super) fn has_images(messages: &[ChatMessage]) -> bool {
    messages.iter().any(|message| !message.images.is_empty())
}
