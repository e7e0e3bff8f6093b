use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::fault::IndexFault;
use crate::file::{open_regular, read_exact_at};
use crate::json::UniqueMap;
use crate::masquerade;

/// Bytes that an index may have. One of a million tensors is about this large.
const MAX_INDEX: u64 = 100_000_000;

/// Which shard each tensor is in.
#[derive(Debug)]
pub(crate) struct Index {
    /// From a tensor's name to its shard's path, relative to the folder and staying inside it.
    pub weight_map: BTreeMap<String, String>,
}

/// The members of an index that are read. `metadata` is not: its sizes are often wrong in real
/// checkpoints.
#[derive(Deserialize)]
struct Contents {
    weight_map: UniqueMap<String>,
}

impl Index {
    /// Reads and checks an index file; its shards are not looked for.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let wrong = |fault| Error::Index {
            path: path.to_owned(),
            fault,
        };
        let (file, len) = open_regular(path)?;
        if len > MAX_INDEX {
            return Err(wrong(IndexFault::TooLarge {
                len,
                max: MAX_INDEX,
            }));
        }
        let mut json = vec![0; len as usize];
        read_exact_at(&file, &mut json, 0).map_err(|cause| Error::Read {
            path: path.to_owned(),
            cause,
        })?;
        Self::parse(&json).map_err(wrong)
    }

    /// Parses the JSON of an index and checks the shards' names.
    pub fn parse(json: &[u8]) -> Result<Self, IndexFault> {
        if !json.trim_ascii_start().starts_with(b"{")
            && let Some((what, advice)) = masquerade::identify(json)
        {
            return Err(IndexFault::OtherFormat { what, advice });
        }
        let contents: Contents =
            serde_json::from_slice(json).map_err(|error| IndexFault::Json {
                detail: error.to_string(),
            })?;
        let weight_map = contents.weight_map.0;
        if weight_map.is_empty() {
            return Err(IndexFault::Empty);
        }
        if let Some((tensor, file)) = weight_map.iter().find(|(_, file)| !stays_inside(file)) {
            return Err(IndexFault::UnsafePath {
                tensor: tensor.clone(),
                file: file.clone(),
            });
        }
        Ok(Self { weight_map })
    }
}

/// Whether a path is relative and made of plain names only, on every system: `C:\x` means different
/// things on different ones.
fn stays_inside(file: &str) -> bool {
    !file.is_empty()
        && !file.contains(['\\', ':', '\0'])
        && Path::new(file)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// The text of an index as transformers writes it: names sorted, two spaces of indentation, ASCII
/// only.
pub(crate) fn encode<'a>(
    total_size: u64,
    total_parameters: Option<u64>,
    weight_map: impl Iterator<Item = (&'a str, &'a str)>,
) -> String {
    // Everything goes in by the order of names, for a `Map` may keep either order.
    let mut metadata = Map::new();
    if let Some(count) = total_parameters {
        metadata.insert("total_parameters".into(), count.into());
    }
    metadata.insert("total_size".into(), total_size.into());
    let sorted: BTreeMap<_, _> = weight_map.collect();
    let weight_map: Map<_, _> = sorted
        .into_iter()
        .map(|(tensor, file)| (tensor.into(), file.into()))
        .collect();
    let mut index = Map::new();
    index.insert("metadata".into(), metadata.into());
    index.insert("weight_map".into(), weight_map.into());
    ascii(&format!("{:#}\n", Value::from(index)))
}

/// Escapes what is not printable ASCII in a JSON text, which can only be in its strings.
fn ascii(json: &str) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        if char < '\x7f' {
            text.push(char);
        } else {
            for unit in char.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(json: &str) -> String {
        Index::parse(json.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn the_text_is_that_of_transformers() {
        let map = [
            ("z", "model-00002-of-00002.safetensors"),
            ("a.é\u{7f}🦀\n", "model-00001-of-00002.safetensors"),
        ];
        let text = encode(12, Some(6), map.into_iter());
        // Printed by Python: json.dumps(index, indent=2, sort_keys=True) + "\n".
        let expected = r#"{
  "metadata": {
    "total_parameters": 6,
    "total_size": 12
  },
  "weight_map": {
    "a.\u00e9\u007f\ud83e\udd80\n": "model-00001-of-00002.safetensors",
    "z": "model-00002-of-00002.safetensors"
  }
}
"#;
        assert_eq!(text, expected);
        let back = Index::parse(text.as_bytes()).unwrap().weight_map;
        assert_eq!(back["a.é\u{7f}🦀\n"], "model-00001-of-00002.safetensors");
        assert!(!encode(12, None, map.into_iter()).contains("total_parameters"));
    }

    #[test]
    fn shards_stay_inside_the_folder() {
        for file in [
            "",
            "/etc/passwd",
            "..",
            "../x",
            "a/../../x",
            ".",
            "a\\..\\x",
            "C:x",
            "\\\\host\\x",
            "a\0b",
        ] {
            let json = serde_json::json!({"weight_map": {"w": file}}).to_string();
            let message = fault(&json);
            assert!(
                message.contains("tensor \"w\" is said to be in"),
                "{file:?}: {message}"
            );
            assert!(
                message.contains("not the name of a file inside the folder"),
                "{file:?}: {message}"
            );
        }
        for file in ["a.safetensors", "sub/a.safetensors", "..a", "a b"] {
            let json = serde_json::json!({"weight_map": {"w": file}}).to_string();
            assert_eq!(Index::parse(json.as_bytes()).unwrap().weight_map["w"], file);
        }
    }

    #[test]
    fn each_fault_is_named() {
        assert!(fault(r#"{"weight_map":{"a":"x","a":"y"}}"#).contains(r#""a" is defined twice"#));
        assert!(
            fault(r#"{"weight_map":{},"weight_map":{}}"#).contains("duplicate field `weight_map`")
        );
        assert!(fault(r#"{"weight_map":{"a":3}}"#).contains(r#""a": invalid type: integer `3`"#));
        assert!(fault("{}").contains("missing field `weight_map`"));
        assert!(fault("[]").contains("the index is not valid"));
        assert!(fault("").contains("the index is not valid"));
        assert_eq!(fault(r#"{"weight_map":{}}"#), "the index names no tensors");
        assert!(fault("version https://git-lfs.github.com/spec/v1\n").contains("git lfs pull"));
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(json in "\\PC*") {
            let _ = Index::parse(json.as_bytes());
        }

        #[test]
        fn accepted_paths_never_leave(file in "[./a\\\\:]{0,8}") {
            let json = serde_json::json!({"weight_map": {"w": file}}).to_string();
            if Index::parse(json.as_bytes()).is_ok() {
                let joined = Path::new("/folder").join(&file);
                prop_assert!(joined.starts_with("/folder"));
                prop_assert!(!file.split('/').any(|part| part == ".."));
            }
        }
    }
}
