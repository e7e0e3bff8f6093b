//! Which tokens end a text, as a model's configuration says.

use std::path::Path;

use outsize_checkpoint::read_object;
use serde_json::{Map, Value};

use crate::error::Result;
use crate::json_value::bad_key;

const KEY: &str = "eos_token_id";

/// The ids in the config.json of `folder`: of the top level before those of `text_config`, where
/// models that also see or hear keep the language part. Empty if there are none.
pub(crate) fn model_eos(folder: &Path) -> Result<Vec<u32>> {
    let path = folder.join("config.json");
    let config = read_object(&path)?.unwrap_or_default();
    let nested = config.get("text_config").and_then(Value::as_object);
    for part in std::iter::once(&config).chain(nested) {
        let ids = eos_of(part, &path)?;
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    Ok(Vec::new())
}

/// The ids in one JSON object, ascending: one id, a list or null; a negative id is an old spelling
/// of "none".
pub(crate) fn eos_of(config: &Map<String, Value>, path: &Path) -> Result<Vec<u32>> {
    let value = match config.get(KEY) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(value) => value,
    };
    let entries = match value {
        Value::Array(entries) => entries.as_slice(),
        single => std::slice::from_ref(single),
    };
    let mut ids = Vec::new();
    for entry in entries {
        if entry.as_i64().is_some_and(|id| id < 0) {
            continue;
        }
        let id = entry.as_u64().and_then(|id| u32::try_from(id).ok());
        let expected = "a token id or a list of token ids";
        ids.push(id.ok_or_else(|| bad_key(path, KEY, entry, expected))?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
