//! Small files that are read or written whole, such as a configuration or a picture.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::error::Error;
use crate::unnamed::Unnamed;

/// Reads a file of at most `limit` bytes.
///
/// # Errors
///
/// [`FileTooLarge`](io::ErrorKind::FileTooLarge) above the limit, of which no more was read. A
/// folder, a pipe or a device is refused without being opened: a pipe would block, and a device
/// never end.
pub fn read_file(path: impl AsRef<Path>, limit: u64) -> io::Result<Vec<u8>> {
    let path = path.as_ref();
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    if metadata.len() <= limit {
        File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    }
    match metadata.len().max(bytes.len() as u64) > limit {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {limit} bytes"),
        )),
        false => Ok(bytes),
    }
}

/// Reads a file of at most `limit` bytes of UTF-8.
///
/// # Errors
///
/// As [`read_file`]; [`InvalidData`](io::ErrorKind::InvalidData) if it is not UTF-8.
pub fn read_text(path: impl AsRef<Path>, limit: u64) -> io::Result<String> {
    String::from_utf8(read_file(path, limit)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// Writes `contents` to the file `path`, whose folder must exist: beside its place, as
/// `.NAME.partial-…`, and then under its name. A file that was there before is replaced by a
/// complete one or left alone.
///
/// # Errors
///
/// If something else than a file is there, such as a folder or a device; if no file can be made
/// there, or writing fails. Then nothing is left behind.
pub fn write_file(path: impl AsRef<Path>, contents: &[u8]) -> Result<(), Error> {
    let mut file = Unnamed::create(path.as_ref())?;
    let path = file.path().to_owned();
    let written = file.file.write_at(0, contents).and_then(|()| file.publish());
    written.map_err(|cause| Error::Write { path, written: 0, total: contents.len() as u64, cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_inclusive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 10]).unwrap();
        assert_eq!(read_file(&path, 10).unwrap(), [7; 10]);
        let kind = |error: io::Error| error.kind();
        let large = read_file(&path, 9).map_err(kind);
        assert_eq!(large, Err(io::ErrorKind::FileTooLarge));
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let giant = read_file(&path, 10).map_err(kind);
        assert_eq!(giant, Err(io::ErrorKind::FileTooLarge));
        assert!(read_file(dir.path(), 10).is_err());
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(read_text(&path, 10).map_err(kind), Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.svg");
        for text in ["one", "another"] {
            write_file(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let message = write_file(dir.path(), b"x").unwrap_err().to_string();
        assert!(message.contains("is a folder"), "{message}");
        let missing = dir.path().join("none").join("a.svg");
        let message = write_file(&missing, b"x").unwrap_err().to_string();
        assert!(message.contains("a.svg"), "{message}");
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
    }
}
