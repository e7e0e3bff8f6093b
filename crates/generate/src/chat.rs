//! Conversations: their templates, and sessions that keep the KV cache from turn to turn.

mod answer;
mod answer_text;
mod batch;
mod channels;
mod forced_calls;
mod fuel;
mod images;
mod message;
mod prefix;
mod prefix_rows;
mod python_json;
mod scored;
mod session;
mod template;
mod templates;
mod tool_forms;
mod tool_syntax;
mod tool_text;
mod tools;

pub use self::answer::{ChatAnswer, ChatOptions};
pub use self::batch::{ChatBatch, ChatPrompt, EndedAnswers};
pub use self::channels::ChatPart;
pub use self::images::ChatImages;
pub use self::message::ChatMessage;
pub use self::scored::ScoredAnswer;
pub use self::session::ChatSession;
pub use self::template::ChatTemplate;
pub use self::templates::ChatTemplates;
pub use self::tools::{ChatTool, ToolCall, ToolChoice};
