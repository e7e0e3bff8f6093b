//! Small files that are results rather than checkpoints, such as a picture.

use std::io::Write;
use std::path::Path;

use crate::error::Error;
use crate::unnamed::Unnamed;

/// Writes `contents` to the file `path`, whose folder must exist: beside its place, as `.NAME.partial-…`, and then under its
/// name. A file that was there before is replaced by a complete one or left alone.
///
/// # Errors
///
/// If something else than a file is there, such as a folder or a device; if no file can be made there, or writing fails. Then
/// nothing is left behind.
pub fn write_file(path: impl AsRef<Path>, contents: &[u8]) -> Result<(), Error> {
    let mut file = Unnamed::create(path.as_ref())?;
    let path = file.path().to_owned();
    let written = file.write_all(contents).and_then(|()| file.publish());
    written.map_err(|cause| Error::Write {
        path,
        written: 0,
        total: contents.len() as u64,
        cause,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
