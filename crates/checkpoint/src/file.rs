use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Error;
use crate::fault::HeaderFault;
use crate::header::{Header, LENGTH_BYTES, MAX_HEADER};
use crate::masquerade;

/// One `.safetensors` file of a checkpoint, kept open.
#[derive(Debug)]
pub struct ShardFile {
    path: PathBuf,
    len: u64,
    file: Arc<File>,
    opened: std::fs::Metadata,
    metadata: BTreeMap<String, String>,
}

impl ShardFile {
    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes; never so, for there is a header.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The open file. Read it by position: its cursor is shared.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// What the system told of the file before its header was read: whoever reads the tensors later can
    /// tell by it whether the file was written to since.
    pub fn opened(&self) -> &std::fs::Metadata {
        &self.opened
    }

    /// The notes in the header (`__metadata__`), such as `format`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Opens a file and checks its header. Also gives the header and the offset of the data section
    /// in the file.
    pub(crate) fn open(path: PathBuf) -> Result<(Self, Header, u64), Error> {
        let (file, len) = open_regular(&path)?;
        let read = |cause| Error::Read {
            path: path.clone(),
            cause,
        };
        let opened = file.metadata().map_err(read)?;
        let wrong = |fault| Error::Header {
            path: path.clone(),
            fault,
        };

        let json_len = match header_len(&file, len).map_err(read)? {
            Ok(json_len) => json_len,
            Err(fault) => {
                let format = identify(&file, len).map_err(read)?;
                return Err(wrong(format.unwrap_or(fault)));
            }
        };
        // At most MAX_HEADER bytes, and no more than the file has.
        let mut json = vec![0; json_len as usize];
        read_exact_at(&file, &mut json, LENGTH_BYTES).map_err(read)?;
        let data_start = LENGTH_BYTES + json_len;
        let mut header = Header::parse(&json, len - data_start).map_err(wrong)?;
        let metadata = std::mem::take(&mut header.metadata);
        Ok((
            Self {
                path,
                len,
                file: Arc::new(file),
                opened,
                metadata,
            },
            header,
            data_start,
        ))
    }
}

/// Reads the header's length and checks it, and the header's first byte, against the file.
fn header_len(file: &File, len: u64) -> io::Result<Result<u64, HeaderFault>> {
    if len <= LENGTH_BYTES {
        return Ok(Err(HeaderFault::TooShort { len }));
    }
    let mut start = [0; LENGTH_BYTES as usize + 1];
    read_exact_at(file, &mut start, 0)?;
    let [length @ .., first] = start;
    let json_len = u64::from_le_bytes(length);
    Ok(if json_len > MAX_HEADER {
        Err(HeaderFault::HeaderTooLarge {
            len: json_len,
            max: MAX_HEADER,
        })
    } else if json_len > len - LENGTH_BYTES {
        Err(HeaderFault::HeaderBeyondEnd {
            len: json_len,
            file_len: len,
        })
    } else if json_len == 0 || first != b'{' {
        Err(HeaderFault::NotAnObject)
    } else {
        Ok(json_len)
    })
}

/// Says what a file is that is not safetensors, if that is known.
fn identify(file: &File, len: u64) -> io::Result<Option<HeaderFault>> {
    let mut start = vec![0; len.min(64) as usize];
    read_exact_at(file, &mut start, 0)?;
    Ok(
        masquerade::identify(&start)
            .map(|(what, advice)| HeaderFault::OtherFormat { what, advice }),
    )
}

/// Opens a regular file, and nothing else: opening a pipe would wait for ever. Also gives its
/// length.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64), Error> {
    let read = |cause| Error::Read {
        path: path.to_owned(),
        cause,
    };
    if !path.metadata().map_err(read)?.is_file() {
        return Err(Error::NotAFile {
            path: path.to_owned(),
        });
    }
    let file = File::open(path).map_err(read)?;
    let len = file.metadata().map_err(read)?.len();
    Ok((file, len))
}

/// Fills `out` from byte `offset` of the file, without moving the file's cursor.
#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

/// Fills `out` from byte `offset` of the file. The file's cursor moves, and nothing here depends on
/// it.
#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !out.is_empty() {
        match file.seek_read(out, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
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
