//! JSON objects in which no name may come twice.
//!
//! The usual maps keep the last of several entries of one name, so two programs can read two
//! different things from the same file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::text::{message, quoted};

/// Entries that a header's notes may have. Real ones have a few dozen.
const MAX_NOTES: usize = 100_000;

/// A string, borrowed from the text that is parsed where it has no escapes.
#[derive(Debug, Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// A short object of strings.
#[derive(Debug, Default)]
pub(crate) struct Notes(pub BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Notes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Notes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Notes, A::Error> {
                let mut notes = BTreeMap::new();
                while let Some(name) = access.next_key::<String>()? {
                    let value = access.next_value().map_err(|error| within(&name, error))?;
                    match notes.entry(name) {
                        Entry::Occupied(entry) => return Err(twice(entry.key())),
                        Entry::Vacant(entry) => entry.insert(value),
                    };
                    if notes.len() > MAX_NOTES {
                        return Err(A::Error::custom(format!("more than {MAX_NOTES} entries")));
                    }
                }
                Ok(Notes(notes))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Says in which entry an error is.
pub(crate) fn within<E: serde::de::Error>(name: &str, error: E) -> E {
    E::custom(format!("{}: {}", quoted(name), message(&error.to_string())))
}

/// Says that a name came before.
pub(crate) fn twice<E: serde::de::Error>(name: &str) -> E {
    E::custom(format!("{} is defined twice", quoted(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(json: &str) -> String {
        serde_json::from_str::<Notes>(json).unwrap_err().to_string()
    }

    #[test]
    fn a_name_comes_once() {
        let notes: Notes = serde_json::from_str(r#"{"b": "2", "a": "1"}"#).unwrap();
        assert_eq!(notes.0, BTreeMap::from([("a".into(), "1".into()), ("b".into(), "2".into())]));
        // Equal after unescaping is equal.
        let said = fault(r#"{"a": "1", "\u0061": "1"}"#);
        assert!(said.starts_with("\"a\" is defined twice"), "{said}");
        let said = fault(r#"{"a": 3}"#);
        assert!(said.starts_with("\"a\": invalid type: integer `3`"), "{said}");
    }

    #[test]
    fn notes_are_few() {
        let of = |count: usize| {
            let entries: Vec<_> = (0..count).map(|n| format!("\"{n}\":\"\"")).collect();
            format!("{{{}}}", entries.join(","))
        };
        assert!(serde_json::from_str::<Notes>(&of(MAX_NOTES)).is_ok());
        assert!(fault(&of(MAX_NOTES + 1)).starts_with("more than 100000 entries"));
    }
}
