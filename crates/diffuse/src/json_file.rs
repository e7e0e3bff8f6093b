//! Small files of a pipeline, which is untrusted input: read with a limit.

use std::io::ErrorKind;
use std::path::Path;

use outsize_checkpoint::read_text;
use serde_json::{Map, Value};

use crate::error::Error;

/// The most bytes read from a configuration file.
const CONFIG_LIMIT: u64 = 16 << 20;

/// The text of a file of at most `limit` bytes, or `None` if there is no such file.
pub(crate) fn read_limited(path: &Path, limit: u64) -> Result<Option<String>, Error> {
    match read_text(path, limit) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// The text of a configuration file, or `None` if there is no such file.
pub(crate) fn read_config(path: &Path) -> Result<Option<String>, Error> {
    read_limited(path, CONFIG_LIMIT)
}

/// The JSON object in a configuration file, or `None` if there is no such file.
pub(crate) fn read_json(path: &Path) -> Result<Option<Map<String, Value>>, Error> {
    let text = read_config(path)?;
    let object = text.map(|text| serde_json::from_str(&text)).transpose();
    object.map_err(|error| Error::json(path, error))
}
