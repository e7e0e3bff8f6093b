use std::collections::BTreeMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;
use crate::header::{Header, LENGTH_BYTES};

/// How many of a file's first bytes are read at once.
const FIRST_READ: u64 = 16 << 10;

/// One file of a checkpoint, kept open.
#[derive(Debug, Clone)]
pub struct ShardFile {
    path: PathBuf,
    file: Arc<File>,
    opened: Metadata,
    metadata: BTreeMap<String, String>,
}

impl ShardFile {
    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file when it was opened.
    pub fn len(&self) -> u64 {
        self.opened.len()
    }

    /// Whether the file has no bytes; never so, for there is a header.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The open file. Read it by position: its cursor is shared.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// What the system told of the file before its header was read: whoever reads the tensors later
    /// can tell by it whether the file was written to since.
    pub fn opened(&self) -> &Metadata {
        &self.opened
    }

    /// The notes in the header of safetensors (`__metadata__`) or burnpack, such as `format`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// A file whose tensors were found, with what the system told of it before.
    pub(crate) fn new(path: PathBuf, file: File, opened: Metadata) -> Self {
        Self { path, file: Arc::new(file), opened, metadata: BTreeMap::new() }
    }

    /// The same with the notes of its header.
    pub(crate) fn with_metadata(self, metadata: BTreeMap<String, String>) -> Self {
        Self { metadata, ..self }
    }

    /// Opens a safetensors file and checks its header. Also gives the header and the offset of the
    /// data section in the file. `admit` is asked before memory is taken for a header of so many
    /// bytes.
    pub(crate) fn open(
        path: PathBuf,
        admit: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<(Self, Header, u64), Error> {
        let (file, opened) = open_regular(&path)?;
        let len = opened.len();
        let read = |cause| Error::Read { path: path.clone(), cause };
        let wrong = |fault| Error::Header { path: path.clone(), fault };

        // Most headers are read at once with their length.
        let mut start = vec![0; len.min(FIRST_READ) as usize];
        read_exact_at(&file, &mut start, 0).map_err(read)?;
        let looked_at = start.len().min(Header::START as usize);
        let json_len = Header::json_len(&start[..looked_at], len).map_err(wrong)?;
        let data_start = LENGTH_BYTES + json_len;
        admit(data_start)?;
        let here = start.len();
        // No more than the format allows, and than the file has.
        start.resize(data_start as usize, 0);
        if let Some(rest) = start.get_mut(here..) {
            read_exact_at(&file, rest, here as u64).map_err(read)?;
        }
        let json = &start[LENGTH_BYTES as usize..];
        let mut header = Header::parse(json, len - data_start).map_err(wrong)?;
        let metadata = std::mem::take(&mut header.metadata);
        Ok((Self::new(path, file, opened).with_metadata(metadata), header, data_start))
    }
}

/// Opens a regular file, and nothing else: opening a pipe would wait for ever, and opening a device
/// may do anything. Also gives what the system tells of it.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata), Error> {
    let read = |cause| Error::Read { path: path.to_owned(), cause };
    let check = |kind: &Metadata| match kind.is_file() {
        true => Ok(()),
        false => Err(Error::NotAFile { path: path.to_owned() }),
    };
    check(&path.metadata().map_err(read)?)?;
    let mut options = OpenOptions::new();
    // What is there may be another thing by now, so it is looked at again, and not waited for.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.read(true).open(path).map_err(read)?;
    let kind = file.metadata().map_err(read)?;
    check(&kind)?;
    Ok((file, kind))
}

/// So many bytes from byte `offset` of the file at `path`.
pub(crate) fn read_vec(
    path: &Path,
    file: &File,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; len];
    read_exact_at(file, &mut bytes, offset)
        .map_err(|cause| Error::Read { path: path.to_owned(), cause })?;
    Ok(bytes)
}

/// Fills `out` from byte `offset` of the file, without moving the file's cursor.
#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset).map_err(|cause| {
        match cause.kind() {
            io::ErrorKind::UnexpectedEof => ends_early(),
            _ => cause,
        }
    })
}

/// A file is shorter than the system said.
fn ends_early() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the file ends early: it has changed since it was opened",
    )
}

/// Fills `out` from byte `offset` of the file. The file's cursor moves, and nothing here depends on
/// it.
#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !out.is_empty() {
        match file.seek_read(out, offset) {
            Ok(0) => return Err(ends_early()),
            Ok(count) => {
                out = &mut out[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
