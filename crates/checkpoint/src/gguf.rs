//! GGUF, llama.cpp's container: metadata and tensors in one file.
//!
//! The file is read as if it were the folder of a Hugging Face checkpoint: its tensors have the
//! names of transformers, and `config.json`, `tokenizer.json` and `tokenizer_config.json` are made
//! from its metadata. The format is
//! [ggml's](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3.

mod config;
mod fault;
mod header;
mod names;
mod tokenizer;
mod value;

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};

use self::names::{ROPE_FACTORS, ROPE_FREQUENCIES};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::file::{ShardFile, open_regular, read_exact_at};
use crate::header::HeaderEntry;

pub use self::fault::GgufFault;
pub use self::header::GgufHeader;
pub use self::value::GgufValue;

/// An open GGUF file whose header was found right.
#[derive(Debug)]
pub struct GgufFile {
    path: PathBuf,
    file: File,
    opened: Metadata,
    header: GgufHeader,
}

impl GgufFile {
    /// Opens a file and checks its header. No weight is read.
    ///
    /// # Errors
    /// If it cannot be read, or is no GGUF file of a kind that is supported.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (file, opened) = open_regular(path)?;
        let fill = |at, to: &mut [u8]| {
            read_exact_at(&file, to, at)
                .map_err(|cause| Error::Read { path: path.to_owned(), cause })
        };
        let wrong = |fault| Error::Gguf { path: path.to_owned(), fault };
        let header = GgufHeader::read(opened.len(), fill, wrong)?;
        Ok(Self { path: path.to_owned(), file, opened, header })
    }

    /// The file, and its tensors under the names of transformers, with offsets from the file's beginning.
    pub(crate) fn into_shard(self) -> (ShardFile, Vec<HeaderEntry>) {
        let Self { path, file, opened, header } = self;
        let tensors = names::renamed(&header);
        (ShardFile::new(path, file, opened), tensors)
    }

    /// A small file of a checkpoint's folder, made from the metadata; `None` if there would be none.
    fn made(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let wrong = |fault| self.wrong(fault);
        Ok(match name {
            "config.json" => {
                let floats = |name| self.floats(name);
                let factors =
                    [floats(ROPE_FREQUENCIES)?, floats(ROPE_FACTORS[0])?, floats(ROPE_FACTORS[1])?];
                Some(config::json(&self.header, factors).map_err(wrong)?)
            }
            "tokenizer.json" => tokenizer::json(&self.header).map_err(wrong)?,
            "tokenizer_config.json" => Some(tokenizer::config(&self.header).map_err(wrong)?),
            _ => None,
        })
    }

    /// The values of a small tensor of 32-bit floats; `None` if there is none.
    fn floats(&self, name: &str) -> Result<Option<Vec<f32>>, Error> {
        const MOST: u64 = 1 << 16;
        let Some(entry) = self.header.tensors().iter().find(|entry| entry.name == name) else {
            return Ok(None);
        };
        let len = entry.end - entry.start;
        if entry.dtype != Dtype::F32 || len > MOST {
            let reason = format!("it must be of type F32 and have at most {MOST} bytes");
            return Err(self.wrong(GgufFault::Tensor { tensor: name.to_owned(), reason }));
        }
        let mut bytes = vec![0; len as usize];
        read_exact_at(&self.file, &mut bytes, entry.start)
            .map_err(|cause| Error::Read { path: self.path.clone(), cause })?;
        Ok(Some(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()))
    }

    fn wrong(&self, fault: GgufFault) -> Error {
        Error::Gguf { path: self.path.clone(), fault }
    }
}

/// Whether a path is that of a GGUF file, by its name.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) && !path.is_dir()
}

/// The file that a path leads into, if it leads into a GGUF file, and the name in it.
fn within(path: &Path) -> Option<(&Path, &str)> {
    let file = path.parent().filter(|parent| is_gguf(parent))?;
    Some((file, path.file_name()?.to_str()?))
}

/// The small file `path`, such as `model.gguf/config.json`, if it leads into a GGUF file: made from
/// the metadata, or `None` if such a checkpoint has none of that name.
pub(crate) fn made_file(path: &Path) -> Option<Result<Option<Vec<u8>>, Error>> {
    let (file, name) = within(path)?;
    Some(match name {
        "config.json" | "tokenizer.json" | "tokenizer_config.json" => {
            GgufFile::open(file).and_then(|file| file.made(name))
        }
        _ => Ok(None),
    })
}

/// About what it takes to make the small file `path`, in bytes, if it leads into a GGUF file.
pub(crate) fn made_length(path: &Path) -> Option<u64> {
    let (file, _) = within(path)?;
    // Its text, what it is made from, and what that is looked up in.
    Some(GgufFile::open(file).map_or(0, |file| 4 * file.header.len()))
}
