//! How a request wants its text to be generated.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use outsize_generate::{ChatOptions, StopStrings};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::logprobs::{LogprobsField, asked};
use crate::response_format::constraint;

/// What requests of both kinds may say. What is not said is as the server was started.
#[derive(Debug, Deserialize)]
pub(crate) struct GenerationFields {
    pub model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    /// -1 or 0 for all, as elsewhere.
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<String, f32>>,
    seed: Option<i64>,
    stop: Option<Stop>,
    response_format: Option<Value>,
    n: Option<usize>,
    logprobs: Option<LogprobsField>,
    top_logprobs: Option<usize>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// One string that ends a text, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

/// Fields that would change an answer and are not obeyed, with the values at which they change
/// nothing; so do null, an empty text, an empty list and an empty object.
const NOT_OBEYED: &[(&str, &[&str])] = &[
    ("best_of", &["1"]),
    ("echo", &["false"]),
    ("suffix", &[]),
    ("tools", &[]),
    ("functions", &[]),
    ("modalities", &[r#"["text"]"#]),
    ("audio", &[]),
    ("reasoning_effort", &[]),
    ("chat_template", &[]),
    ("chat_template_kwargs", &[]),
    ("min_tokens", &["0"]),
    ("ignore_eos", &["false"]),
    ("use_beam_search", &["false"]),
    ("prompt_logprobs", &["0"]),
];

impl GenerationFields {
    /// Whether the answer is sent as it comes.
    pub fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream ends with the counts of tokens.
    pub fn includes_usage(&self) -> bool {
        self.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// How many answers there are to be to a prompt.
    pub fn answers(&self) -> Result<usize, ApiError> {
        match self.n.unwrap_or(1) {
            0 => Err(ApiError::field("n", "it is at least 1")),
            n => Ok(n),
        }
    }

    /// The options of this request, where it says something, and else `defaults`.
    pub fn options(&self, defaults: &ChatOptions, is_chat: bool) -> Result<ChatOptions, ApiError> {
        for (name, harmless) in NOT_OBEYED {
            let changes = |value: &&Value| {
                let text = value.to_string();
                !matches!(&*text, "null" | "\"\"" | "[]" | "{}") && !harmless.contains(&&*text)
            };
            if self.more.get(*name).filter(changes).is_some() {
                let message = format!("`{name}` is not built in: leave it out");
                return Err(ApiError::field(*name, message));
            }
        }
        let mut options = defaults.clone();
        options.max_new_tokens =
            self.max_completion_tokens.or(self.max_tokens).or(options.max_new_tokens);
        let sampling = &mut options.sampling;
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.top_p = self.top_p.or(sampling.top_p);
        sampling.min_p = self.min_p.or(sampling.min_p);
        sampling.repetition_penalty = self.repetition_penalty.or(sampling.repetition_penalty);
        let counts = |penalty: &f32| *penalty != 0.0;
        sampling.frequency_penalty = self.frequency_penalty.filter(counts);
        sampling.presence_penalty = self.presence_penalty.filter(counts);
        if let Some(top_k) = self.top_k {
            sampling.top_k = usize::try_from(top_k).ok().filter(|top_k| *top_k > 0);
        }
        sampling.seed = self.seed.map_or_else(some_seed, i64::cast_unsigned);
        options.text.logprobs = asked(self.logprobs, self.top_logprobs, is_chat)?;
        options.text.logit_bias = self.biases()?;
        if let Some(format) = &self.response_format {
            options.text.constraint = constraint(format)?;
        }
        let stop = match &self.stop {
            None => return Ok(options),
            Some(Stop::One(stop)) => std::slice::from_ref(stop),
            Some(Stop::Several(stop)) => stop,
        };
        options.text.stop = StopStrings::new(stop.iter().filter(|stop| !stop.is_empty()))
            .map_err(|error| ApiError::field("stop", error.to_string()))?;
        Ok(options)
    }

    /// What is added to the logits of tokens, by token.
    fn biases(&self) -> Result<Vec<(u32, f32)>, ApiError> {
        let refused = |message: String| ApiError::field("logit_bias", message);
        let bias = |(token, more): (&String, &f32)| match token.parse() {
            Err(_) => {
                let token: String = token.chars().take(20).collect();
                Err(refused(format!("{token:?} is not the number of a token")))
            }
            Ok(_) if !(-100.0..=100.0).contains(more) => Err(refused(format!(
                "what is added to the logit of token {token} is {more}: it must be a number from -100 to 100"
            ))),
            Ok(token) => Ok((token, *more)),
        };
        let biases: BTreeMap<_, _> =
            self.logit_bias.iter().flatten().map(bias).collect::<Result<_, _>>()?;
        Ok(biases.into_iter().collect())
    }
}

/// Another one each time.
fn some_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(fields: Value) -> Result<ChatOptions, ApiError> {
        let fields: GenerationFields = serde_json::from_value(fields).unwrap();
        let defaults = ChatOptions { max_new_tokens: Some(5), ..ChatOptions::default() };
        fields.options(&defaults, true)
    }

    #[test]
    fn what_is_said_counts_and_what_is_not_is_as_before() {
        let before = options(json!({"seed": 3})).unwrap();
        assert_eq!((before.max_new_tokens, before.sampling.seed), (Some(5), 3));
        let said = json!({"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": -1,
            "repetition_penalty": 1.1, "stop": ["a", "", "b"], "user": "me", "n": 1, "tools": [], "logprobs": null});
        let said = options(said).unwrap();
        assert_eq!(said.max_new_tokens, Some(9));
        let sampling = said.sampling;
        assert_eq!((sampling.temperature, sampling.top_p), (0.5, Some(0.9)));
        assert_eq!((sampling.top_k, sampling.min_p), (Some(7), Some(0.1)));
        assert_eq!((sampling.repetition_penalty, sampling.seed), (Some(1.1), u64::MAX));
        assert_eq!(said.text.stop.strings(), ["a", "b"]);
        let penalties = json!({"frequency_penalty": 0.5, "presence_penalty": 0});
        let penalties = options(penalties).unwrap().sampling;
        let penalties = [penalties.frequency_penalty, penalties.presence_penalty];
        assert_eq!(penalties, [Some(0.5), None]);
        let both = options(json!({"max_tokens": 9, "max_completion_tokens": 4, "top_k": -1}));
        let both = both.unwrap();
        assert_eq!((both.max_new_tokens, both.sampling.top_k), (Some(4), None));
        assert_eq!(options(json!({"stop": "x"})).unwrap().text.stop.strings(), ["x"]);
    }

    #[test]
    fn what_cannot_be_obeyed_is_refused_by_name() {
        for (name, value) in [
            ("best_of", json!(2)),
            ("tools", json!([{"type": "function"}])),
            ("suffix", json!("The end")),
        ] {
            let error = options(json!({ name: value })).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name));
            assert!(error.message.contains("is not built in"), "{}", error.message);
        }
        for (name, value) in [
            ("frequency_penalty", json!(0)),
            ("presence_penalty", json!(0.0)),
            ("response_format", json!({"type": "text"})),
            ("suffix", json!("")),
        ] {
            options(json!({ name: value })).unwrap();
        }
    }

    #[test]
    fn biases_are_of_tokens_by_number() {
        let biases = json!({"logit_bias": {"17": -100, "4": 0.5}});
        assert_eq!(options(biases).unwrap().text.logit_bias, [(4, 0.5), (17, -100.0)]);
        for none in [json!(null), json!({})] {
            assert_eq!(options(json!({"logit_bias": none})).unwrap().text.logit_bias, []);
        }
        for (wrong, message) in [
            (json!({"the": 1}), "\"the\" is not the number of a token"),
            (json!({"-1": 1}), "\"-1\" is not the number"),
            (json!({"3": 101}), "3 is 101: it must be a number from -100 to 100"),
            (json!({"3": -1e30}), "from -100 to 100"),
        ] {
            let error = options(json!({"logit_bias": wrong})).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("logit_bias"));
            assert!(error.message.contains(message), "{}", error.message);
        }
    }
}
