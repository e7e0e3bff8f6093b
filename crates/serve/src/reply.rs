//! What is sent back.

use outsize_generate::{ChatAnswer, Finish, ToolCall};
use serde_json::{Value, json};

/// The answer to one request: all at once, or in chunks.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Whether a message is answered, rather than a text continued.
    pub is_chat: bool,
}

impl Reply {
    fn object(&self, kind: &str, choices: Value, usage: Value) -> Value {
        let Self { id, created, model, .. } = self;
        json!({ "id": id, "object": kind, "created": created, "model": model, "choices": choices, "usage": usage })
    }

    /// All of it.
    pub fn whole(&self, answer: &ChatAnswer) -> Value {
        let (text, finish) = (&answer.outcome.text, finish_reason(answer));
        let (kind, choice) = match self.is_chat {
            true => {
                let mut message = json!({ "role": "assistant", "content": text });
                if !answer.thought.is_empty() {
                    message["reasoning_content"] = json!(answer.thought);
                }
                if !answer.tool_calls.is_empty() {
                    message["tool_calls"] = json!(answer.tool_calls);
                    if text.is_empty() {
                        message["content"] = Value::Null;
                    }
                }
                (
                    "chat.completion",
                    json!({ "index": 0, "message": message, "logprobs": null, "finish_reason": finish }),
                )
            }
            false => {
                let choice =
                    json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": finish });
                ("text_completion", choice)
            }
        };
        self.object(kind, json!([choice]), usage(answer))
    }

    fn chunk(&self, choices: Value, usage: Value) -> Value {
        let kind = if self.is_chat { "chat.completion.chunk" } else { "text_completion" };
        self.object(kind, choices, usage)
    }

    /// What a stream begins with, if with anything.
    pub fn beginning(&self) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": null });
        self.is_chat.then(|| self.chunk(json!([choice]), Value::Null))
    }

    /// Some more text.
    pub fn text(&self, text: &str) -> Value {
        self.part(json!({ "content": text }), text, Value::Null)
    }

    /// Some more of what is thought before.
    pub fn thought(&self, text: &str) -> Value {
        self.part(json!({ "reasoning_content": text }), "", Value::Null)
    }

    /// The call of that number: its function, then the arguments.
    pub fn call(&self, index: usize, call: &ToolCall) -> [Value; 2] {
        let ToolCall { id, name, arguments } = call;
        let begun = json!({ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
        let rest = json!({ "index": index, "function": { "arguments": arguments } });
        [begun, rest].map(|part| self.part(json!({ "tool_calls": [part] }), "", Value::Null))
    }

    /// The end of the text.
    pub fn end(&self, answer: &ChatAnswer) -> Value {
        self.part(json!({}), "", json!(finish_reason(answer)))
    }

    fn part(&self, delta: Value, text: &str, finish: Value) -> Value {
        let choice = match self.is_chat {
            true => {
                json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish })
            }
            false => json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": finish }),
        };
        self.chunk(json!([choice]), Value::Null)
    }

    /// The counts of tokens, behind the end.
    pub fn usage(&self, answer: &ChatAnswer) -> Value {
        self.chunk(json!([]), usage(answer))
    }
}

/// Why the text ended.
fn finish_reason(answer: &ChatAnswer) -> &'static str {
    match answer.outcome.outcome.finish {
        Finish::Eos | Finish::StopString | Finish::Complete if !answer.tool_calls.is_empty() => {
            "tool_calls"
        }
        Finish::Eos | Finish::StopString | Finish::Complete => "stop",
        // Nobody is sent these.
        Finish::Stopped | Finish::Stuck => "stop",
        Finish::Length | Finish::Context => "length",
    }
}

/// The counts of tokens.
fn usage(answer: &ChatAnswer) -> Value {
    let (prompt, new) = (answer.prompt_tokens, answer.outcome.outcome.tokens.len());
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": new,
        "total_tokens": prompt + new,
        "prompt_tokens_details": { "cached_tokens": answer.reused_tokens },
    })
}
