//! What lies beside the weights of a checkpoint: configuration, tokenizer, licence.

use std::fs;
use std::path::{Path, PathBuf};

use crate::config_file::{ConfigFileError, read_optional};
use crate::text::shown;
use crate::whole_file::read_file;

/// The largest file that is taken. Tokenizers of real models stay under 40 MB.
const LIMIT: u64 = 64 << 20;

/// The endings of files of weights, and of what other software makes of them.
const WEIGHTS: [&str; 15] = [
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".bpk",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".ot",
    ".ckpt",
    ".npz",
    ".tflite",
    ".index.json",
    ".lock",
];

/// What is made of a GGUF file's metadata.
const MADE: [&str; 3] = ["config.json", "tokenizer.json", "tokenizer_config.json"];

/// The small files of a checkpoint.
#[derive(Debug)]
pub struct SmallFiles {
    /// Their names and what is in them.
    pub files: Vec<(String, Vec<u8>)>,
    /// The names of others than weights that are too large, or lead out of the folder.
    pub left_out: Vec<String>,
}

impl SmallFiles {
    /// Reads the small files of the folder, or makes those of a GGUF file. A folder without
    /// `config.json`, in which a file of weights may lie among anything else, has none.
    ///
    /// # Errors
    /// A file or the folder that cannot be read.
    pub fn read(folder: &Path) -> Result<Self, ConfigFileError> {
        let mut found = Self { files: Vec::new(), left_out: Vec::new() };
        if folder.is_file() {
            for name in MADE {
                let made = read_optional(&folder.join(name), LIMIT)?;
                found.files.extend(made.map(|bytes| (name.to_owned(), bytes)));
            }
            return Ok(found);
        }
        if !folder.join("config.json").exists() {
            return Ok(found);
        }
        let cannot = |path: &Path, source| ConfigFileError::Read { path: path.to_owned(), source };
        let places = places(folder).map_err(|error| cannot(folder, error))?;
        let mut names: Vec<_> = fs::read_dir(folder)
            .and_then(|entries| {
                entries.map(|entry| Ok(entry?.file_name())).collect::<Result<_, _>>()
            })
            .map_err(|error| cannot(folder, error))?;
        names.sort_unstable();
        for name in names {
            let path = folder.join(&name);
            // What cannot be looked at, such as a link to nothing, is not copied either.
            let (Some(name), Ok(real)) = (name.to_str(), path.canonicalize()) else {
                found.left_out.push(shown(&name.to_string_lossy(), 80));
                continue;
            };
            let is_weight = WEIGHTS.iter().any(|end| name.to_ascii_lowercase().ends_with(end));
            if is_weight || name.starts_with('.') || !real.is_file() {
                continue;
            }
            let is_inside = places.iter().any(|place| real.starts_with(place));
            let is_small = real.metadata().is_ok_and(|data| data.len() <= LIMIT);
            if !is_inside || !is_small {
                found.left_out.push(shown(name, 80));
                continue;
            }
            let bytes = read_file(&real, LIMIT).map_err(|error| cannot(&path, error))?;
            found.files.push((name.to_owned(), bytes));
        }
        Ok(found)
    }
}

/// Where links may lead: into the folder, and in the Hub's cache to where a model's files are.
fn places(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let folder = folder.canonicalize()?;
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|model| model.join("blobs"));
    Ok([Some(folder.clone()), blobs].into_iter().flatten().collect())
}
