//! What a model of embeddings asks for, as sentence-transformers saves it beside its weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use outsize_checkpoint::{CONFIG_LIMIT, parse_json, read_object, read_optional_text, shown};
use serde_json::{Map, Value};

use super::pooling::Pooling;
use crate::error::{Error, Result};

/// Which files there are, and what they mean.
const MODULES: &str = "modules.json";

/// How texts become vectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingRecipe {
    /// How the hidden states of a text's tokens become one.
    pub pooling: Pooling,
    /// Whether the tokens of a prompt count among them.
    pub includes_prompt: bool,
    /// Whether vectors have length 1.
    pub normalizes: bool,
    /// What is put before texts, by names such as `query` and `document`.
    pub prompts: BTreeMap<String, String>,
    /// The name of the prompt that texts have if nothing is said.
    pub default_prompt: Option<String>,
    /// Tokens beyond which texts are cut off, special ones included.
    pub longest: Option<usize>,
}

impl Default for EmbeddingRecipe {
    /// For a decoder of which nothing is said: the last token, which alone sees all others, and
    /// vectors of length 1.
    fn default() -> Self {
        Self {
            pooling: Pooling::LastToken,
            includes_prompt: true,
            normalizes: true,
            prompts: BTreeMap::new(),
            default_prompt: None,
            longest: None,
        }
    }
}

impl EmbeddingRecipe {
    /// Whether the folder of a model says how texts become vectors.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(MODULES).is_file()
    }

    /// Reads what is in the folder of a model: `modules.json` and what it leads to,
    /// `config_sentence_transformers.json`, `sentence_bert_config.json`, and the longest text of
    /// `tokenizer_config.json`. Without a `modules.json` it is the [default](Self::default).
    ///
    /// # Errors
    /// A file that cannot be read, or asks for what is not built in.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(MODULES);
        let mut recipe = Self { longest: longest(folder)?, ..Self::default() };
        let Some(text) = read_optional_text(&path, CONFIG_LIMIT)? else {
            return Ok(recipe);
        };
        let refused = |reason: String| Error::EmbeddingFile { path: path.clone(), reason };
        let modules: Value =
            parse_json(text.as_bytes()).map_err(|error| refused(error.to_string()))?;
        let modules = modules.as_array().map_or(&[][..], Vec::as_slice);
        recipe.normalizes = false;
        for (index, module) in modules.iter().enumerate() {
            let field = |name: &str| module.get(name).and_then(Value::as_str).unwrap_or_default();
            let (class, place) = (field("type").rsplit('.').next(), field("path"));
            match (index, class, place) {
                (0, Some("Transformer"), "") => {}
                (1, Some("Pooling"), place) => {
                    recipe.read_pooling(&inside(folder, place, &path)?)?
                }
                (2.., Some("Normalize"), _) => recipe.normalizes = true,
                _ => {
                    let module = shown(&format!("{} in {place:?}", field("type")), 120);
                    return Err(refused(format!(
                        "module {index} is {module}, which is not built in: there may be a Transformer in the folder itself, \
                         Pooling, and Normalize"
                    )));
                }
            }
        }
        if modules.len() < 2 {
            return Err(refused("it has no list of a Transformer and Pooling".to_owned()));
        }
        recipe.read_prompts(&folder.join("config_sentence_transformers.json"))?;
        Ok(recipe)
    }

    fn read_pooling(&mut self, folder: &Path) -> Result<()> {
        let path = folder.join("config.json");
        let refused = |reason: String| Error::EmbeddingFile { path: path.clone(), reason };
        let config = read_object(&path)?.ok_or_else(|| refused("it is not there".to_owned()))?;
        let mut modes: Vec<String> = match config.get("pooling_mode") {
            Some(Value::String(mode)) => vec![mode.clone()],
            Some(Value::Array(modes)) => {
                modes.iter().map(|mode| mode.as_str().unwrap_or("?").to_owned()).collect()
            }
            // As older versions saved it.
            _ => (config.iter().filter(|(_, on)| on.as_bool() == Some(true)))
                .filter_map(|(key, _)| key.strip_prefix("pooling_mode_"))
                .map(|mode| match mode {
                    "cls_token" => "cls".to_owned(),
                    // But for `mean_sqrt_len_tokens`.
                    "mean_tokens" | "max_tokens" | "weightedmean_tokens" => {
                        mode.trim_end_matches("_tokens").to_owned()
                    }
                    mode => mode.to_owned(),
                })
                .collect(),
        };
        modes.truncate(8);
        self.pooling = match &modes[..] {
            [mode] => mode.parse().ok(),
            _ => None,
        }
        .ok_or_else(|| {
            let known: Vec<_> = Pooling::NAMES.iter().map(|(name, _)| *name).collect();
            let found = shown(&modes.join(", "), 120);
            refused(format!("the pooling mode is [{found}], expected one of {}", known.join(", ")))
        })?;
        self.includes_prompt = config.get("include_prompt") != Some(&Value::from(false));
        Ok(())
    }

    fn read_prompts(&mut self, path: &Path) -> Result<()> {
        let config = read_object(path)?.unwrap_or_default();
        let refused =
            |reason: &str| Error::EmbeddingFile { path: path.to_owned(), reason: reason.into() };
        match config.get("prompts") {
            None | Some(Value::Null) => {}
            Some(Value::Object(prompts)) => {
                for (name, prompt) in prompts {
                    let prompt = prompt.as_str().ok_or_else(|| refused("a prompt is no text"))?;
                    self.prompts.insert(name.clone(), prompt.to_owned());
                }
            }
            Some(_) => return Err(refused("prompts are not an object of texts by their names")),
        }
        self.default_prompt =
            config.get("default_prompt_name").and_then(Value::as_str).map(str::to_owned);
        match &self.default_prompt {
            Some(name) if !self.prompts.contains_key(name) => {
                Err(refused("default_prompt_name is not the name of a prompt"))
            }
            _ => Ok(()),
        }
    }

    /// The prompt of that name; without one, the default one, or none.
    ///
    /// # Errors
    /// A name that no prompt has.
    pub fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else {
            return Ok("");
        };
        self.prompts.get(name).map(String::as_str).ok_or_else(|| Error::EmbeddingPrompt {
            name: shown(name, 60),
            known: self.prompts.keys().take(20).cloned().collect(),
        })
    }
}

/// The folder of a module, which may not lead out of the model's.
fn inside(folder: &Path, place: &str, path: &Path) -> Result<PathBuf> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match !place.is_empty() && place.chars().all(is_plain) {
        true => Ok(folder.join(place)),
        false => Err(Error::EmbeddingFile {
            path: path.to_owned(),
            reason: format!(
                "{} is not the name of a folder beside it",
                shown(&format!("{place:?}"), 80)
            ),
        }),
    }
}

/// The longest text that the model's files speak of, in tokens.
fn longest(folder: &Path) -> Result<Option<usize>> {
    let path = folder.join("sentence_bert_config.json");
    let config = read_object(&path)?.unwrap_or_default();
    if config.get("do_lower_case") == Some(&Value::from(true)) {
        let reason =
            "do_lower_case is true, which changes embeddings and is not built in".to_owned();
        return Err(Error::EmbeddingFile { path, reason });
    }
    let number = |config: &Map<String, Value>, key| {
        config.get(key).and_then(Value::as_u64).and_then(|most| usize::try_from(most).ok())
    };
    if let Some(most) = number(&config, "max_seq_length") {
        return Ok(Some(most));
    }
    let tokenizer = read_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    Ok(number(&tokenizer, "model_max_length"))
}
