//! A model as the planner sees it, without any of its weights.

mod error;
mod names;

use std::path::{Path, PathBuf};

use outsize_checkpoint::{
    CONFIG_LIMIT, Checkpoint, Error as CheckpointError, TensorInfo, TorchFault, model_folder,
    parse_object, read_optional, shown,
};
use outsize_core::{Error as CoreError, KeyMismatch};
use outsize_models::{CacheOptions, Error as ModelError, Logits, ModelConfig};
use outsize_plan::Tree;

pub use self::error::DescribeError;
pub(crate) use self::error::without_name;
use crate::error::Error;
use crate::tokenizer_file::TokenizerFile;

/// A model as the planner sees it.
#[derive(Debug, Clone)]
pub struct Described {
    /// Its blocks and their tensors. What they do besides holding weights is said by
    /// [`set_cache`](Self::set_cache).
    pub tree: Tree,
    /// Its configuration, if it is of an architecture that can be run.
    pub config: Option<ModelConfig>,
    /// What its configuration calls its architecture (`model_type`), built in or not; fit for a
    /// terminal.
    pub architecture: Option<String>,
    /// What the sizes come from.
    pub source: SizeSource,
    /// What its tokenizer takes, in bytes; zero if it has none.
    pub tokenizer_bytes: u64,
    /// What a user should know of it, each a sentence without a full stop.
    pub notes: Vec<String>,
}

/// What the sizes of a model come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SizeSource {
    /// Its configuration alone: there were no weights.
    Config,
    /// The headers of its checkpoint; their order of use from its configuration.
    Both,
    /// The headers of its checkpoint alone: blocks and their order are guessed by the names.
    Headers,
}

impl SizeSource {
    /// As it is written: `config`, `config and headers` or `headers`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Both => "config and headers",
            Self::Headers => "headers",
        }
    }
}

/// The text of a configuration, and where it was found.
#[derive(Debug, Clone)]
pub struct ConfigText {
    /// The file, as messages name it.
    pub path: PathBuf,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// Describes the model at `path`: a folder with a `config.json`, a checkpoint, or both; a
/// checkpoint's `.safetensors` or `.bin` file or index; or a configuration (another `.json` file).
/// Of weights nothing but the headers is read.
///
/// A model of an architecture that can be run is described as [`outsize_core::tree`] would describe
/// it. One of another architecture, or whose tensors are not those of its configuration, is
/// described by the names of its tensors, without classes.
///
/// # Errors
/// [`DescribeError`]: nothing that describes a model, a file that cannot be read or is damaged, or
/// a configuration that cannot be run and no tensors that would tell the sizes.
pub fn describe(path: &Path) -> Result<Described, DescribeError> {
    let is_folder = path.is_dir();
    let folder = model_folder(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if !is_folder && name.ends_with(".json") && !name.ends_with(".index.json") {
        let Some(config) = read(path)? else {
            return Err(DescribeError::NotFound { path: path.to_owned() });
        };
        let mut described = Described::new(path, Some(config), None)?;
        described.tokenizer_bytes = tokenizer_bytes(folder);
        return Ok(described);
    }
    let checkpoint = match Checkpoint::open(path) {
        Ok(checkpoint) => Some(checkpoint),
        // The configuration may do.
        Err(
            CheckpointError::NoCheckpoint { .. }
            | CheckpointError::PickleOnly { .. }
            | CheckpointError::Torch { fault: TorchFault::Legacy, .. },
        ) if is_folder => None,
        Err(error) => return Err(error.into()),
    };
    let config = read(&folder.join("config.json"))?;
    if config.is_none() && checkpoint.is_none() {
        return Err(DescribeError::Nothing { folder: folder.to_owned() });
    }
    let tensors = checkpoint.as_ref().map(Checkpoint::tensors);
    let mut described = Described::new(path, config, tensors)?;
    described.tokenizer_bytes = tokenizer_bytes(folder);
    let ignored = checkpoint.as_ref().map_or(0, |found| found.ignored().len());
    if ignored > 0 {
        described
            .notes
            .push(format!("{ignored} tensors in the shards are not in the index, and not counted"));
    }
    Ok(described)
}

/// What the tokenizer in a folder takes; zero without one, or with one that cannot be read.
fn tokenizer_bytes(folder: &Path) -> u64 {
    TokenizerFile::read(folder).map_or(0, |file| file.memory())
}

fn read(path: &Path) -> Result<Option<ConfigText>, Error> {
    let bytes = read_optional(path, CONFIG_LIMIT)?;
    Ok(bytes.map(|bytes| ConfigText { path: path.to_owned(), bytes }))
}

impl Described {
    /// Describes the model of a configuration, of a checkpoint's tensors, or of both. `place` is
    /// where messages say it is.
    ///
    /// # Errors
    /// As [`describe`].
    pub fn new(
        place: &Path,
        config: Option<ConfigText>,
        tensors: Option<&[TensorInfo]>,
    ) -> Result<Self, DescribeError> {
        let mut notes = Vec::new();
        let mut architecture = None;
        let mut known = None;
        let mut json = String::new();
        if let Some(text) = config {
            let object = parse_object(&text.path, &text.bytes).map_err(Error::from)?;
            architecture =
                object.get("model_type").and_then(|name| name.as_str()).map(|name| shown(name, 80));
            // What was parsed as an object is UTF-8.
            json = String::from_utf8_lossy(&text.bytes).into_owned();
            known = match ModelConfig::from_json(&json) {
                Ok(config) => Some(config),
                Err(error) => match (without_head(&json), error) {
                    (Some(config), _) => Some(config),
                    (None, source) if tensors.is_none() => {
                        return Err(DescribeError::Unknown { path: text.path, source });
                    }
                    (None, ModelError::ModelType { found, .. }) => {
                        notes.push(format!("the architecture {found} is not built in"));
                        None
                    }
                    (None, error) => {
                        notes.push(error.to_string());
                        None
                    }
                },
            };
        }
        let (mut tree, source) = match (&known, tensors) {
            (Some(config), None) => {
                if config.dtype.is_none() {
                    notes.push(
                        "config.json does not say in which type the weights are stored: f32 is assumed"
                            .to_owned(),
                    );
                }
                (config.tree_without_weights()?, SizeSource::Config)
            }
            (Some(config), Some(tensors)) => match config.tree(&place.to_string_lossy(), tensors) {
                Ok(tree) => (tree, SizeSource::Both),
                Err(CoreError::Mismatch(mismatch)) => {
                    let bare = without_head(&json).and_then(|config| {
                        let tree = config.tree(&place.to_string_lossy(), tensors).ok()?;
                        Some((config, tree))
                    });
                    match bare {
                        Some((config, tree)) => {
                            known = Some(config);
                            (tree, SizeSource::Both)
                        }
                        None => {
                            notes.push(not_the_configurations(&mismatch));
                            (names::tree(tensors), SizeSource::Headers)
                        }
                    }
                }
                Err(error) => return Err(error.into()),
            },
            (None, Some(tensors)) => (names::tree(tensors), SizeSource::Headers),
            (None, None) => {
                return Err(DescribeError::Nothing { folder: place.to_owned() });
            }
        };
        if let Some(config) = &known {
            if config.is_headless() {
                notes.push(
                    "it has no head: it makes vectors of texts, and goes on with none".to_owned(),
                );
            }
            if !config.unknown_fields.is_empty() {
                notes.push(format!(
                    "config.json has fields that are not known here and change nothing: {}",
                    config.unknown_fields.join(", ")
                ));
            }
            let others = tensors.map_or(0, |tensors| config.other_parts(tensors).count());
            if others > 0 {
                notes.push(match config.is_text_part() {
                    true => format!(
                        "{others} tensors of its vision part are passed over: only its text part runs"
                    ),
                    false => format!(
                        "{others} tensors behind its last layer are passed over: they guess further tokens"
                    ),
                });
            }
            // A cache for nothing: until somebody says for what the model is to run.
            config.add_work(&mut tree, &CacheOptions::new(0), Logits::Last);
        }
        Ok(Self { tree, config: known, architecture, source, tokenizer_bytes: 0, notes })
    }

    /// Says of each block what it keeps in a KV cache that is made for `cache`; does nothing if the
    /// architecture is not built in.
    pub fn set_cache(&mut self, cache: &CacheOptions) {
        if let Some(config) = &self.config {
            config.add_work(&mut self.tree, cache, Logits::Last);
        }
    }
}

/// The model of a configuration without its head, if it can be run so.
fn without_head(json: &str) -> Option<ModelConfig> {
    ModelConfig::without_head(json).ok().filter(|config| config.decoder_start().is_none())
}

/// Why the weights are described by their names alone.
fn not_the_configurations(mismatch: &KeyMismatch) -> String {
    let missing = mismatch.missing.iter().map(|(name, _)| name);
    let misshaped = mismatch.misshaped.iter().map(|(name, ..)| name);
    let mistyped = mismatch.mistyped.iter().map(|(name, ..)| name);
    let faults: [(Vec<&String>, &str); 4] = [
        (missing.collect(), "missing"),
        (misshaped.collect(), "of another shape"),
        (mistyped.collect(), "of a type that is not built in"),
        (mismatch.unexpected.iter().collect(), "not the model's"),
    ];
    let faults = faults.iter().filter_map(|(names, fault)| {
        let first = names.first()?;
        Some(match names.len() {
            1 => format!("{first:?} is {fault}"),
            n => format!("{n} tensors are {fault}, {first:?} first"),
        })
    });
    format!(
        "the weights are not those of config.json, so the model cannot be run as it is: {}",
        faults.collect::<Vec<_>>().join("; ")
    )
}

#[cfg(test)]
mod tests;
