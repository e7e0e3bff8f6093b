use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of a tensor's values, as far as its size goes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum WeightDtype {
    /// 64-bit floating point.
    F64,
    /// 32-bit floating point.
    #[default]
    F32,
    /// 16-bit IEEE floating point.
    F16,
    /// The upper half of a 32-bit floating point number.
    Bf16,
    /// 8-bit floating point, of either kind.
    F8,
    /// 4-bit floating point.
    F4,
    /// 64-bit integers, signed or not.
    Int64,
    /// 32-bit integers, signed or not.
    Int32,
    /// 16-bit integers, signed or not.
    Int16,
    /// 8-bit integers, signed or not.
    Int8,
    /// 6-bit integers, four in three bytes.
    Int6,
    /// 5-bit integers, eight in five bytes.
    Int5,
    /// 4-bit integers, two in a byte.
    Int4,
    /// 3-bit integers, eight in three bytes.
    Int3,
    /// 2-bit integers, four in a byte.
    Int2,
    /// Booleans, a byte each.
    Bool,
}

/// Of each type, in the order of [`WeightDtype::ALL`].
const NAMES_AND_BITS: [(&str, u64); 16] = [
    ("f64", 64),
    ("f32", 32),
    ("f16", 16),
    ("bf16", 16),
    ("f8", 8),
    ("f4", 4),
    ("int64", 64),
    ("int32", 32),
    ("int16", 16),
    ("int8", 8),
    ("int6", 6),
    ("int5", 5),
    ("int4", 4),
    ("int3", 3),
    ("int2", 2),
    ("bool", 8),
];

impl WeightDtype {
    /// All of them: floating point types first, in the order in which they are declared.
    pub const ALL: [Self; 16] = {
        use WeightDtype::*;
        [F64, F32, F16, Bf16, F8, F4, Int64, Int32, Int16, Int8, Int6, Int5, Int4, Int3, Int2, Bool]
    };

    /// Bits of one value.
    pub fn bits(self) -> u64 {
        NAMES_AND_BITS[self as usize].1
    }

    /// Bytes of `elements` values: whole ones. No more than 64 bits hold.
    pub fn bytes(self, elements: u64) -> u64 {
        let bits = u128::from(elements) * u128::from(self.bits());
        u64::try_from(bits.div_ceil(8)).unwrap_or(u64::MAX)
    }

    /// Whether it is a floating point type: others are not cast.
    pub fn is_float(self) -> bool {
        self <= Self::F4
    }

    /// The name as written in JSON: `bf16`, `int4`.
    pub fn name(self) -> &'static str {
        NAMES_AND_BITS[self as usize].0
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_a_byte_counts_right() {
        assert_eq!(WeightDtype::Int4.bytes(7), 4);
        assert_eq!(WeightDtype::Int2.bytes(8), 2);
        assert_eq!(WeightDtype::Bool.bytes(3), 3);
        assert_eq!(WeightDtype::Bf16.bytes(3), 6);
        assert_eq!(WeightDtype::F64.bytes(u64::MAX), u64::MAX);
    }

    #[test]
    fn names_are_those_of_serde() {
        for dtype in WeightDtype::ALL {
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("\"{dtype}\""));
        }
    }
}
