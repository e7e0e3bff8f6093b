//! Small JSON files of a checkpoint, which is untrusted input: read with a limit.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The most bytes read from a configuration file. Real ones stay under 2 MiB.
pub(crate) const CONFIG_LIMIT: u64 = 16 << 20;

/// The most characters of a file's content that an error message repeats.
const MOST_SHOWN: usize = 60;

/// All bytes of the file at `path`, or `None` if there is no such file.
///
/// # Errors
/// [`Error::Read`], or [`Error::TooLarge`] above `limit` bytes, of which no more than the limit was read.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    match outsize_checkpoint::read_file(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound => Ok(None),
            ErrorKind::FileTooLarge => Err(Error::TooLarge { path: path.to_owned(), limit }),
            _ => Err(Error::Read { path: path.to_owned(), source: error }),
        },
    }
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
        Err(error) => Err(Error::NotJson { path: path.to_owned(), reason: reason(&bytes, &error) }),
    }
}

/// What the parser said, and the key it was at: Python writes `NaN` and `Infinity`, which are not JSON.
pub(crate) fn reason(bytes: &[u8], error: &serde_json::Error) -> String {
    match key_before(bytes, error.line(), error.column()) {
        Some(key) => format!("{error}, near {}", shorten(&format!("{key:?}"))),
        None => error.to_string(),
    }
}

/// The last key that begins before a place in the text.
fn key_before(bytes: &[u8], line: usize, column: usize) -> Option<String> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines.take(line.checked_sub(1)?).map(<[u8]>::len).sum();
    let text = String::from_utf8_lossy(bytes.get(..(before + column).min(bytes.len()))?);
    let before = text
        .rmatch_indices(':')
        .find_map(|(colon, _)| text[..colon].trim_end().strip_suffix('"'))?;
    let (_, key) = before.rsplit_once('"')?;
    Some(key.to_owned())
}

/// The error for a key that has a value of the wrong kind.
pub(crate) fn bad_key(
    path: &Path,
    key: &'static str,
    value: &Value,
    expected: &'static str,
) -> Error {
    Error::BadKey { path: path.to_owned(), key, found: shown(value), expected }
}

/// A value as JSON, short enough for a message.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        // Not worth the memory to write it out.
        Value::Array(values) if values.len() > MOST_SHOWN => "a long list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        value => shorten(&value.to_string()),
    }
}

/// The beginning of a text.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((index, _)) => format!("{}…", &text[..index]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_none_and_a_folder_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_bounded(&folder.path().join("none"), 10).unwrap().is_none());
        assert!(matches!(read_bounded(folder.path(), 10), Err(Error::Read { .. })));
    }

    #[test]
    fn a_sparse_giant_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let message = read_config(&path).unwrap_err().to_string();
        assert!(message.contains("larger than 16777216"), "{message}");
    }

    #[test]
    fn the_key_at_fault_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        for text in [
            "{\"a\": 1,\n \"top_p\": NaN, \"b\": 2}",
            "{\"a\": 1, \"top_p\" : Infinity}",
            "{\n\"top_p\":-Infinity\n}",
            "{\"top_p\": 1e999}",
        ] {
            std::fs::write(&path, text).unwrap();
            let message = read_config(&path).unwrap_err().to_string();
            assert!(message.contains("near \"top_p\""), "{text}: {message}");
        }
    }

    #[test]
    fn what_is_shown_is_short() {
        let long = "é".repeat(1000);
        assert_eq!(shown(&Value::from(long)).chars().count(), MOST_SHOWN + 1);
        assert_eq!(shown(&Value::from(vec![1, 2])), "[1,2]");
        assert_eq!(shown(&Value::from(vec!["x"; 100])), "a long list");
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        for text in ["", "{", "[1]", "3", "\"x\"", &"[".repeat(100_000)] {
            std::fs::write(&path, text).unwrap();
            let message = read_config(&path).unwrap_err().to_string();
            assert!(message.contains("config.json is not a JSON object"), "{message}");
        }
    }
}
