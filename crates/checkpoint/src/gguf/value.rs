//! Values of metadata, decoded when they are asked for.

use serde_json::Value;

/// A value of the metadata.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GgufValue<'a> {
    /// Of any unsigned type.
    Unsigned(u64),
    /// Of any signed type.
    Signed(i64),
    /// Of 32 bits.
    F32(f32),
    /// Of 64 bits.
    F64(f64),
    /// True or false.
    Bool(bool),
    /// A string, which should be UTF-8.
    Text(&'a [u8]),
    /// Values of one type.
    Array(GgufArray<'a>),
}

/// Values of one type, in order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GgufArray<'a> {
    pub(super) kind: Kind,
    pub(super) bytes: &'a [u8],
}

/// The type of a value that is no array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Unsigned(usize),
    Signed(usize),
    Float(usize),
    Bool,
    Text,
}

impl Kind {
    /// The type of that number in the format.
    pub(super) fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Unsigned(1),
            1 => Self::Signed(1),
            2 => Self::Unsigned(2),
            3 => Self::Signed(2),
            4 => Self::Unsigned(4),
            5 => Self::Signed(4),
            6 => Self::Float(4),
            7 => Self::Bool,
            8 => Self::Text,
            10 => Self::Unsigned(8),
            11 => Self::Signed(8),
            12 => Self::Float(8),
            _ => return None,
        })
    }

    /// Bytes of a value; `None` if it begins with its length.
    pub(super) fn size(self) -> Option<usize> {
        match self {
            Self::Unsigned(size) | Self::Signed(size) | Self::Float(size) => Some(size),
            Self::Bool => Some(1),
            Self::Text => None,
        }
    }

    /// The first value of some bytes, and the bytes behind it.
    pub(super) fn split(self, bytes: &[u8]) -> Option<(GgufValue<'_>, &[u8])> {
        let Some(size) = self.size() else {
            let (len, rest) = bytes.split_first_chunk()?;
            let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
            let (text, rest) = rest.split_at_checked(len)?;
            return Some((GgufValue::Text(text), rest));
        };
        let (value, rest) = bytes.split_at_checked(size)?;
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(value);
        let unsigned = u64::from_le_bytes(wide);
        let value = match self {
            Self::Unsigned(_) | Self::Text => GgufValue::Unsigned(unsigned),
            Self::Signed(_) => {
                let unused = 64 - 8 * size as u32;
                GgufValue::Signed((unsigned << unused) as i64 >> unused)
            }
            Self::Float(4) => GgufValue::F32(f32::from_bits(unsigned as u32)),
            Self::Float(_) => GgufValue::F64(f64::from_bits(unsigned)),
            Self::Bool => GgufValue::Bool(unsigned != 0),
        };
        Some((value, rest))
    }
}

impl<'a> GgufArray<'a> {
    /// The values.
    pub fn iter(self) -> impl Iterator<Item = GgufValue<'a>> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let (value, behind) = self.kind.split(rest)?;
            rest = behind;
            Some(value)
        })
    }
}

impl GgufValue<'_> {
    /// The same in JSON: an f32 as the shortest decimal that stands for it. `None` for what JSON
    /// does not have.
    pub(super) fn json(self) -> Option<Value> {
        Some(match self {
            Self::Unsigned(value) => value.into(),
            Self::Signed(value) => value.into(),
            Self::F32(value) => {
                serde_json::Number::from_f64(value.to_string().parse().ok()?)?.into()
            }
            Self::F64(value) => serde_json::Number::from_f64(value)?.into(),
            Self::Bool(value) => value.into(),
            Self::Text(value) => str::from_utf8(value).ok()?.into(),
            Self::Array(array) => array.iter().map(Self::json).collect::<Option<Vec<_>>>()?.into(),
        })
    }

    /// Bytes in the file, without the length of a text.
    pub(super) fn len(self) -> usize {
        match self {
            Self::Text(bytes) | Self::Array(GgufArray { bytes, .. }) => bytes.len(),
            _ => size_of::<u64>(),
        }
    }

    /// A whole number that is not negative.
    pub(super) fn unsigned(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            Self::Signed(value) => value.try_into().ok(),
            _ => None,
        }
    }
}
