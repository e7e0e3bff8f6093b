//! A tokenizer.json that is read and not parsed yet.

use std::fmt;
use std::path::{Path, PathBuf};

use outsize_checkpoint::{made_length, read_optional};

use crate::error::{Error, Result};
use crate::tokenizer_memory::TokenizerCounts;

/// The most bytes read from a tokenizer.json. Those with 256k tokens have about 35 MB.
const LIMIT: u64 = 256 << 20;

/// The text of a tokenizer.json.
pub struct TokenizerFile {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

impl TokenizerFile {
    /// The text of a tokenizer.json that was made rather than read; messages name `path` for it.
    pub fn new(path: PathBuf, bytes: Vec<u8>) -> Self {
        Self { path, bytes }
    }

    /// Reads the tokenizer.json of the checkpoint in `folder`.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`] if there is none; one that cannot be read, or has more than 256 MiB.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let path = folder.join("tokenizer.json");
        match read_optional(&path, LIMIT)? {
            Some(bytes) => Ok(Self { path, bytes }),
            None => Err(Error::NoTokenizer { folder: folder.to_owned() }),
        }
    }

    /// The length of the tokenizer.json in `folder`, in bytes: what reading it takes, and less than
    /// loading it. Zero if there is none.
    pub fn length(folder: impl AsRef<Path>) -> u64 {
        let path = folder.as_ref().join("tokenizer.json");
        made_length(&path)
            .unwrap_or_else(|| path.metadata().map_or(0, |file| file.len().min(LIMIT)))
    }

    /// An upper bound on what it takes in memory to load and to hold it, in bytes, this text
    /// included. Nothing is parsed.
    pub fn memory(&self) -> u64 {
        TokenizerCounts::of(&self.bytes).memory()
    }
}

impl fmt::Debug for TokenizerFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenizerFile({}, {} bytes)", self.path.display(), self.bytes.len())
    }
}
