//! A model as the planner sees it, without any of its weights.

mod error;
mod fit;
mod names;

use std::path::{Path, PathBuf};

use outsize_checkpoint::{Checkpoint, Error as CheckpointError, TensorInfo};
use outsize_models::{CacheOptions, Error as ModelError, Logits, ModelConfig};
use outsize_plan::{MemoryOverhead, Options, Tree};

pub use self::error::DescribeError;
pub(crate) use self::error::without_name;
use crate::error::Error;
use crate::json_file::{CONFIG_LIMIT, read_bounded, reason};
use crate::pipeline::{LARGEST_CHUNK, MIN_RING, RESIDENT_SET_VARIES, process_bytes};

/// What a process grows by at most between describing a model and opening it, in bytes: code that is touched, headers, handles.
const UNTIL_OPENED: u64 = 8 << 20;

/// A model as the planner sees it.
#[derive(Debug, Clone)]
pub struct Described {
    /// Its blocks and their tensors. What they do besides holding weights is said by [`set_cache`](Self::set_cache).
    pub tree: Tree,
    /// Its configuration, if it is of an architecture that can be run.
    pub config: Option<ModelConfig>,
    /// What its configuration calls its architecture (`model_type`), built in or not; fit for a terminal.
    pub architecture: Option<String>,
    /// What the sizes come from.
    pub source: Source,
    /// What a user should know of it, each a sentence without a full stop.
    pub notes: Vec<String>,
}

/// What the sizes of a model come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// Its configuration alone: there were no weights.
    Config,
    /// The headers of its checkpoint; their order of use from its configuration.
    Both,
    /// The headers of its checkpoint alone: blocks and their order are guessed by the names.
    Headers,
}

impl Source {
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

/// Describes the model at `path`: a folder with a `config.json`, a checkpoint, or both; a checkpoint's `.safetensors` file or
/// index; or a configuration (another `.json` file). Of weights nothing but the headers is read.
///
/// A model of an architecture that can be run is described as [`outsize_core::tree`] would describe it. One of another
/// architecture, or whose tensors are not those of its configuration, is described by the names of its tensors, without classes.
///
/// # Errors
/// [`DescribeError`]: nothing that describes a model, a file that cannot be read or is damaged, or a configuration that
/// cannot be run and no tensors that would tell the sizes.
pub fn describe(path: &Path) -> Result<Described, DescribeError> {
    let is_folder = path.is_dir();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if !is_folder && name.ends_with(".json") && !name.ends_with(".safetensors.index.json") {
        let Some(config) = read(path)? else {
            return Err(DescribeError::NotFound {
                path: path.to_owned(),
            });
        };
        return Described::new(path, Some(config), None);
    }
    let folder = match is_folder {
        true => path,
        false => path.parent().unwrap_or(Path::new("")),
    };
    let checkpoint = match Checkpoint::open(path) {
        Ok(checkpoint) => Some(checkpoint),
        // The configuration may do.
        Err(CheckpointError::NoCheckpoint { .. } | CheckpointError::PickleOnly { .. })
            if is_folder =>
        {
            None
        }
        Err(error) => return Err(error.into()),
    };
    let config = read(&folder.join("config.json"))?;
    if config.is_none() && checkpoint.is_none() {
        return Err(DescribeError::Nothing {
            folder: folder.to_owned(),
        });
    }
    let tensors = checkpoint.as_ref().map(Checkpoint::tensors);
    let mut described = Described::new(path, config, tensors)?;
    let ignored = checkpoint.as_ref().map_or(0, |found| found.ignored().len());
    if ignored > 0 {
        described.notes.push(format!(
            "{ignored} tensors in the shards are not in the index, and not counted"
        ));
    }
    Ok(described)
}

fn read(path: &Path) -> Result<Option<ConfigText>, Error> {
    let bytes = read_bounded(path, CONFIG_LIMIT)?;
    Ok(bytes.map(|bytes| ConfigText {
        path: path.to_owned(),
        bytes,
    }))
}

impl Described {
    /// Describes the model of a configuration, of a checkpoint's tensors, or of both. `place` is where messages say it is.
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
        if let Some(text) = config {
            let object: serde_json::Map<String, serde_json::Value> =
                serde_json::from_slice(&text.bytes).map_err(|error| Error::NotJson {
                    path: text.path.clone(),
                    reason: reason(&text.bytes, &error),
                })?;
            architecture = object
                .get("model_type")
                .and_then(|name| name.as_str())
                .map(|name| name.escape_debug().take(80).collect());
            // What was parsed as an object is UTF-8.
            match ModelConfig::from_json(&String::from_utf8_lossy(&text.bytes)) {
                Ok(config) => known = Some(config),
                Err(error) if tensors.is_none() => {
                    return Err(DescribeError::Unknown {
                        path: text.path,
                        source: error,
                    });
                }
                Err(ModelError::ModelType { found, .. }) => {
                    notes.push(format!("the architecture {found} is not built in"));
                }
                Err(error) => notes.push(error.to_string()),
            }
        }
        let mut described = match (known, tensors) {
            (Some(config), None) => {
                if config.dtype.is_none() {
                    notes.push(
                        "config.json does not say in which type the weights are stored: f32 is assumed"
                            .to_owned(),
                    );
                }
                Self {
                    tree: config.tree(),
                    config: Some(config),
                    architecture,
                    source: Source::Config,
                    notes,
                }
            }
            (Some(config), Some(tensors)) => {
                let (tree, source) = match fit::tree(&config, tensors) {
                    Ok(tree) => (tree, Source::Both),
                    Err(misfit) => {
                        notes.push(misfit);
                        (names::tree(tensors), Source::Headers)
                    }
                };
                Self {
                    tree,
                    config: Some(config),
                    architecture,
                    source,
                    notes,
                }
            }
            (None, Some(tensors)) => Self {
                tree: names::tree(tensors),
                config: None,
                architecture,
                source: Source::Headers,
                notes,
            },
            (None, None) => {
                return Err(DescribeError::Nothing {
                    folder: place.to_owned(),
                });
            }
        };
        if let Some(config) = &described.config {
            if !config.unknown_fields.is_empty() {
                described.notes.push(format!(
                    "config.json has fields that are not known here and change nothing: {}",
                    config.unknown_fields.join(", ")
                ));
            }
            config.add_work(&mut described.tree, &no_cache());
        }
        Ok(described)
    }

    /// Says of each block what it keeps in a KV cache that is made for `cache`; does nothing if the architecture is not built in.
    pub fn set_cache(&mut self, cache: &CacheOptions) {
        if let Some(config) = &self.config {
            config.add_work(&mut self.tree, cache);
        }
    }

    /// What [`Pipeline`](crate::Pipeline) plans with besides budget and KV cache, in passes over `tokens` tokens of each text, of which
    /// the last one's logits are wanted: this process as it will be, activations, and the least ring. None if the architecture is not
    /// built in.
    pub fn options(&self, cache: &CacheOptions, tokens: usize) -> Option<Options> {
        let config = self.config.as_ref()?;
        Some(Options {
            needs: MemoryOverhead {
                process: process_bytes() + UNTIL_OPENED + RESIDENT_SET_VARIES,
                activations: config.activation_bytes(tokens, cache, Logits::Last),
                ..MemoryOverhead::default()
            },
            min_ring: MIN_RING,
            ..outsize_core::Options::default().plan()
        })
    }

    /// Tokens that one pass over a long prompt takes if there is room.
    pub const LONGEST_PASS: usize = LARGEST_CHUNK;
}

/// A cache for nothing: until somebody says for what the model is to run.
fn no_cache() -> CacheOptions {
    CacheOptions::new(0)
}

#[cfg(test)]
mod tests;
