//! A checkpoint's generation_config.json: how its makers want text to be generated.

use std::path::{Path, PathBuf};

use outsize_checkpoint::{ConfigFileError, read_object};
use outsize_models::ModelConfig;
use serde_json::{Map, Value};

use crate::beam::{BeamSearch, EarlyStopping};
use crate::eos::{eos_of, model_eos};
use crate::error::{Error, Result};
use crate::json_value::{bad_key, shown};
use crate::sampling::Sampling;
use crate::stop::StopStrings;

/// What transformers samples from where nobody says how many of the likeliest tokens.
const DEFAULT_TOP_K: usize = 50;

/// What a checkpoint asks for where the caller does not. Fields carry the names of transformers;
/// what the file leaves out is `None` or empty.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct GenerationConfig {
    /// The file that this was read from, if there is one.
    pub path: Option<PathBuf>,
    /// Tokens that end a text.
    pub eos_token_id: Vec<u32>,
    /// The token that a decoder begins with whose encoder reads the prompt.
    pub decoder_start_token_id: Option<usize>,
    /// Whether tokens are drawn; otherwise the likeliest is taken.
    pub do_sample: Option<bool>,
    /// As [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// As [`Sampling::top_k`]; 0 for no limit.
    pub top_k: Option<usize>,
    /// As [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// As [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// As [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// As [`BeamSearch::num_beams`]; 1 for no beam search.
    pub num_beams: Option<usize>,
    /// As [`BeamSearch::length_penalty`].
    pub length_penalty: Option<f32>,
    /// As [`BeamSearch::early_stopping`].
    pub early_stopping: Option<EarlyStopping>,
    /// As [`BeamSearch::num_return_sequences`].
    pub num_return_sequences: Option<usize>,
    /// The most tokens to generate.
    pub max_new_tokens: Option<usize>,
    /// The most tokens of prompt and answer together; `max_new_tokens` comes first.
    pub max_length: Option<usize>,
    /// Strings that end a text.
    pub stop_strings: StopStrings,
    /// Fields of the file that nobody knows, at most 32 of them, fit to be shown.
    pub unknown_fields: Vec<String>,
}

/// The most unknown fields that are kept.
const MOST_UNKNOWN: usize = 32;

/// Fields that are read.
const READ: [&str; 16] = [
    "bos_token_id",
    "do_sample",
    "early_stopping",
    "eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_p",
    "num_beams",
    "num_return_sequences",
    "pad_token_id",
    "repetition_penalty",
    "stop_strings",
    "temperature",
    "top_k",
    "top_p",
];

/// Fields that change only how the same text is computed or returned, or belong to what is refused.
const HARMLESS: [&str; 32] = [
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "custom_generate",
    "decoder_start_token_id",
    "disable_compile",
    "generation_mode",
    "is_assistant",
    "low_memory",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",
    "renormalize_logits",
    "return_dict_in_generate",
    "return_legacy_cache",
    "target_lookbehind",
    "token_healing",
    "transformers_version",
    "trust_remote_code",
    "use_cache",
    "use_model_defaults",
];

/// Fields that would change the text, and the values with which they do not. Of the other fields of
/// transformers, some only change how the same text is computed (caches, assistants).
const NEUTRAL: [(&str, &[f64]); 25] = [
    ("bad_words_ids", &[]),
    ("begin_suppress_tokens", &[]),
    ("constraints", &[]),
    ("diversity_penalty", &[0.0]),
    ("dola_layers", &[]),
    ("encoder_no_repeat_ngram_size", &[0.0]),
    ("encoder_repetition_penalty", &[1.0]),
    ("epsilon_cutoff", &[0.0, 1.0]),
    ("eta_cutoff", &[0.0, 1.0]),
    ("exponential_decay_length_penalty", &[]),
    ("force_words_ids", &[]),
    ("forced_bos_token_id", &[]),
    ("forced_eos_token_id", &[]),
    ("guidance_scale", &[1.0]),
    ("max_time", &[]),
    ("min_length", &[0.0]),
    ("min_new_tokens", &[0.0]),
    ("no_repeat_ngram_size", &[0.0]),
    ("num_beam_groups", &[1.0]),
    ("penalty_alpha", &[0.0]),
    ("sequence_bias", &[]),
    ("suppress_tokens", &[]),
    ("top_h", &[]),
    ("typical_p", &[1.0]),
    ("watermarking_config", &[]),
];

impl GenerationConfig {
    /// Reads generation_config.json in the checkpoint's `folder`; where it is missing or names no
    /// token that ends a text, config.json is asked for one, its top level before `text_config`.
    ///
    /// # Errors
    /// A file that cannot be read, is larger than 16 MiB or is not a JSON object; a field of the
    /// wrong type or out of range; [`Error::UnsupportedKey`] for a field that would change the text
    /// and is not built in.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let path = folder.as_ref().join("generation_config.json");
        match read_object(&path)? {
            Some(config) => Self::from_map(&config, path)?.or_eos_of(folder.as_ref()),
            None => Self::without_file(folder),
        }
    }

    /// As [`open`](Self::open), with the file at `path` in place of the folder's.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`ConfigFileError::Read`] if there is no such file.
    pub fn open_file(folder: impl AsRef<Path>, path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        match read_object(&path)? {
            Some(config) => Self::from_map(&config, path)?.or_eos_of(folder.as_ref()),
            None => {
                let source = std::io::ErrorKind::NotFound.into();
                Err(ConfigFileError::Read { path, source }.into())
            }
        }
    }

    /// Only the tokens that end a text, as config.json in `folder` names them.
    ///
    /// # Errors
    /// As [`open`](Self::open), for config.json.
    pub fn without_file(folder: impl AsRef<Path>) -> Result<Self> {
        Self::default().or_eos_of(folder.as_ref())
    }

    /// How tokens are chosen: as transformers chooses them with this file and no other options.
    /// Greedy unless `do_sample` is true; then at temperature 1 and among the 50 likeliest tokens
    /// where the file does not say.
    pub fn sampling(&self, seed: u64) -> Sampling {
        let sampled = self.do_sample == Some(true);
        let top_k = self.top_k.or(sampled.then_some(DEFAULT_TOP_K));
        Sampling {
            repetition_penalty: self.repetition_penalty.filter(|penalty| *penalty != 1.0),
            temperature: if sampled { self.temperature.unwrap_or(1.0) } else { 0.0 },
            top_k: top_k.filter(|k| *k > 0),
            top_p: self.top_p,
            min_p: self.min_p,
            seed,
            ..Sampling::default()
        }
    }

    /// The beam search that the file asks for: as transformers searches with it. None if
    /// `num_beams` is 1 or missing.
    pub fn beam_search(&self) -> Option<BeamSearch> {
        let default = BeamSearch::new(self.num_beams.filter(|beams| *beams > 1)?);
        Some(BeamSearch {
            length_penalty: self.length_penalty.unwrap_or(default.length_penalty),
            early_stopping: self.early_stopping.unwrap_or_default(),
            num_return_sequences: self.num_return_sequences.unwrap_or(1),
            ..default
        })
    }

    /// The same file for a program that does not search with beams.
    ///
    /// # Errors
    /// [`Error::UnsupportedKey`] if it asks for that.
    pub fn without_beams(self) -> Result<Self> {
        match self.num_beams {
            Some(beams) if beams > 1 => Err(Error::UnsupportedKey {
                path: self.path.unwrap_or_default(),
                key: "num_beams",
                found: beams.to_string(),
            }),
            _ => Ok(self),
        }
    }

    /// Checks that an answer begins as config.json says.
    ///
    /// # Errors
    /// [`Error::DecoderStart`] if it does not.
    pub fn check_start(&self, config: &ModelConfig) -> Result<()> {
        match (config.decoder_start(), self.decoder_start_token_id) {
            (Some(start), Some(found)) if found != start as usize => {
                let path = self.path.as_deref().unwrap_or(Path::new("generation_config.json"));
                Err(Error::DecoderStart { path: path.to_owned(), found, start })
            }
            _ => Ok(()),
        }
    }

    /// The most tokens to generate after a prompt of `prompt` tokens, if the file says.
    ///
    /// # Errors
    /// [`Error::MaxLength`] if `max_length` is no more than the prompt's.
    pub fn new_tokens(&self, prompt: usize) -> Result<Option<usize>> {
        match (self.max_new_tokens, self.max_length) {
            (Some(most), _) => Ok(Some(most)),
            (None, Some(max_length)) if max_length <= prompt => Err(Error::MaxLength {
                path: self.path.clone().unwrap_or_default(),
                prompt,
                max_length,
            }),
            (None, Some(max_length)) => Ok(Some(max_length - prompt)),
            (None, None) => Ok(None),
        }
    }

    fn or_eos_of(mut self, folder: &Path) -> Result<Self> {
        if self.eos_token_id.is_empty() {
            self.eos_token_id = model_eos(folder)?;
        }
        Ok(self)
    }

    fn from_map(config: &Map<String, Value>, path: PathBuf) -> Result<Self> {
        let fields = Fields { config, path: &path };
        fields.refuse_unsupported()?;
        let config = Self {
            eos_token_id: eos_of(config, &path)?,
            decoder_start_token_id: fields.count("decoder_start_token_id", 0, "a token id")?,
            do_sample: fields.flag("do_sample")?,
            temperature: fields.number(
                "temperature",
                |t| t >= 0.0,
                "a finite number, 0 or above",
            )?,
            top_k: fields.count("top_k", 0, "a number of tokens, 0 for all")?,
            top_p: fields.number("top_p", share, "a number from 0 to 1")?,
            min_p: fields.number("min_p", share, "a number from 0 to 1")?,
            repetition_penalty: fields.number(
                "repetition_penalty",
                |penalty| penalty > 0.0,
                "a finite number above 0",
            )?,
            num_beams: fields.count("num_beams", 1, "a number of beams, 1 for none")?,
            length_penalty: fields.number("length_penalty", |_| true, "a finite number")?,
            early_stopping: fields.early_stopping()?,
            num_return_sequences: fields.count(
                "num_return_sequences",
                1,
                "a positive number of sequences",
            )?,
            max_new_tokens: fields.count("max_new_tokens", 1, "a positive number of tokens")?,
            max_length: fields.count("max_length", 1, "a positive number of tokens")?,
            stop_strings: fields.stop_strings()?,
            unknown_fields: fields.unknown(),
            path: Some(path.clone()),
        };
        // Scores add up to one again only if it is so.
        let penalty = config.repetition_penalty.is_some_and(|penalty| penalty != 1.0);
        let key = "renormalize_logits";
        match config.beam_search().is_some() && penalty && fields.flag(key)? == Some(true) {
            true => Err(Error::UnsupportedKey { path, key, found: "true".to_owned() }),
            false => Ok(config),
        }
    }
}

fn share(value: f32) -> bool {
    (0.0..=1.0).contains(&value)
}

/// The fields of one file.
struct Fields<'c> {
    config: &'c Map<String, Value>,
    path: &'c Path,
}

impl Fields<'_> {
    /// A field's value; null is as good as none.
    fn get(&self, key: &str) -> Option<&Value> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    fn read<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(key)
            .map(|value| convert(value).ok_or_else(|| bad_key(self.path, key, value, expected)))
            .transpose()
    }

    fn unknown(&self) -> Vec<String> {
        let known = |key: &str| {
            key.starts_with('_')
                || READ.contains(&key)
                || HARMLESS.contains(&key)
                || NEUTRAL.iter().any(|(name, _)| *name == key)
        };
        let unknown = self.config.keys().filter(|key| !known(key)).take(MOST_UNKNOWN);
        unknown.map(|key| outsize_checkpoint::shown(key, 80)).collect()
    }

    fn flag(&self, key: &'static str) -> Result<Option<bool>> {
        self.read(key, "true, false or null", Value::as_bool)
    }

    fn number(
        &self,
        key: &'static str,
        valid: impl Fn(f32) -> bool,
        expected: &'static str,
    ) -> Result<Option<f32>> {
        self.read(key, expected, |value| {
            let number = value.as_f64()? as f32;
            (number.is_finite() && valid(number)).then_some(number)
        })
    }

    fn count(
        &self,
        key: &'static str,
        least: usize,
        expected: &'static str,
    ) -> Result<Option<usize>> {
        self.read(key, expected, |value| {
            let count = usize::try_from(value.as_u64()?).ok()?;
            (count >= least).then_some(count)
        })
    }

    fn early_stopping(&self) -> Result<Option<EarlyStopping>> {
        self.read("early_stopping", "true, false or \"never\"", |value| match value {
            Value::Bool(false) => Some(EarlyStopping::Unlikely),
            Value::Bool(true) => Some(EarlyStopping::AtOnce),
            Value::String(never) if never == "never" => Some(EarlyStopping::Never),
            _ => None,
        })
    }

    fn stop_strings(&self) -> Result<StopStrings> {
        let strings = self.read("stop_strings", "a string or a list of strings", |value| {
            let entries = match value {
                Value::Array(entries) => entries.as_slice(),
                single => std::slice::from_ref(single),
            };
            entries
                .iter()
                .map(|entry| entry.as_str().map(str::to_owned))
                .collect::<Option<Vec<String>>>()
        })?;
        StopStrings::new(strings.unwrap_or_default())
    }

    fn refuse_unsupported(&self) -> Result<()> {
        for (key, neutral) in NEUTRAL {
            let Some(value) = self.get(key) else {
                continue;
            };
            let harmless = match value {
                Value::Array(values) => values.is_empty(),
                Value::Object(map) => map.is_empty(),
                Value::Bool(value) => !value,
                value => value.as_f64().is_some_and(|value| neutral.contains(&value)),
            };
            if !harmless {
                return Err(Error::UnsupportedKey {
                    path: self.path.to_owned(),
                    key,
                    found: shown(value),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
