//! How likely tokens were: what requests ask for, and what they are sent.

use outsize_generate::{MOST_TOP_TOKENS, TokenScore, Tokenizer};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::ApiError;

/// What stands for a probability of 0, as with OpenAI: JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

/// Whether tokens are scored, as conversations ask; or how many of the likeliest ones are told too,
/// as texts do.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
pub(crate) enum LogprobsField {
    Flag(bool),
    Count(usize),
}

/// How many of the likeliest tokens each score is to have, if any is wanted.
pub(crate) fn asked(
    logprobs: Option<LogprobsField>,
    top_logprobs: Option<usize>,
    is_chat: bool,
) -> Result<Option<usize>, ApiError> {
    let refused = |name, message: &str| Err(ApiError::field(name, message));
    let (name, top) = match (logprobs, top_logprobs, is_chat) {
        (None | Some(LogprobsField::Flag(false)), None | Some(0), _) => return Ok(None),
        (Some(LogprobsField::Flag(true)), top, true) => ("top_logprobs", top.unwrap_or(0)),
        (Some(LogprobsField::Count(top)), None | Some(0), false) => ("logprobs", top),
        (Some(LogprobsField::Count(_)), _, true) => {
            return refused("logprobs", "of a conversation it is true or false");
        }
        (Some(LogprobsField::Flag(_)), _, false) => {
            return refused(
                "logprobs",
                "of a text it is a number: of the likeliest tokens to tell",
            );
        }
        (_, _, true) => return refused("top_logprobs", "it needs `logprobs` to be true"),
        (_, _, false) => {
            return refused("top_logprobs", "of a text it is `logprobs` that says how many");
        }
    };
    match top > MOST_TOP_TOKENS {
        true => refused(name, &format!("it is at most {MOST_TOP_TOKENS}")),
        false => Ok(Some(top)),
    }
}

/// A token, and how likely it was.
#[derive(Debug, Clone)]
pub(crate) struct LoggedToken {
    bytes: Vec<u8>,
    /// Whether its bytes are part of the text.
    is_text: bool,
    /// `None` for the first of a text.
    logprob: Option<f32>,
    /// The likeliest tokens.
    top: Vec<(Vec<u8>, f32)>,
}

impl LoggedToken {
    /// One with its score.
    pub fn scored(score: &TokenScore, tokenizer: &Tokenizer) -> Self {
        let top = score.top.iter();
        let top = top.map(|(token, logprob)| (tokenizer.token_bytes(*token), *logprob)).collect();
        Self { logprob: Some(score.logprob), top, ..Self::first(score.token, tokenizer) }
    }

    /// One that there is nothing before.
    pub fn first(token: u32, tokenizer: &Tokenizer) -> Self {
        let is_text = !tokenizer.is_special(token);
        Self { bytes: tokenizer.token_bytes(token), is_text, logprob: None, top: Vec::new() }
    }

    fn object(bytes: &[u8], logprob: f32) -> Map<String, Value> {
        let object = json!({ "token": shown(bytes), "logprob": finite(logprob), "bytes": bytes });
        object.as_object().cloned().unwrap_or_default()
    }
}

/// The tokens of an answer to a conversation.
pub(crate) fn of_chat(tokens: &[LoggedToken]) -> Value {
    let content = tokens.iter().map(|token| {
        let mut object = LoggedToken::object(&token.bytes, token.logprob.unwrap_or(0.0));
        let top = token.top.iter().map(|(bytes, logprob)| LoggedToken::object(bytes, *logprob));
        object.insert("top_logprobs".to_owned(), top.collect());
        object
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// The tokens of a text.
pub(crate) fn of_text(tokens: &[LoggedToken]) -> Value {
    let (mut offset, mut offsets) = (0, Vec::new());
    for token in tokens {
        offsets.push(offset);
        // Characters begin with bytes that continue none.
        let begun = token.bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        offset += if token.is_text { begun } else { 0 };
    }
    let top = tokens.iter().map(|token| {
        let logprob = token.logprob?;
        let own = std::iter::once((&token.bytes, logprob));
        let top = token.top.iter().map(|(bytes, logprob)| (bytes, *logprob)).chain(own);
        Some(top.map(|(bytes, logprob)| (shown(bytes), json!(finite(logprob)))).collect())
    });
    let top: Vec<Option<Map<String, Value>>> = top.collect();
    let logprobs = tokens.iter().map(|token| token.logprob.map(finite));
    json!({
        "tokens": tokens.iter().map(|token| shown(&token.bytes)).collect::<Vec<_>>(),
        "token_logprobs": logprobs.collect::<Vec<_>>(),
        "top_logprobs": top,
        "text_offset": offsets,
    })
}

/// A token's text; of a part of a character its bytes.
fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            let hex = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
            format!("bytes:{hex}")
        }
    }
}

fn finite(logprob: f32) -> f32 {
    logprob.max(IMPOSSIBLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &[u8], logprob: Option<f32>, top: &[(&str, f32)]) -> LoggedToken {
        let top = top.iter().map(|(text, logprob)| (text.as_bytes().to_vec(), *logprob)).collect();
        LoggedToken { bytes: text.to_vec(), is_text: text != b"<s>", logprob, top }
    }

    #[test]
    fn what_is_asked_for_is_of_the_right_kind() {
        use LogprobsField::{Count, Flag};
        let ok = |logprobs, top, is_chat| asked(logprobs, top, is_chat).unwrap();
        assert_eq!(ok(None, None, true), None);
        assert_eq!(ok(Some(Flag(false)), Some(0), true), None);
        assert_eq!(ok(Some(Flag(true)), Some(3), true), Some(3));
        assert_eq!(ok(Some(Flag(true)), None, true), Some(0));
        assert_eq!(ok(Some(Count(5)), None, false), Some(5));
        for (logprobs, top, is_chat, param) in [
            (Some(Count(5)), None, true, "logprobs"),
            (Some(Flag(true)), None, false, "logprobs"),
            (None, Some(2), true, "top_logprobs"),
            (Some(Count(1)), Some(2), false, "top_logprobs"),
            (Some(Count(21)), None, false, "logprobs"),
            (Some(Flag(true)), Some(21), true, "top_logprobs"),
        ] {
            let error = asked(logprobs, top, is_chat).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param));
        }
    }

    #[test]
    fn tokens_are_told_as_clients_read_them() {
        let tokens = [
            token(b"<s>", None, &[]),
            token("é".as_bytes(), Some(-0.5), &[("é", -0.5), ("a", f32::NEG_INFINITY)]),
            token(&[0xE2, 0x82], Some(-1.0), &[("b", -0.25)]),
            token(&[0xAC], Some(-1.5), &[]),
        ];
        let text = of_text(&tokens);
        assert_eq!(text["tokens"], json!(["<s>", "é", "bytes:\\xe2\\x82", "bytes:\\xac"]));
        assert_eq!(text["token_logprobs"], json!([null, -0.5, -1.0, -1.5]));
        assert_eq!(text["text_offset"], json!([0, 0, 1, 2]));
        assert_eq!(text["top_logprobs"][0], Value::Null);
        assert_eq!(text["top_logprobs"][1], json!({"é": -0.5, "a": -9999.0}));
        assert_eq!(text["top_logprobs"][2], json!({"b": -0.25, "bytes:\\xe2\\x82": -1.0}));
        let chat = of_chat(&tokens[1..2]);
        assert_eq!(chat["content"][0]["bytes"], json!([0xC3, 0xA9]));
        assert_eq!(chat["content"][0]["top_logprobs"][1]["token"], "a");
    }
}
