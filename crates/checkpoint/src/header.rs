use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::dtype::{Dtype, UnknownDtype};
use crate::fault::HeaderFault;
use crate::json::{Notes, Text, twice, within};
use crate::masquerade;
use crate::text::{message, name_fault, quoted, shortened};

/// Bytes that the headers of all shards may have together: ten times those of the largest real
/// checkpoints. What is kept of them in memory is in proportion.
pub(crate) const MAX_HEADERS: u64 = 200_000_000;

/// Bytes before the header: its length, little endian.
pub(crate) const LENGTH_BYTES: u64 = 8;
/// Bytes that a header may have, by the format's definition.
pub(crate) const MAX_HEADER: u64 = 100_000_000;
/// Dimensions that a shape may have. PyTorch and NumPy compute with at most as many.
pub(crate) const MAX_RANK: usize = 64;
/// The entry of a header that is not a tensor.
pub(crate) const METADATA: &str = "__metadata__";

/// A safetensors header found right: its tensors cover the data section, in this order, without
/// overlap or hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The notes (`__metadata__`), such as `format`.
    pub metadata: BTreeMap<String, String>,
    /// All tensors, by offset. Names are unique.
    pub tensors: Vec<HeaderEntry>,
}

/// One tensor of a [`Header`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderEntry {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape, slowest dimension first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Its first byte, from the start of the data section.
    pub start: u64,
    /// Its end (exclusive), from the start of the data section.
    pub end: u64,
}

impl Header {
    /// How many of a file's first bytes [`Self::json_len`] looks at.
    pub const START: u64 = 64;

    /// The bytes of the JSON that follows the eight bytes of its length, in a file of `file_len`
    /// bytes that begins with `start`: [`Self::START`] bytes, or all that the file has.
    ///
    /// # Errors
    ///
    /// If the file cannot be safetensors, or is cut short inside its header.
    pub fn json_len(start: &[u8], file_len: u64) -> Result<u64, HeaderFault> {
        let claimed = match start.split_first_chunk() {
            Some((&length, [first, ..])) if file_len > LENGTH_BYTES => {
                check_len(u64::from_le_bytes(length), *first, file_len)
            }
            _ => Err(HeaderFault::TooShort { len: file_len }),
        };
        // Only then: a length may begin with the same bytes as another format.
        claimed.map_err(|fault| match masquerade::identify(start) {
            Some((what, advice)) => HeaderFault::OtherFormat { what, advice },
            None => fault,
        })
    }

    /// Parses the JSON of a header and proves it right for a data section of `data_len` bytes.
    ///
    /// Takes memory in proportion to the JSON: about four times its bytes at worst.
    ///
    /// # Errors
    ///
    /// If it is not JSON of the right form, if a name comes twice, or if anything that it says of a
    /// tensor contradicts the rest or the length of the data.
    pub fn parse(json: &[u8], data_len: u64) -> Result<Self, HeaderFault> {
        if json.first() != Some(&b'{') {
            return Err(HeaderFault::NotAnObject);
        }
        let Claims { metadata, mut tensors } = serde_json::from_slice(json)
            .map_err(|error| HeaderFault::Json { detail: message(&error.to_string()) })?;
        tensors.sort_unstable_by(|(one, _), (other, _)| one.0.cmp(&other.0));
        if let Some([(name, _), _]) =
            tensors.array_windows().find(|[(one, _), (other, _)]| one.0 == other.0)
        {
            return Err(HeaderFault::Duplicate { tensor: name.0.clone().into_owned() });
        }
        let mut entries = Vec::with_capacity(tensors.len());
        for (name, claim) in tensors {
            entries.push(claim.check(name.0, data_len)?);
        }
        entries.sort_by_key(|entry| (entry.start, entry.end));
        check_cover(&entries, data_len)?;
        Ok(Self { metadata, tensors: entries })
    }
}

/// Checks the header's length, and its first byte, against the file's.
fn check_len(json_len: u64, first: u8, file_len: u64) -> Result<u64, HeaderFault> {
    if json_len > MAX_HEADER {
        Err(HeaderFault::HeaderTooLarge { len: json_len, max: MAX_HEADER })
    } else if json_len > file_len - LENGTH_BYTES {
        Err(HeaderFault::HeaderBeyondEnd { len: json_len, file_len })
    } else if json_len == 0 || first != b'{' {
        Err(HeaderFault::NotAnObject)
    } else {
        Ok(json_len)
    }
}

/// Proves that `tensors`, sorted by offsets, lie end to end from byte 0 to byte `data_len`.
fn check_cover(tensors: &[HeaderEntry], data_len: u64) -> Result<(), HeaderFault> {
    let mut covered = 0;
    let mut before: Option<&HeaderEntry> = None;
    for entry in tensors {
        if entry.start > covered {
            return Err(HeaderFault::Hole {
                tensor: entry.name.clone(),
                bytes: entry.start - covered,
            });
        }
        if entry.start < covered {
            let other = before.map(|entry| entry.name.clone()).unwrap_or_default();
            return Err(HeaderFault::Overlap { tensor: entry.name.clone(), other });
        }
        covered = entry.end;
        before = Some(entry);
    }
    match data_len.saturating_sub(covered) {
        0 => Ok(()),
        bytes => Err(HeaderFault::TrailingBytes { bytes }),
    }
}

/// What a header says, nothing of it checked but the form of names and shapes. What can be borrowed
/// from the JSON is: there may be millions of entries.
struct Claims<'a> {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(Text<'a>, Claim<'a>)>,
}

/// What a header says of one tensor.
#[derive(Deserialize)]
struct Claim<'a> {
    #[serde(borrow)]
    dtype: Text<'a>,
    shape: Shape,
    data_offsets: (u64, u64),
}

impl Claim<'_> {
    /// As [`HeaderEntry::checked`].
    fn check(self, name: Cow<'_, str>, data_len: u64) -> Result<HeaderEntry, HeaderFault> {
        let dtype: Dtype = self.dtype.0.parse().map_err(|UnknownDtype(found)| {
            let tensor = name.clone().into_owned();
            HeaderFault::Dtype { tensor, cause: UnknownDtype(shortened(&found)) }
        })?;
        HeaderEntry::checked(name, dtype, self.shape.0, self.data_offsets, data_len)
    }
}

impl HeaderEntry {
    /// Checks everything that can be checked of one tensor alone.
    pub(crate) fn checked(
        name: Cow<'_, str>,
        dtype: Dtype,
        shape: Vec<usize>,
        (start, end): (u64, u64),
        data_len: u64,
    ) -> Result<Self, HeaderFault> {
        let tensor = || name.clone().into_owned();
        let Some(expected) = dtype.bytes_of(&shape) else {
            return Err(HeaderFault::Overflow { tensor: tensor() });
        };
        let Some(found) = end.checked_sub(start) else {
            return Err(HeaderFault::Reversed { tensor: tensor(), start, end });
        };
        if expected != found {
            return Err(HeaderFault::SizeMismatch { tensor: tensor(), expected, found });
        }
        if end > data_len {
            return Err(HeaderFault::BeyondEnd { tensor: tensor(), end, data_len });
        }
        Ok(Self { name: name.into_owned(), dtype, shape, start, end })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Claims<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Claims<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Claims<'de>, A::Error> {
                let mut metadata: Option<BTreeMap<String, String>> = None;
                let mut tensors = Vec::new();
                while let Some(Text(name)) = access.next_key::<Text<'de>>()? {
                    if let Some(fault) = name_fault(&name) {
                        return Err(A::Error::custom(format!("{} {fault}", quoted(&name))));
                    }
                    if name == METADATA {
                        // `null` is taken for no metadata, as the safetensors library does.
                        let notes: Option<Notes> =
                            access.next_value().map_err(|error| within(&name, error))?;
                        if metadata
                            .replace(notes.map(|notes| notes.0).unwrap_or_default())
                            .is_some()
                        {
                            return Err(twice(METADATA));
                        }
                    } else {
                        let claim: Claim<'de> =
                            access.next_value().map_err(|error| within(&name, error))?;
                        tensors.push((Text(name), claim));
                    }
                }
                Ok(Claims { metadata: metadata.unwrap_or_default(), tensors })
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// The dimensions of a tensor, not too many.
pub(crate) struct Shape(pub Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dimensions;
        impl<'de> Visitor<'de> for Dimensions {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(size) = access.next_element()? {
                    if shape.len() == MAX_RANK {
                        return Err(A::Error::custom(format!("more than {MAX_RANK} dimensions")));
                    }
                    shape.push(size);
                }
                Ok(Shape(shape))
            }
        }
        deserializer.deserialize_seq(Dimensions)
    }
}

#[cfg(test)]
mod tests;
