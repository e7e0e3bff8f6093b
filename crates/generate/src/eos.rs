//! Which tokens end a text, as a checkpoint says.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::json_file::read_config;

const KEY: &str = "eos_token_id";

/// The ids of the tokens that end a text, from the checkpoint in `folder`.
///
/// generation_config.json comes first, as in transformers; where it is missing or silent, config.json is asked, and there the
/// top level before `text_config` (models that also see or hear keep the language part there). Each may give one id, a list or
/// null; a negative id is an old spelling of "none". The result is empty if nobody names a token. Duplicates are dropped.
///
/// # Errors
/// A file that cannot be read, is larger than 16 MiB or is not a JSON object, and an `eos_token_id` of another kind.
pub fn eos_ids(folder: impl AsRef<Path>) -> Result<Vec<u32>> {
    let folder = folder.as_ref();
    for name in ["generation_config.json", "config.json"] {
        let path = folder.join(name);
        let Some(config) = read_config(&path)? else {
            continue;
        };
        let nested = config.get("text_config").and_then(Value::as_object);
        for part in std::iter::once(&config).chain(nested) {
            let ids = ids_of(part, &path)?;
            if !ids.is_empty() {
                return Ok(ids);
            }
        }
    }
    Ok(Vec::new())
}

/// The ids under [`KEY`] in one JSON object, in the order written.
fn ids_of(config: &Map<String, Value>, path: &Path) -> Result<Vec<u32>> {
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
        let id = entry
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| Error::BadKey {
                path: path.to_owned(),
                key: KEY,
                found: entry.to_string(),
                expected: "a token id or a list of token ids",
            })?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eos(generation: Option<&str>, config: Option<&str>) -> Result<Vec<u32>> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("generation_config.json", generation),
            ("config.json", config),
        ] {
            if let Some(text) = text {
                std::fs::write(folder.path().join(name), text).unwrap();
            }
        }
        eos_ids(folder.path())
    }

    #[test]
    fn one_id_a_list_or_nothing() {
        assert_eq!(eos(None, Some(r#"{"eos_token_id": 2}"#)).unwrap(), [2]);
        assert_eq!(
            eos(None, Some(r#"{"eos_token_id": [128001, 128009, 128001]}"#)).unwrap(),
            [128001, 128009]
        );
        for silent in [
            Some(r#"{"eos_token_id": null}"#),
            Some(r#"{"eos_token_id": -1}"#),
            Some("{}"),
            None,
        ] {
            assert!(eos(None, silent).unwrap().is_empty(), "{silent:?}");
        }
    }

    #[test]
    fn generation_config_comes_first_and_text_config_last() {
        assert_eq!(
            eos(
                Some(r#"{"eos_token_id": [7, 8]}"#),
                Some(r#"{"eos_token_id": 2}"#)
            )
            .unwrap(),
            [7, 8]
        );
        assert_eq!(
            eos(Some("{}"), Some(r#"{"eos_token_id": 2}"#)).unwrap(),
            [2]
        );
        assert_eq!(
            eos(None, Some(r#"{"text_config": {"eos_token_id": 106}}"#)).unwrap(),
            [106]
        );
        assert_eq!(
            eos(
                None,
                Some(r#"{"eos_token_id": 1, "text_config": {"eos_token_id": 106}}"#)
            )
            .unwrap(),
            [1]
        );
    }

    #[test]
    fn another_kind_is_an_error_that_names_file_and_key() {
        for bad in [r#""</s>""#, "1.5", "[1, [2]]", "4294967296", "{}", "true"] {
            let message = eos(None, Some(&format!(r#"{{"eos_token_id": {bad}}}"#)))
                .unwrap_err()
                .to_string();
            assert!(
                message.contains("config.json: eos_token_id is "),
                "{message}"
            );
        }
    }
}
