//! GGUF files of vision encoders, `mmproj` files, which lie beside the file of their language
//! model.

mod config;
mod names;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use self::config::Encoder;
pub(super) use self::names::renamed;
use super::header::metadata;
use super::names::lists;
use super::{ARCHITECTURE, GgufFault, GgufFile, GgufHeader, is_gguf};
use crate::error::Error;
use crate::text::shown;

/// What such files have as their architecture.
pub(super) const VISION_ENCODER: &str = "clip";

/// What llama.cpp calls the part that makes features, what the files are called in the tables here,
/// and the architectures of the language models.
const PROJECTORS: &[(&str, &str, &str)] = &[
    ("gemma3", "gemma3", "gemma3"),
    ("gemma4v", "gemma4", "gemma4"),
    ("glm4v", "glm", "glm4 glm4moe"),
    ("pixtral", "pixtral", "llama mistral3"),
    ("qwen2vl_merger", "qwen2", "qwen2vl"),
    ("qwen2.5vl_merger", "qwen2_5", "qwen2vl"),
    ("qwen3vl_merger", "qwen3", "qwen3vl qwen3vlmoe qwen35 qwen35moe"),
];

/// More letters of a name help nobody.
const MOST_SHOWN: usize = 100;

/// A vision encoder in a GGUF file of its own, with what transformers has of it and its language
/// model in small files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufVision {
    /// The file of the encoder, a checkpoint of its tensors.
    pub path: PathBuf,
    /// `config.json` of both models together.
    pub config: String,
    /// `preprocessor_config.json`.
    pub processor: String,
}

impl GgufVision {
    /// The encoder in the file `path`, for the language model in the file `model`.
    ///
    /// # Errors
    /// A file that cannot be read, is no vision encoder of a kind that is built in, or is one of
    /// another language model.
    pub fn open(model: &Path, path: &Path) -> Result<Self, Error> {
        Self::of(&GgufFile::open(model)?, path)
    }

    /// The same of the file whose name has `mmproj` in it beside the language model, or in the
    /// folder above, if there is one for it.
    ///
    /// # Errors
    /// As [`open`](Self::open), if there is one such file; or several of them are for this model.
    pub fn beside(model: &Path) -> Result<Option<Self>, Error> {
        // Of a path that is a name alone the folder has none.
        let above = model.ancestors().skip(1).take(2);
        let folders =
            above.map(|folder| if folder == Path::new("") { Path::new(".") } else { folder });
        let found = folders.map(encoders).find(|paths| !paths.is_empty());
        let Some(paths) = found else { return Ok(None) };
        let file = GgufFile::open(model)?;
        if let [only] = &paths[..] {
            return Self::of(&file, only).map(Some);
        }
        let mut fitting = paths.iter().filter_map(|path| Self::of(&file, path).ok());
        let first = fitting.next();
        match (&first, fitting.next()) {
            (Some(one), Some(other)) => {
                let name = |one: &Self| {
                    shown(&one.path.file_name().unwrap_or_default().to_string_lossy(), MOST_SHOWN)
                };
                let (one, other) = (name(one), name(&other));
                Err(file.first.wrong(GgufFault::SeveralEncoders { one, other }))
            }
            _ => Ok(first),
        }
    }

    /// Whether files of vision encoders are called so: `mmproj` is in the name itself, without
    /// folders.
    pub fn is_name(name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let own = name.rsplit('/').next().unwrap_or(&name);
        own.ends_with(".gguf") && own.contains("mmproj")
    }

    fn of(model: &GgufFile, path: &Path) -> Result<Self, Error> {
        let file = GgufFile::open(path)?;
        let (own, theirs) = (&file.first.header, &model.first.header);
        let wrong = |fault| file.first.wrong(fault);
        let family = family_for(own, theirs).map_err(wrong)?;
        let tokens = config::tokens(family, theirs).map_err(|fault| model.first.wrong(fault))?;
        let text = model.config(|part, at, to| part.source.read(&part.path, at, to))?;
        let text: Map<String, Value> = serde_json::from_slice(&text).unwrap_or_default();
        let tensors: Vec<_> = file.parts().flat_map(|part| part.header.tensors()).collect();
        let encoder = Encoder { header: own, tensors: &tensors, family };
        let made = config::made(&encoder, theirs, text, tokens);
        let (config, processor) = made.map_err(wrong)?;
        Ok(Self { path: path.to_owned(), config, processor })
    }
}

/// The files of a folder that are called as vision encoders are, by name.
fn encoders(folder: &Path) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        GgufVision::is_name(&name) && is_gguf(path)
    };
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(is_one).collect();
    paths.sort();
    paths
}

/// Whether a file is a vision encoder.
pub(super) fn is_one(header: &GgufHeader) -> bool {
    header.text(ARCHITECTURE).ok().flatten() == Some(VISION_ENCODER)
}

/// The same as [`family`]'s, if it is one for this language model.
fn family_for(header: &GgufHeader, model: &GgufHeader) -> Result<&'static str, GgufFault> {
    if !is_one(header) {
        let reason = format!("it must be {VISION_ENCODER:?}, as of vision encoders");
        return Err(metadata(ARCHITECTURE, reason));
    }
    let (family, models) = family(header)?;
    let found = model.text(ARCHITECTURE)?.unwrap_or_default();
    match lists(models, found) {
        true => Ok(family),
        false => {
            let models = models.replace(' ', ", ");
            let reason = format!(
                "this vision encoder is for language models of {models}, and the one given is {found:?}"
            );
            Err(metadata(ARCHITECTURE, reason))
        }
    }
}

/// What the file is called in the tables here, and the architectures of its language models.
fn family(header: &GgufHeader) -> Result<(&'static str, &'static str), GgufFault> {
    // The second one where a file hears, too.
    let keys = ["clip.projector_type", "clip.vision.projector_type"];
    let mut found = None;
    for key in keys {
        found = found.or(header.text(key)?.map(|kind| (key, kind)));
    }
    let (key, kind) = found.ok_or_else(|| metadata(keys[0], "it is missing".to_owned()))?;
    let known = PROJECTORS.iter().find(|(theirs, ..)| *theirs == kind);
    known.map(|(_, family, models)| (*family, *models)).ok_or_else(|| {
        let known: Vec<_> = PROJECTORS.iter().map(|(theirs, ..)| *theirs).collect();
        let reason = format!(
            "the vision encoder {kind:?} is not built in for GGUF files: {} are",
            known.join(", ")
        );
        metadata(key, reason)
    })
}
