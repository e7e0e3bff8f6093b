//! The headers of a remote checkpoint, without its weights.
//!
//! The caller's function fetches a range of a file: the first nine bytes of each file, then its
//! header, and never more.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::checkpoint::{MAX_HEADERS, TensorInfo, sort_out};
use crate::error::Error;
use crate::fault::IndexFault;
use crate::header::{Header, LENGTH_BYTES};
use crate::index::Index;
use crate::parallel;

/// Bytes that a header's length and its first character take.
const START: u64 = LENGTH_BYTES + 1;

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

/// Why headers could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError<E: std::error::Error> {
    /// Fetching failed.
    #[error(transparent)]
    Fetch(E),
    /// The content is invalid.
    #[error(transparent)]
    Checkpoint(#[from] Error),
}

impl Headers {
    /// Fetches the header of a checkpoint in one file, called `name`. `place` is where messages say
    /// that it is.
    ///
    /// # Errors
    /// What `fetch` says, or what is wrong with the header.
    pub fn of_file<E: std::error::Error>(
        place: &Path,
        name: &str,
        fetch: impl Fn(&str, Range<u64>) -> Result<Part, E>,
    ) -> Result<Self, RemoteError<E>> {
        let (file, header) = fetch_header(place, name, &AtomicU64::new(0), &fetch)?;
        let data_start = LENGTH_BYTES + file.header_bytes;
        let entries = header.tensors.into_iter();
        Ok(Self {
            tensors: entries.map(|entry| entry.at(0, data_start)).collect(),
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
    pub fn of_shards<E: std::error::Error + Send>(
        place: &Path,
        name: &str,
        index: &[u8],
        connections: usize,
        fetch: impl Fn(&str, Range<u64>) -> Result<Part, E> + Sync,
        done: impl Fn(usize, usize) + Sync,
    ) -> Result<Self, RemoteError<E>> {
        let wrong = |fault| Error::Index { path: place.join(name), fault };
        let index = Index::parse(index).map_err(wrong)?;
        let shards = index.shards();
        let (finished, header_bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
        let fetched = parallel::each(connections, shards.len(), |shard| {
            let fetched = fetch_header(place, &shards[shard], &header_bytes, &fetch)?;
            done(finished.fetch_add(1, Ordering::Relaxed) + 1, shards.len());
            Ok::<_, RemoteError<E>>(fetched)
        })?;
        let mut files = Vec::with_capacity(fetched.len());
        let mut headers = Vec::with_capacity(fetched.len());
        for (file, header) in fetched {
            headers.push((header.tensors, LENGTH_BYTES + file.header_bytes));
            files.push(file);
        }
        let (tensors, ignored) = sort_out(&index, headers).map_err(wrong)?;
        Ok(Self { files, tensors, ignored: ignored.len() })
    }
}

/// Fetches one file's header. `sum` counts the bytes of all headers before they are fetched.
fn fetch_header<E: std::error::Error>(
    place: &Path,
    name: &str,
    sum: &AtomicU64,
    fetch: impl Fn(&str, Range<u64>) -> Result<Part, E>,
) -> Result<(RemoteFile, Header), RemoteError<E>> {
    let path = place.join(name);
    let wrong = |fault| Error::Header { path: path.clone(), fault };
    let other = |what: String| Error::Remote { path: path.clone(), what };
    let start = fetch(name, 0..START).map_err(RemoteError::Fetch)?;
    let file_len = start.file_len;
    if start.bytes.len() as u64 != file_len.min(START) {
        return Err(other(came(&start, START)).into());
    }
    let len = Header::json_len(&start.bytes, file_len).map_err(wrong)?;
    if sum.fetch_add(len, Ordering::Relaxed).saturating_add(len) > MAX_HEADERS {
        return Err(Error::Index {
            path: path.clone(),
            fault: IndexFault::HeadersTooLarge { max: MAX_HEADERS },
        }
        .into());
    }
    let json = fetch(name, LENGTH_BYTES..LENGTH_BYTES + len).map_err(RemoteError::Fetch)?;
    if json.file_len != file_len {
        let what = format!(
            "had {file_len} bytes and now has {}: it was replaced meanwhile; try again",
            json.file_len
        );
        return Err(other(what).into());
    }
    if json.bytes.len() as u64 != len {
        return Err(other(came(&json, len)).into());
    }
    let data_len = file_len - LENGTH_BYTES - len;
    let header = Header::parse(&json.bytes, data_len).map_err(wrong)?;
    let file = RemoteFile { name: name.to_owned(), len: file_len, header_bytes: len };
    Ok((file, header))
}

fn came(part: &Part, wanted: u64) -> String {
    format!("came in part: {} of {wanted} bytes of its header; try again", part.bytes.len())
}

#[cfg(test)]
mod tests;
