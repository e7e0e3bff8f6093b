use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Component, Path};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::fault::IndexFault;
use crate::file::{open_regular, read_exact_at};
use crate::json::{Text, within};
use crate::masquerade;
use crate::text::{message, name_fault, quoted, shortened};

/// Bytes that an index may have. One of a million tensors is about this large.
const MAX_INDEX: u64 = 100_000_000;
/// Shards that an index may name. Each is a file kept open.
pub(crate) const MAX_SHARDS: usize = 10_000;

/// An index of shards (`model.safetensors.index.json`): which shard each tensor is in.
///
/// Names are borrowed from the text where it has them without escapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index<'a> {
    shards: Vec<String>,
    /// Sorted by name; with positions in `shards`.
    tensors: Vec<(Cow<'a, str>, usize)>,
}

impl<'a> Index<'a> {
    /// Parses the JSON of an index and checks the shards' names; shards are not looked for.
    ///
    /// Takes memory in proportion to the JSON: about four times its bytes at worst.
    ///
    /// # Errors
    ///
    /// If it is not JSON of the right form, if a tensor comes twice or none comes, or if a shard's
    /// name could lead out of the folder.
    pub fn parse(json: &'a [u8]) -> Result<Self, IndexFault> {
        if !json.trim_ascii_start().starts_with(b"{")
            && let Some((what, advice)) = masquerade::identify(json)
        {
            return Err(IndexFault::OtherFormat { what, advice });
        }
        let Contents { weight_map, .. } = serde_json::from_slice(json)
            .map_err(|error| IndexFault::Json { detail: message(&error.to_string()) })?;
        let RingLayout { shards: positions, mut tensors } = weight_map;
        if tensors.is_empty() {
            return Err(IndexFault::Empty);
        }
        if positions.len() > MAX_SHARDS {
            return Err(IndexFault::TooManyShards { max: MAX_SHARDS });
        }
        tensors.sort_unstable();
        if let Some([(name, _), _]) = tensors.array_windows().find(|[one, other]| one.0 == other.0)
        {
            return Err(IndexFault::Duplicate { tensor: name.clone().into_owned() });
        }

        // Positions are by first appearance, and become those in the order of names.
        let mut shards: Vec<_> = positions.into_iter().collect();
        shards.sort_unstable();
        let mut sorted = vec![0; shards.len()];
        for (to, (_, from)) in shards.iter().enumerate() {
            sorted[*from] = to;
        }
        for (_, shard) in &mut tensors {
            *shard = sorted[*shard];
        }
        let index = Self {
            shards: shards.into_iter().map(|(name, _)| name.into_owned()).collect(),
            tensors,
        };
        if let Some(shard) = index.shards.iter().position(|file| !stays_inside(file)) {
            let tensor = index.tensors.iter().find(|(_, place)| *place == shard);
            return Err(IndexFault::UnsafePath {
                tensor: tensor.map(|(name, _)| name.to_string()).unwrap_or_default(),
                file: shortened(&index.shards[shard]),
            });
        }
        Ok(index)
    }

    /// The shards' paths, relative to the folder and staying inside it, in the order of their
    /// names.
    pub fn shards(&self) -> &[String] {
        &self.shards
    }

    /// All tensors, in the order of their names, with the shards that they are in.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tensors.iter().map(|(name, shard)| (&**name, &*self.shards[*shard]))
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are no tensors; never so.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The shard that a tensor is in, as a position in [`Self::shards`].
    pub fn shard_of(&self, tensor: &str) -> Option<usize> {
        let found = self.tensors.binary_search_by(|(name, _)| (**name).cmp(tensor));
        Some(self.tensors.get(found.ok()?)?.1)
    }
}

/// Reads an index file, if it is not too large.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let (file, metadata) = open_regular(path)?;
    let len = metadata.len();
    if len > MAX_INDEX {
        return Err(Error::Index {
            path: path.to_owned(),
            fault: IndexFault::TooLarge { len, max: MAX_INDEX },
        });
    }
    let mut json = vec![0; len as usize];
    read_exact_at(&file, &mut json, 0)
        .map_err(|cause| Error::Read { path: path.to_owned(), cause })?;
    Ok(json)
}

/// The members of an index. `metadata` is not read: its sizes are often wrong in real checkpoints.
#[derive(Deserialize)]
struct Contents<'a> {
    #[serde(borrow)]
    weight_map: RingLayout<'a>,
    #[serde(rename = "metadata")]
    _metadata: Option<IgnoredAny>,
}

/// A weight map, nothing of it checked but the form of names.
struct RingLayout<'a> {
    /// Names, with positions by first appearance.
    shards: HashMap<Cow<'a, str>, usize>,
    tensors: Vec<(Cow<'a, str>, usize)>,
}

impl<'de: 'a, 'a> Deserialize<'de> for RingLayout<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RingLayout<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of shards' names")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut access: A,
            ) -> Result<RingLayout<'de>, A::Error> {
                let (mut shards, mut tensors) = (HashMap::new(), Vec::new());
                while let Some(Text(name)) = access.next_key::<Text<'de>>()? {
                    let Text(file) = access.next_value().map_err(|error| within(&name, error))?;
                    for name in [&name, &file] {
                        if let Some(fault) = name_fault(name) {
                            return Err(A::Error::custom(format!("{} {fault}", quoted(name))));
                        }
                    }
                    let next = shards.len();
                    let shard = *shards.entry(file).or_insert(next);
                    if shard > MAX_SHARDS {
                        // More would only take memory; this many is an error already.
                        while access.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                        break;
                    }
                    tensors.push((name, shard));
                }
                Ok(RingLayout { shards, tensors })
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Whether a path is relative and made of plain names only, on every system: `C:\x` means different
/// things on different ones. Each file has one such path: `a//b` and `a/./b` are not plain.
fn stays_inside(file: &str) -> bool {
    !file.contains(['\\', ':'])
        && file.split('/').all(|part| {
            let mut parts = Path::new(part).components();
            matches!(parts.next(), Some(Component::Normal(_)))
        })
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
    let weight_map: Map<_, _> =
        sorted.into_iter().map(|(tensor, file)| (tensor.into(), file.into())).collect();
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
mod tests;
