use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::gguf;

/// The file that holds a whole checkpoint.
pub(crate) const SINGLE_FILE: &str = "model.safetensors";
/// The index of a checkpoint in shards.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";

/// Whether a file is an index of shards.
pub(crate) type IsIndex = bool;
/// Files of a checkpoint in the order in which transformers prefers them, and Burn's own, with what
/// they are.
pub(crate) const NAMES: [(&str, Container, IsIndex); 5] = [
    (SINGLE_FILE, Container::Safetensors, false),
    (INDEX_FILE, Container::Safetensors, true),
    ("pytorch_model.bin", Container::Torch, false),
    ("pytorch_model.bin.index.json", Container::Torch, true),
    ("model.bpk", Container::Burnpack, false),
];
/// The same of a file given by its path, by the end of its name.
const ENDS: [(&str, Container, IsIndex); 7] = [
    (".safetensors", Container::Safetensors, false),
    (".safetensors.index.json", Container::Safetensors, true),
    (".bin", Container::Torch, false),
    (".pt", Container::Torch, false),
    (".pth", Container::Torch, false),
    (".bin.index.json", Container::Torch, true),
    (".bpk", Container::Burnpack, false),
];
/// Names of other programs for files of `torch.save`.
const PICKLES: [&str; 2] = ["consolidated.00.pth", "model.pt"];

/// Where the tensors of a checkpoint are said to be.
pub(crate) enum Source {
    /// One file.
    File(Container, PathBuf),
    /// An index of shards, beside them.
    Index(Container, PathBuf),
    /// A GGUF file, or the first of its parts.
    Gguf(PathBuf),
}

/// What a file with tensors is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Container {
    Safetensors,
    /// A zip archive of `torch.save`.
    Torch,
    /// What `save_file` of a Burn module writes.
    Burnpack,
}

impl Source {
    /// Finds the checkpoint that `path`, a folder or a file, stands for.
    ///
    /// In a folder, safetensors go before files of `torch.save` and these before burnpack, and one
    /// file with everything before an index, as in transformers.
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
        if gguf::is_gguf(path) {
            return Ok(Self::Gguf(path.to_owned()));
        }
        if !kind.is_dir() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let known = ENDS.iter().find(|(end, ..)| name.ends_with(end));
            let (_, container, is_index) =
                known.ok_or_else(|| Error::NotACheckpoint { path: path.to_owned() })?;
            return Ok(Self::new(*container, *is_index, path.to_owned()));
        }
        for (name, container, is_index) in NAMES {
            let file = path.join(name);
            if exists(&file)? {
                return Ok(Self::new(container, is_index, file));
            }
        }
        Err(no_checkpoint(path))
    }

    fn new(container: Container, is_index: IsIndex, path: PathBuf) -> Self {
        match is_index {
            true => Self::Index(container, path),
            false => Self::File(container, path),
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
    if let Some(module) = names.iter().find(|name| name.ends_with(".bpk")) {
        let found = format!("{module:?}; give the path of that file");
        return Error::NoCheckpoint { folder: folder.to_owned(), found };
    }
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

/// The folder in which the `config.json` and the tokenizer of the checkpoint at `path` are: the
/// folder itself or that of the file. A GGUF file is such a folder too:
/// [`read_optional`](crate::read_optional) makes these files from its metadata.
pub fn model_folder(path: &Path) -> &Path {
    match path.is_file() && !gguf::is_gguf(path) {
        true => folder_of(path),
        false => path,
    }
}

/// The folder that a file or folder is in, never empty.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}
