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
mod parts;
mod tokenizer;
mod value;
mod vision;

use std::collections::HashSet;
use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};

use self::names::{ROPE_FACTORS, ROPE_FREQUENCIES};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::file::{ShardFile, open_regular, read_exact_at};
use crate::header::{HeaderEntry, MAX_HEADERS};
use crate::text::quoted;

pub use self::fault::GgufFault;
pub use self::header::GgufHeader;
pub use self::parts::GgufPartName;
pub use self::value::GgufValue;
pub use self::vision::GgufVision;

const ARCHITECTURE: &str = "general.architecture";
const SPLIT_COUNT: &str = "split.count";

/// A GGUF file whose header was found right, with the other parts if it is the first of several;
/// each part is read from an `S`.
#[derive(Debug)]
pub struct GgufFile<S = OpenedFile> {
    first: GgufPart<S>,
    others: Vec<GgufPart<S>>,
}

/// An open file, and what the system said of it then.
#[derive(Debug)]
pub struct OpenedFile {
    file: File,
    opened: Metadata,
}

/// One file.
#[derive(Debug)]
pub(crate) struct GgufPart<S> {
    /// Where messages say that it is.
    pub(crate) path: PathBuf,
    pub(crate) source: S,
    pub(crate) header: GgufHeader,
}

impl GgufPart<OpenedFile> {
    fn open(path: &Path) -> Result<Self, Error> {
        let (file, opened) = open_regular(path)?;
        let len = opened.len();
        let source = OpenedFile { file, opened };
        Self::read(path, source, len, |source, at, to| source.read(path, at, to))
    }
}

impl OpenedFile {
    fn read(&self, path: &Path, at: u64, to: &mut [u8]) -> Result<(), Error> {
        read_exact_at(&self.file, to, at)
            .map_err(|cause| Error::Read { path: path.to_owned(), cause })
    }
}

impl<S> GgufPart<S> {
    /// Reads the header of a file of `len` bytes from its source: bytes from an offset on.
    pub(crate) fn read<E: From<Error>>(
        path: &Path,
        source: S,
        len: u64,
        fill: impl Fn(&S, u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let wrong = |fault| E::from(Error::Gguf { path: path.to_owned(), fault });
        let header = GgufHeader::read(len, |at, to| fill(&source, at, to), wrong)?;
        Ok(Self { path: path.to_owned(), source, header })
    }

    fn find(&self, name: &str) -> Option<&HeaderEntry> {
        self.header.tensors().iter().find(|entry| entry.name == name)
    }

    /// The number of the part from 0, and how many there are.
    fn split(&self) -> Result<(u64, u64), Error> {
        let number = |key| self.header.unsigned(key).map_err(|fault| self.wrong(fault));
        Ok((number("split.no")?.unwrap_or(0), number(SPLIT_COUNT)?.unwrap_or(1)))
    }

    fn wrong(&self, fault: GgufFault) -> Error {
        Error::Gguf { path: self.path.clone(), fault }
    }

    /// What is wrong with the parts that there are.
    fn wrong_split(&self, reason: String) -> Error {
        self.wrong(header::metadata(SPLIT_COUNT, reason))
    }
}

impl GgufFile {
    /// Opens a file, or all parts by the first, and checks their headers. No weight is read.
    ///
    /// # Errors
    /// If one cannot be read, or is no GGUF file of a kind that is supported; if parts are missing,
    /// or do not belong together.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        Self::of_parts(GgufPart::open(path)?, name, |name, first| {
            let path = path.with_file_name(name);
            if let Ok(false) = path.try_exists() {
                return Err(first.wrong_split(format!("the part {name} is missing beside it")));
            }
            GgufPart::open(&path)
        })
    }

    /// The files, each with its tensors under the names of transformers and offsets from the file's
    /// beginning.
    pub(crate) fn into_shards(self) -> Vec<(ShardFile, Vec<HeaderEntry>)> {
        let names = self.renamed();
        let files = std::iter::once(self.first).chain(self.others).map(|part| {
            let OpenedFile { file, opened } = part.source;
            ShardFile::new(part.path, file, opened)
        });
        files.zip(names).collect()
    }

    /// A small file of a checkpoint's folder, made from the metadata; `None` if there would be
    /// none.
    fn made(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let (header, wrong) = (&self.first.header, |fault| self.first.wrong(fault));
        Ok(match name {
            "config.json" => {
                Some(self.config(|part, at, to| part.source.read(&part.path, at, to))?)
            }
            "tokenizer.json" => tokenizer::json(header).map_err(wrong)?,
            "tokenizer_config.json" => Some(tokenizer::config(header).map_err(wrong)?),
            _ => None,
        })
    }
}

impl<S> GgufFile<S> {
    /// A file of this name, and the other parts, which `open` opens by their names, if it is the
    /// first of several.
    ///
    /// # Errors
    /// What `open` says, or if the parts do not belong together.
    pub(crate) fn of_parts<E: From<Error>>(
        first: GgufPart<S>,
        name: &str,
        mut open: impl FnMut(&str, &GgufPart<S>) -> Result<GgufPart<S>, E>,
    ) -> Result<Self, E> {
        let (number, count) = first.split()?;
        if count <= 1 {
            return Ok(Self { first, others: Vec::new() });
        }
        let name = GgufPartName::parse(name)
            .filter(|name| name.number as u64 == number + 1 && name.count as u64 == count);
        let Some(name) = name else {
            let reason = format!(
                "this is part {} of {count}, and its name should end in -{:05}-of-{count:05}.gguf",
                number + 1,
                number + 1
            );
            return Err(first.wrong_split(reason).into());
        };
        if number > 0 {
            let first_name = name.all().next().unwrap_or_default();
            let reason = format!("this is not the first part: name {first_name}");
            return Err(first.wrong_split(reason).into());
        }
        let mut file = Self { first, others: Vec::new() };
        for (at, name) in name.all().enumerate().skip(1) {
            let part = open(&name, &file.first)?;
            if part.split()? != (at as u64, count) {
                return Err(part
                    .wrong_split(format!("it is not part {} of {count}", at + 1))
                    .into());
            }
            file.others.push(part);
            if file.header_bytes() > MAX_HEADERS {
                let reason = format!("the parts' headers have over {MAX_HEADERS} bytes");
                return Err(file.first.wrong_split(reason).into());
            }
        }
        let mut seen = HashSet::new();
        for part in file.parts() {
            if let Some(twice) =
                part.header.tensors().iter().find(|entry| !seen.insert(&*entry.name))
            {
                let reason = "another part has it too".to_owned();
                let fault = GgufFault::Tensor { tensor: quoted(&twice.name), reason };
                return Err(part.wrong(fault).into());
            }
        }
        drop(seen);
        Ok(file)
    }

    /// All parts, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &GgufPart<S>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    fn header_bytes(&self) -> u64 {
        self.parts().map(|part| part.header.len()).sum()
    }

    /// The tensors of each part under the names of transformers, with offsets from the part's
    /// beginning.
    pub(crate) fn renamed(&self) -> Vec<Vec<HeaderEntry>> {
        let header = &self.first.header;
        let architecture = header.text(ARCHITECTURE).ok().flatten().unwrap_or_default();
        let blocks = config::layers(header).unwrap_or(u64::MAX);
        let of_part = |part: &GgufPart<S>| match vision::is_one(header) {
            true => vision::renamed(header, part.header.tensors()),
            false => names::renamed(architecture, blocks, part.header.tensors()),
        };
        self.parts().map(of_part).collect()
    }

    /// `config.json`, made from the metadata; `read` reads bytes of a part from an offset on.
    pub(crate) fn config<E: From<Error>>(
        &self,
        read: impl Fn(&GgufPart<S>, u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Vec<u8>, E> {
        let floats = |name| self.floats(name, &read);
        let factors =
            [floats(ROPE_FREQUENCIES)?, floats(ROPE_FACTORS[0])?, floats(ROPE_FACTORS[1])?];
        let tensors: Vec<_> = self.parts().flat_map(|part| part.header.tensors()).collect();
        let made = config::json(&self.first.header, &tensors, factors);
        Ok(made.map_err(|fault| self.first.wrong(fault))?)
    }

    /// The values of a small tensor of 32-bit floats; `None` if there is none.
    fn floats<E: From<Error>>(
        &self,
        name: &str,
        read: impl Fn(&GgufPart<S>, u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Vec<f32>>, E> {
        const MOST: u64 = 1 << 16;
        let found = self.parts().find_map(|part| Some((part, part.find(name)?)));
        let Some((part, entry)) = found else {
            return Ok(None);
        };
        let len = entry.end - entry.start;
        if entry.dtype != Dtype::F32 || len > MOST {
            let reason = format!("it must be of type F32 and have at most {MOST} bytes");
            return Err(part.wrong(GgufFault::Tensor { tensor: name.to_owned(), reason }).into());
        }
        let mut bytes = vec![0; len as usize];
        read(part, entry.start, &mut bytes)?;
        Ok(Some(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()))
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
    Some(GgufFile::open(file).map_or(0, |file| 4 * file.header_bytes()))
}
