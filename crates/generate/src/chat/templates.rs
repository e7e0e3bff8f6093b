//! The chat templates of a model, wherever its files keep them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use outsize_checkpoint::{read_object, read_optional_text};
use serde_json::{Map, Value};

use super::template::ChatTemplate;
use crate::error::{Error, Result};
use crate::json_value::bad_key;

/// The most bytes read from a template. Real ones have at most 30 kB.
const LIMIT: u64 = 1 << 20;

/// The most named templates of a model.
const MOST: usize = 64;

/// The name of the template that is taken if none is named.
const DEFAULT: &str = "default";

/// The chat templates of a model, by name, and the special tokens that they may write.
#[derive(Debug, Clone, Default)]
pub struct ChatTemplates {
    /// Of each name, the file and the template.
    sources: BTreeMap<String, (PathBuf, String)>,
    tokens: BTreeMap<String, String>,
    folder: PathBuf,
}

impl ChatTemplates {
    /// Those of the model in `folder`, as transformers finds them: `chat_template.jinja` and
    /// `additional_chat_templates/*.jinja`; else `chat_template` in `tokenizer_config.json`, one or
    /// several with names; else none.
    ///
    /// # Errors
    /// Files that cannot be read, are too large (1 MiB for a template) or broken.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let config_path = folder.join("tokenizer_config.json");
        let config = read_object(&config_path)?.unwrap_or_default();
        let mut sources = files(folder)?;
        if sources.is_empty() {
            sources = of_config(&config, &config_path)?;
        }
        Ok(Self { sources, tokens: special_tokens(folder, &config)?, folder: folder.to_owned() })
    }

    /// The template in the file `path`, for the model in `folder`.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if there is no such file.
    pub fn open_file(folder: impl AsRef<Path>, path: &Path) -> Result<ChatTemplate> {
        let folder = folder.as_ref();
        let config = read_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        match read_optional_text(path, LIMIT)? {
            Some(source) => ChatTemplate::new(path, &source, special_tokens(folder, &config)?),
            None => {
                let source = std::io::ErrorKind::NotFound.into();
                let path = path.to_owned();
                Err(outsize_checkpoint::ConfigFileError::Read { path, source }.into())
            }
        }
    }

    /// Their names: `default` for one without.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.keys().map(String::as_str)
    }

    /// The default template.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`] if there is none, and as [`ChatTemplate::new`].
    pub fn default_template(&self) -> Result<ChatTemplate> {
        self.get(DEFAULT)
    }

    /// The template of that name.
    ///
    /// # Errors
    /// As [`default_template`](Self::default_template).
    pub fn get(&self, name: &str) -> Result<ChatTemplate> {
        match self.sources.get(name) {
            Some((path, source)) => ChatTemplate::new(path, source, self.tokens.clone()),
            None => Err(Error::NoChatTemplate {
                folder: self.folder.clone(),
                name: outsize_checkpoint::shown(name, 80),
                known: self.names().map(|name| outsize_checkpoint::shown(name, 80)).collect(),
            }),
        }
    }
}

/// The templates in files of their own.
fn files(folder: &Path) -> Result<BTreeMap<String, (PathBuf, String)>> {
    let mut paths = vec![(DEFAULT.to_owned(), folder.join("chat_template.jinja"))];
    let more = folder.join("additional_chat_templates");
    for path in more.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|end| end == "jinja")
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
            && paths.len() <= MOST
        {
            paths.push((name.to_owned(), path));
        }
    }
    let mut sources = BTreeMap::new();
    for (name, path) in paths {
        if let Some(source) = read_optional_text(&path, LIMIT)? {
            sources.insert(name, (path, source));
        }
    }
    Ok(sources)
}

/// Those in a tokenizer_config.json.
fn of_config(
    config: &Map<String, Value>,
    path: &Path,
) -> Result<BTreeMap<String, (PathBuf, String)>> {
    const KEY: &str = "chat_template";
    let found = match config.get(KEY) {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(value) => value,
    };
    let text =
        |value: &Value| value.as_str().filter(|text| text.len() as u64 <= LIMIT).map(str::to_owned);
    let named = |entry: &Value| Some((text(entry.get("name")?)?, text(entry.get("template")?)?));
    let templates: Option<Vec<_>> = match found {
        Value::Array(entries) if entries.len() <= MOST => entries.iter().map(named).collect(),
        single => text(single).map(|source| vec![(DEFAULT.to_owned(), source)]),
    };
    let Some(templates) = templates else {
        return Err(bad_key(path, KEY, found, "a template or a list of templates with names"));
    };
    Ok(templates.into_iter().map(|(name, text)| (name, (path.to_owned(), text))).collect())
}

/// The special tokens of a tokenizer, by the names that templates know them by: those of
/// tokenizer_config.json before those of the older special_tokens_map.json.
fn special_tokens(folder: &Path, config: &Map<String, Value>) -> Result<BTreeMap<String, String>> {
    let map = read_object(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
    let mut tokens = BTreeMap::new();
    for (key, value) in map.iter().chain(config).filter(|(key, _)| key.ends_with("_token")) {
        // A token is written as a string, or as an object with its content and how it is matched.
        let content = value.get("content").unwrap_or(value);
        if let Some(token) = content.as_str() {
            tokens.insert(key.clone(), token.to_owned());
        }
    }
    Ok(tokens)
}
