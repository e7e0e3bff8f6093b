//! A tokenizer.json that is read and not parsed yet, and what it takes in memory.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::json_file::read_bounded;

/// The most bytes read from a tokenizer.json. Those with 256k tokens have about 35 MB.
const LIMIT: u64 = 256 << 20;

/// Bytes of one string of a vocabulary or of its merges: held twice, by token and by id, and once more while they are read.
const STRING: u64 = 125;

/// Bytes of a slot of the two hash tables that hold them.
const SLOT: u64 = 64;

/// The text of a tokenizer.json.
pub struct TokenizerFile {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

impl TokenizerFile {
    /// Reads the tokenizer.json of the checkpoint in `folder`.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`] if there is none; one that cannot be read, or has more than 256 MiB.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let path = folder.join("tokenizer.json");
        match read_bounded(&path, LIMIT)? {
            Some(bytes) => Ok(Self { path, bytes }),
            None => Err(Error::NoTokenizer { folder: folder.to_owned() }),
        }
    }

    /// What loading it takes, in bytes: an estimate from its size and the strings in it, which are counted without parsing.
    pub fn memory(&self) -> u64 {
        let quotes = self.bytes.iter().filter(|byte| **byte == b'"').count() as u64;
        let strings = quotes / 2;
        // A hash table is at most seven eighths full, and doubles.
        let slots = (strings * 8 / 7).next_power_of_two();
        self.bytes.len() as u64 + strings * STRING + slots * SLOT
    }
}

impl fmt::Debug for TokenizerFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenizerFile({}, {} bytes)", self.path.display(), self.bytes.len())
    }
}
