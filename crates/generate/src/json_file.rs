//! Small JSON files of a checkpoint, read with a limit: they come from strangers.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The most bytes read from a configuration file. Real ones stay under 2 MiB.
const CONFIG_LIMIT: u64 = 16 << 20;

/// All bytes of the file at `path`, or `None` if there is no such file.
///
/// # Errors
/// [`Error::Read`], or [`Error::TooLarge`] above `limit` bytes, of which no more than the limit were read.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let failed = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(Error::TooLarge {
            path: path.to_owned(),
            limit,
        });
    }
    Ok(Some(bytes))
}

/// The JSON object in the file at `path`, or `None` if there is no such file.
///
/// # Errors
/// As [`read_bounded`], and [`Error::NotJson`].
pub(crate) fn read_config(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(bytes) = read_bounded(path, CONFIG_LIMIT)? else {
        return Ok(None);
    };
    match serde_json::from_slice(&bytes) {
        Ok(object) => Ok(Some(object)),
        Err(error) => Err(Error::NotJson {
            path: path.to_owned(),
            reason: error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_inclusive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 10]).unwrap();
        assert_eq!(read_bounded(&path, 10).unwrap().unwrap(), [7; 10]);
        assert!(matches!(
            read_bounded(&path, 9),
            Err(Error::TooLarge { limit: 9, .. })
        ));
    }

    #[test]
    fn a_missing_file_is_none_and_a_folder_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            read_bounded(&folder.path().join("none"), 10)
                .unwrap()
                .is_none()
        );
        assert!(matches!(
            read_bounded(folder.path(), 10),
            Err(Error::Read { .. })
        ));
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        for text in ["", "{", "[1]", "3", "\"x\"", &"[".repeat(100_000)] {
            std::fs::write(&path, text).unwrap();
            let message = read_config(&path).unwrap_err().to_string();
            assert!(
                message.contains("config.json is not a JSON object"),
                "{message}"
            );
        }
    }
}
