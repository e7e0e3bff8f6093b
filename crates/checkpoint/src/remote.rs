//! The headers of a remote checkpoint, without its weights.
//!
//! The caller's function fetches a range of a file: of safetensors the first nine bytes, then the
//! header, and never more; of burnpack likewise; of files of `torch.save` their first and last 64
//! KiB, and what of the directory and the pickle lies elsewhere; of GGUF files a megabyte at a
//! time, until the header ends, and the factors of rotary embeddings.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::burnpack;
use crate::checkpoint::{TensorInfo, sort_out};
use crate::error::Error;
use crate::fault::IndexFault;
use crate::folder::NAMES;
use crate::gguf::{GgufFile, GgufPart};
use crate::header::MAX_HEADERS;
use crate::header::{Header, HeaderEntry, LENGTH_BYTES};
use crate::index::Index;
use crate::parallel;
use crate::torch;

/// Bytes that a header's length and its first character take.
const START: u64 = LENGTH_BYTES + 1;
/// Bytes of a file of `torch.save` that are fetched at once at least: its parts are small, and each
/// request waits.
const LEAST_OF_TORCH: u64 = 64 << 10;
/// The same of a GGUF file: most headers are the vocabulary's, of some megabytes.
const LEAST_OF_GGUF: u64 = 1 << 20;

/// Of a folder's files, the one that its checkpoint is opened by, and whether that is an index:
/// safetensors before files of `torch.save`, and one file before shards.
pub fn weights_file(has: impl Fn(&str) -> bool) -> Option<(&'static str, bool)> {
    let found = NAMES.iter().find(|(name, ..)| has(name));
    found.map(|(name, _, is_index)| (*name, *is_index))
}

/// A range of a remote file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The bytes of the requested range; fewer only at the end of the file.
    pub bytes: Vec<u8>,
    /// Bytes of the whole file.
    pub file_len: u64,
}

/// A file of a remote checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its path in the checkpoint's folder.
    pub name: String,
    /// Its bytes.
    pub len: u64,
    /// Bytes of its header, which were fetched.
    pub header_bytes: u64,
}

/// What the headers of a checkpoint say of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// The files, in the order of their names.
    pub files: Vec<RemoteFile>,
    /// All tensors, by file, then by offset.
    pub tensors: Vec<TensorInfo>,
    /// Tensors that lie in the files but that the index does not place where they lie.
    pub ignored: usize,
}

impl Headers {
    /// Fetches the header of a checkpoint in one file, called `name`. `place` is where messages say
    /// that it is.
    ///
    /// # Errors
    /// What `fetch` says, or what is wrong with the header.
    pub fn of_file<E: From<Error> + Send>(
        place: &Path,
        name: &str,
        fetch: impl Fn(&str, Range<u64>) -> Result<Part, E> + Sync,
    ) -> Result<Self, E> {
        let (file, (entries, start)) = fetch_header(place, name, &AtomicU64::new(0), &fetch)?;
        Ok(Self {
            tensors: entries.into_iter().map(|entry| entry.at(0, start)).collect(),
            files: vec![file],
            ignored: 0,
        })
    }

    /// Fetches the headers of a checkpoint in shards, several at a time, of which `index` is the
    /// text of its index, called `name`. `done` is told how many of how many are there, from any
    /// thread.
    ///
    /// # Errors
    /// As [`of_file`](Self::of_file), and what is wrong with the index.
    pub fn of_shards<E: From<Error> + Send>(
        place: &Path,
        name: &str,
        index: &[u8],
        connections: usize,
        fetch: impl Fn(&str, Range<u64>) -> Result<Part, E> + Sync,
        done: impl Fn(usize, usize) + Sync,
    ) -> Result<Self, E> {
        let wrong = |fault| Error::Index { path: place.join(name), fault };
        let index = Index::parse(index).map_err(wrong)?;
        let shards = index.shards();
        let (finished, header_bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
        let fetched = parallel::each(connections, shards.len(), |shard| {
            let fetched = fetch_header(place, &shards[shard], &header_bytes, &fetch)?;
            done(finished.fetch_add(1, Ordering::Relaxed) + 1, shards.len());
            Ok::<_, E>(fetched)
        })?;
        let (files, headers) = fetched.into_iter().unzip();
        let (tensors, ignored) = sort_out(&index, headers).map_err(wrong)?;
        Ok(Self { files, tensors, ignored: ignored.len() })
    }
}

/// What a remote GGUF file, with its other parts, says of its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufDescription {
    /// Its tensors, under the names of transformers.
    pub headers: Headers,
    /// The text of `config.json` that is made from its metadata.
    pub config: Vec<u8>,
}

impl GgufDescription {
    /// Fetches the header of a GGUF file, called `name`, and of the other parts if it is the first
    /// of several. `place` is where messages say that it is.
    ///
    /// # Errors
    /// What `fetch` says, or what is wrong with a header, or with the metadata for a model.
    pub fn fetch<E: From<Error>>(
        place: &Path,
        name: &str,
        fetch: impl Fn(&str, Range<u64>) -> Result<Part, E>,
    ) -> Result<Self, E> {
        let (folder, own) = name
            .rsplit_once('/')
            .map_or(("", name), |(_, own)| (&name[..name.len() - own.len()], own));
        let open = |own: &str| {
            let name = format!("{folder}{own}");
            let path = place.join(&name);
            let least = LEAST_OF_GGUF;
            let reader = RemoteReader {
                path: path.clone(),
                name,
                fetch: &fetch,
                least,
                parts: Mutex::default(),
            };
            reader.read(0, 1)?;
            let len = reader.len();
            GgufPart::read(&path, reader, len, RemoteReader::fill)
        };
        let file = GgufFile::of_parts(open(own)?, own, |own, _| open(own))?;
        let config = file.config(|part, at, to| part.source.fill(at, to))?;
        let described = |part: &GgufPart<RemoteReader<_>>| RemoteFile {
            name: part.source.name.clone(),
            len: part.source.len(),
            header_bytes: part.source.fetched(),
        };
        let files = file.parts().map(described).collect();
        let tensors = file.renamed().into_iter().enumerate();
        let tensors =
            tensors.flat_map(|(at, entries)| entries.into_iter().map(move |entry| entry.at(at, 0)));
        Ok(Self { headers: Headers { files, tensors: tensors.collect(), ignored: 0 }, config })
    }
}

/// Tensors of a file, and the byte of it from which on their offsets count.
type Placed = (Vec<HeaderEntry>, u64);

/// Fetches one file's header. `sum` counts the bytes of all headers before they are fetched.
fn fetch_header<E: From<Error> + Send>(
    place: &Path,
    name: &str,
    sum: &AtomicU64,
    fetch: impl Fn(&str, Range<u64>) -> Result<Part, E> + Sync,
) -> Result<(RemoteFile, Placed), E> {
    let path = place.join(name);
    let admit = |bytes| match sum.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) {
        ..=MAX_HEADERS => Ok(()),
        _ => {
            let fault = IndexFault::HeadersTooLarge { max: MAX_HEADERS };
            Err(E::from(Error::Index { path: path.clone(), fault }))
        }
    };
    let is_torch = [".bin", ".pt", ".pth"].iter().any(|end| name.ends_with(end));
    let least = if is_torch { LEAST_OF_TORCH } else { 0 };
    let reader = RemoteReader {
        path: path.clone(),
        name: name.to_owned(),
        fetch,
        least,
        parts: Mutex::default(),
    };
    let start = reader.read(0, START as usize)?;
    let len = reader.len();
    let (placed, header_bytes) = if name.ends_with(".bpk") {
        let read = |start, len| reader.read(start, len);
        let (header, data_start) = burnpack::read_header(&path, len, read, admit)?;
        ((header.tensors, data_start), reader.fetched())
    } else if is_torch {
        let read = |start, len| reader.read(start, len);
        let entries = torch::open_remote(&path, len, &read, admit)?;
        ((entries, 0), reader.fetched())
    } else {
        let wrong = |fault| Error::Header { path: path.clone(), fault };
        let json_len = Header::json_len(&start, len).map_err(wrong)?;
        admit(json_len)?;
        let json = reader.read(LENGTH_BYTES, json_len as usize)?;
        let data_start = LENGTH_BYTES + json_len;
        let header = Header::parse(&json, len - data_start).map_err(wrong)?;
        ((header.tensors, data_start), json_len)
    };
    Ok((RemoteFile { name: name.to_owned(), len, header_bytes }, placed))
}

/// Positioned reads of a remote file, of which what was fetched is kept.
struct RemoteReader<F> {
    path: PathBuf,
    name: String,
    fetch: F,
    /// The least to fetch at once.
    least: u64,
    parts: Mutex<Vec<(u64, Part)>>,
}

impl<F> RemoteReader<F> {
    /// Reads exactly these bytes from `start` on.
    fn fill<E: From<Error>>(&self, start: u64, to: &mut [u8]) -> Result<(), E>
    where
        F: Fn(&str, Range<u64>) -> Result<Part, E>,
    {
        let bytes = self.read(start, to.len())?;
        // Fewer come only from where the file ends, which the headers were checked against.
        to[..bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    /// So many bytes from `start` on; fewer only where the file ends.
    fn read<E: From<Error>>(&self, start: u64, len: usize) -> Result<Vec<u8>, E>
    where
        F: Fn(&str, Range<u64>) -> Result<Part, E>,
    {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let here = parts.iter().find_map(|(first, part)| {
            let at = usize::try_from(start.checked_sub(*first)?).ok()?;
            part.bytes.get(at..at.checked_add(len)?)
        });
        if let Some(bytes) = here {
            return Ok(bytes.to_vec());
        }
        let other = |what: String| Error::Remote { path: self.path.clone(), what };
        let end = start.saturating_add(self.least.max(len as u64));
        let file_len = parts.first().map(|(_, part)| part.file_len);
        let part = (self.fetch)(&self.name, start..file_len.map_or(end, |len| len.min(end)))?;
        if let Some(was) = file_len.filter(|was| *was != part.file_len) {
            let now = part.file_len;
            let what =
                format!("had {was} bytes and now has {now}: it was replaced meanwhile; try again");
            return Err(other(what).into());
        }
        let (came, wanted) = (part.bytes.len() as u64, end - start);
        if came != end.min(part.file_len).saturating_sub(start) {
            let what = format!("came in part: {came} of {wanted} bytes of its header; try again");
            return Err(other(what).into());
        }
        let bytes = part.bytes[..len.min(part.bytes.len())].to_vec();
        parts.push((start, part));
        Ok(bytes)
    }

    /// Bytes of the file, once something was read.
    fn len(&self) -> u64 {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.first().map_or(0, |(_, part)| part.file_len)
    }

    /// Bytes that were fetched.
    fn fetched(&self) -> u64 {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().map(|(_, part)| part.bytes.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests;
