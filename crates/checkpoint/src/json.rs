use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

/// A JSON object in which no name may come twice.
///
/// The usual maps keep the last of several entries of one name, so two programs can read two
/// different things from the same file.
#[derive(Debug)]
pub(crate) struct UniqueMap<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some(name) = access.next_key::<String>()? {
                    let value = access
                        .next_value()
                        .map_err(|error| A::Error::custom(format!("{name:?}: {error}")))?;
                    insert_new(&mut map, name, value)?;
                }
                Ok(UniqueMap(map))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// Inserts `value`, or says that `name` is there already.
pub(crate) fn insert_new<V, E: serde::de::Error>(
    map: &mut BTreeMap<String, V>,
    name: String,
    value: V,
) -> Result<(), E> {
    use std::collections::btree_map::Entry;
    match map.entry(name) {
        Entry::Occupied(entry) => Err(E::custom(format!("{:?} is defined twice", entry.key()))),
        Entry::Vacant(entry) => {
            entry.insert(value);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_once() {
        let map: UniqueMap<u8> = serde_json::from_str(r#"{"b": 2, "a": 1}"#).unwrap();
        assert_eq!(map.0, BTreeMap::from([("a".into(), 1), ("b".into(), 2)]));
        // Equal after unescaping is equal.
        let error = serde_json::from_str::<UniqueMap<u8>>(r#"{"a": 1, "\u0061": 1}"#).unwrap_err();
        assert!(
            error.to_string().starts_with("\"a\" is defined twice"),
            "{error}"
        );
        let error = serde_json::from_str::<UniqueMap<u8>>(r#"{"a": "x"}"#).unwrap_err();
        assert!(
            error.to_string().starts_with("\"a\": invalid type"),
            "{error}"
        );
    }
}
