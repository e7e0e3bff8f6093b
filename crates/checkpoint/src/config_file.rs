//! Small files beside the weights, such as `config.json`: untrusted input, read with a limit.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::Error;
use crate::gguf;
use crate::text::quoted;
use crate::whole_file::read_file;

/// The most bytes read from a configuration file. Real ones stay under 2 MiB.
pub const CONFIG_LIMIT: u64 = 16 << 20;

/// Why a small file could not be read. Each message names the file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It exists and could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// It is larger than any file of its kind should be; it was not read to its end.
    #[error("{} is larger than {limit} bytes, which no such file should be: check that it is the right file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most bytes that are read from it.
        limit: u64,
    },
    /// It would be made from a GGUF file's metadata, which is wrong or asks for something that is
    /// not built in.
    #[error(transparent)]
    Made {
        /// What is wrong with the GGUF file.
        source: Box<Error>,
    },
    /// It should hold a JSON object and does not.
    #[error("{} is not a JSON object ({reason}): download it again", path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },
}

/// All bytes of the file at `path`, or `None` if there is no such file. One below a GGUF file, such
/// as `model.gguf/config.json`, is made from its metadata.
///
/// # Errors
/// [`ConfigFileError::Read`], or [`ConfigFileError::TooLarge`] above `limit` bytes, of which no
/// more than the limit was read.
pub fn read_optional(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ConfigFileError> {
    if let Some(made) = gguf::made_file(path) {
        return match made.map_err(|source| ConfigFileError::Made { source: Box::new(source) })? {
            Some(bytes) if bytes.len() as u64 > limit => {
                Err(ConfigFileError::TooLarge { path: path.to_owned(), limit })
            }
            bytes => Ok(bytes),
        };
    }
    match read_file(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound => Ok(None),
            ErrorKind::FileTooLarge => {
                Err(ConfigFileError::TooLarge { path: path.to_owned(), limit })
            }
            _ => Err(ConfigFileError::Read { path: path.to_owned(), source: error }),
        },
    }
}

/// About what it takes in bytes to make a file that is made from a GGUF file's metadata; `None` for
/// all others.
pub fn made_length(path: &Path) -> Option<u64> {
    gguf::made_length(path)
}

/// The text of the file at `path`, or `None` if there is no such file.
///
/// # Errors
/// As [`read_optional`], and [`ConfigFileError::NotJson`] if it is not UTF-8, which JSON is.
pub fn read_optional_text(path: &Path, limit: u64) -> Result<Option<String>, ConfigFileError> {
    let text = read_optional(path, limit)?.map(String::from_utf8).transpose();
    text.map_err(|error| ConfigFileError::not_json(path, error))
}

/// The JSON object in the file at `path`, or `None` if there is no such file.
///
/// # Errors
/// As [`read_optional`] with [`CONFIG_LIMIT`], and as [`parse_object`].
pub fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, ConfigFileError> {
    let bytes = read_optional(path, CONFIG_LIMIT)?;
    bytes.map(|bytes| parse_object(path, &bytes)).transpose()
}

/// The JSON object that the file at `path` was found to hold.
///
/// # Errors
/// [`ConfigFileError::NotJson`].
pub fn parse_object(path: &Path, bytes: &[u8]) -> Result<Map<String, Value>, ConfigFileError> {
    let object = parse_json(bytes).and_then(serde_json::from_value);
    object.map_err(|error| ConfigFileError::not_json(path, reason(bytes, &error)))
}

/// The JSON in some bytes. `Infinity`, which Python writes and which is no JSON, is taken for the
/// `{"__float__": "Infinity"}` that transformers writes in its place since version 5.
///
/// # Errors
/// What the parser says.
pub fn parse_json(bytes: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(bytes).or_else(|error| {
        let standard = with_infinity_as_object(bytes);
        standard.and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or(error)
    })
}

/// The text with that in place of each `Infinity` that is not in a string, if there is any.
fn with_infinity_as_object(bytes: &[u8]) -> Option<Vec<u8>> {
    const INFINITY: &[u8] = b"Infinity";
    let (mut result, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    let (mut in_string, mut found) = (false, false);
    while let Some((&byte, behind)) = rest.split_first() {
        let taken = match byte {
            b'\\' if in_string => 2.min(rest.len()),
            _ if !in_string && rest.starts_with(INFINITY) => {
                result.extend(br#"{"__float__": "Infinity"}"#);
                (rest, found) = (&rest[INFINITY.len()..], true);
                continue;
            }
            _ => 1,
        };
        in_string ^= byte == b'"';
        result.extend(&rest[..taken]);
        rest = &behind[taken - 1..];
    }
    found.then_some(result)
}

impl ConfigFileError {
    /// What should be JSON and is not, as a parser says.
    pub fn not_json(path: &Path, reason: impl ToString) -> Self {
        Self::NotJson { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// What the parser said, and the key it was at: Python writes `NaN` and `Infinity`, which are not
/// JSON.
fn reason(bytes: &[u8], error: &serde_json::Error) -> String {
    match key_before(bytes, error.line(), error.column()) {
        Some(key) => format!("{error}, near {}", quoted(&key)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_none_and_a_folder_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_optional(&folder.path().join("none"), 10).unwrap().is_none());
        assert!(matches!(read_optional(folder.path(), 10), Err(ConfigFileError::Read { .. })));
    }

    #[test]
    fn a_sparse_giant_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let message = read_object(&path).unwrap_err().to_string();
        assert!(message.contains("larger than 16777216"), "{message}");
    }

    #[test]
    fn the_key_at_fault_is_named() {
        let path = Path::new("config.json");
        for text in [
            "{\"a\": 1,\n \"top_p\": NaN, \"b\": 2}",
            "{\n\"top_p\":-Infinity\n}",
            "{\"top_p\": 1e999}",
        ] {
            let message = parse_object(path, text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains("near \"top_p\""), "{text}: {message}");
        }
    }

    #[test]
    fn infinity_is_what_transformers_writes_for_it() {
        let path = Path::new("config.json");
        let text = r#"{"Infinity": "\\\"Infinity", "limits": [0.0, Infinity], "more": Infinity}"#;
        let object = parse_object(path, text.as_bytes()).unwrap();
        let infinity = serde_json::json!({"__float__": "Infinity"});
        let expected = serde_json::json!({
            "Infinity": "\\\"Infinity", "limits": [0.0, infinity], "more": infinity,
        });
        assert_eq!(Value::Object(object), expected);
    }

    #[test]
    fn what_is_not_an_object_is_refused() {
        let path = Path::new("config.json");
        for text in ["", "{", "[1]", "3", "\"x\"", &"[".repeat(100_000)] {
            let message = parse_object(path, text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains("config.json is not a JSON object"), "{message}");
        }
    }
}
