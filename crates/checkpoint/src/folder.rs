use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The file that holds a whole checkpoint.
pub(crate) const SINGLE_FILE: &str = "model.safetensors";
/// The index of a checkpoint in shards.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";

/// Names under which folders hold weights as Python pickles.
const PICKLES: [&str; 4] =
    ["pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pt"];

/// Where the tensors of a checkpoint are said to be.
pub(crate) enum Source {
    /// One `.safetensors` file.
    File(PathBuf),
    /// An index of shards, beside them.
    Index(PathBuf),
}

impl Source {
    /// Finds the checkpoint that `path`, a folder or a file, stands for.
    ///
    /// In a folder, one file with everything goes before an index, as in transformers.
    pub fn find(path: &Path) -> Result<Self, Error> {
        let kind = match path.metadata() {
            Ok(kind) => kind,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NotFound { path: path.to_owned() });
            }
            Err(cause) => {
                return Err(Error::Read { path: path.to_owned(), cause });
            }
        };
        if !kind.is_dir() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            return if name.ends_with(".safetensors") {
                Ok(Self::File(path.to_owned()))
            } else if name.ends_with(".safetensors.index.json") {
                Ok(Self::Index(path.to_owned()))
            } else {
                Err(Error::NotACheckpoint { path: path.to_owned() })
            };
        }
        let single = path.join(SINGLE_FILE);
        let index = path.join(INDEX_FILE);
        if exists(&single)? {
            Ok(Self::File(single))
        } else if exists(&index)? {
            Ok(Self::Index(index))
        } else {
            Err(no_checkpoint(path))
        }
    }
}

/// Whether `path` exists, even as a broken link: that is reported when it is opened.
fn exists(path: &Path) -> Result<bool, Error> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(Error::Read { path: path.to_owned(), cause }),
    }
}

/// Describes the contents of a folder without a checkpoint.
fn no_checkpoint(folder: &Path) -> Error {
    let mut names = Vec::new();
    let listing = folder.read_dir().and_then(|entries| {
        for entry in entries {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(())
    });
    if let Err(cause) = listing {
        return Error::Read { path: folder.to_owned(), cause };
    }
    names.sort();
    let weights: Vec<_> = names.iter().filter(|name| name.ends_with(".safetensors")).collect();
    if let [first, ..] = weights[..] {
        let (count, files) = (weights.len(), if weights.len() == 1 { "file" } else { "files" });
        let found = format!(
            "{count} other .safetensors {files}, such as {first:?}; give the path of a file that is complete by \
             itself, or download the index of the shards too"
        );
        return Error::NoCheckpoint { folder: folder.to_owned(), found };
    }
    if let Some(pickle) = PICKLES.iter().find(|pickle| names.iter().any(|name| name == *pickle)) {
        return Error::PickleOnly { folder: folder.to_owned(), file: (*pickle).to_owned() };
    }
    let found = match &names[..] {
        [] => "an empty folder".to_owned(),
        [first] => format!("only {first:?}"),
        [first, rest @ ..] => format!("{} other files, such as {first:?}", rest.len() + 1),
    };
    Error::NoCheckpoint { folder: folder.to_owned(), found }
}

/// The folder that a file or folder is in, never empty.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}
