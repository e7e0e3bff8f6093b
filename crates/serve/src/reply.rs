//! What is sent back.

use outsize_generate::{ChatAnswer, Finish, ToolCall};
use serde_json::{Value, json};

use crate::job::Answered;
use crate::logprobs::{of_chat, of_text};

/// The answers to one request: all at once, or in chunks.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Whether a message is answered, rather than a text continued.
    pub is_chat: bool,
    /// Answers to each prompt.
    pub answers: usize,
}

impl Reply {
    fn object(&self, kind: &str, choices: Value, usage: Value) -> Value {
        let Self { id, created, model, .. } = self;
        json!({ "id": id, "object": kind, "created": created, "model": model, "choices": choices, "usage": usage })
    }

    /// All of it: of each prompt as many answers as there are to be, one prompt's after the
    /// other's.
    pub fn whole(&self, answers: &[Answered]) -> Value {
        let kind = if self.is_chat { "chat.completion" } else { "text_completion" };
        let choices = answers.iter().enumerate();
        let choices = choices.map(|(index, answered)| self.choice(index, answered)).collect();
        self.object(kind, choices, self.counts(answers))
    }

    fn choice(&self, index: usize, answered: &Answered) -> Value {
        let Answered { answer, prompt, .. } = answered;
        let (text, finish) = (&answer.outcome.text, finish_reason(answer));
        let logprobs = self.logprobs(answered);
        if !self.is_chat {
            let text = format!("{}{text}", prompt.as_deref().unwrap_or_default());
            return json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish });
        }
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
        json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish })
    }

    fn logprobs(&self, answered: &Answered) -> Value {
        let tokens = answered.tokens.as_deref();
        tokens.map_or(Value::Null, if self.is_chat { of_chat } else { of_text })
    }

    fn chunk(&self, choices: Value, usage: Value) -> Value {
        let kind = if self.is_chat { "chat.completion.chunk" } else { "text_completion" };
        self.object(kind, choices, usage)
    }

    /// What the answer of that number begins with in a stream, if with anything.
    pub fn beginning(&self, index: usize) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        self.is_chat.then(|| self.more(index, delta, ""))
    }

    /// Some more text.
    pub fn text(&self, index: usize, text: &str) -> Value {
        self.more(index, json!({ "content": text }), text)
    }

    /// Some more of what is thought before.
    pub fn thought(&self, index: usize, text: &str) -> Value {
        self.more(index, json!({ "reasoning_content": text }), "")
    }

    /// The answer's call of that number: its function, then the arguments.
    pub fn call(&self, index: usize, number: usize, call: &ToolCall) -> [Value; 2] {
        let ToolCall { id, name, arguments } = call;
        let begun = json!({ "index": number, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
        let rest = json!({ "index": number, "function": { "arguments": arguments } });
        [begun, rest].map(|part| self.more(index, json!({ "tool_calls": [part] }), ""))
    }

    fn more(&self, index: usize, delta: Value, text: &str) -> Value {
        self.part(index, delta, text, [Value::Null, Value::Null])
    }

    /// The end of the text, with what is told of its tokens.
    pub fn end(&self, index: usize, answered: &Answered) -> Value {
        let finish = json!(finish_reason(&answered.answer));
        self.part(index, json!({}), "", [self.logprobs(answered), finish])
    }

    fn part(
        &self,
        index: usize,
        delta: Value,
        text: &str,
        [logprobs, finish]: [Value; 2],
    ) -> Value {
        let mut choice = json!({ "index": index, "logprobs": logprobs, "finish_reason": finish });
        match self.is_chat {
            true => choice["delta"] = delta,
            false => choice["text"] = json!(text),
        }
        self.chunk(json!([choice]), Value::Null)
    }

    /// The counts of tokens, behind the end.
    pub fn usage(&self, answers: &[Answered]) -> Value {
        self.chunk(json!([]), self.counts(answers))
    }

    /// The counts of tokens. A prompt counts once, however many answers it has.
    fn counts(&self, answers: &[Answered]) -> Value {
        let prompts = || answers.iter().step_by(self.answers).map(|answered| &answered.answer);
        let prompt: usize = prompts().map(|answer| answer.prompt_tokens).sum();
        let reused: usize = prompts().map(|answer| answer.reused_tokens).sum();
        let tokens = |answered: &Answered| answered.answer.outcome.outcome.tokens.len();
        let new: usize = answers.iter().map(tokens).sum();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": { "cached_tokens": reused },
        })
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
