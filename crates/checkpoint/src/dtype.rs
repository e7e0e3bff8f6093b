use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::packed_bf16::PackedBf16;

/// The type of a tensor's elements, little endian on disk. Names are those of safetensors, also in
/// serde.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Dtype {
    /// IEEE 754 double precision, 8 bytes.
    F64,
    /// IEEE 754 single precision, 4 bytes.
    F32,
    /// IEEE 754 half precision, 2 bytes.
    F16,
    /// The upper half of an [`Dtype::F32`], 2 bytes.
    BF16,
    /// Signed integer, 8 bytes.
    I64,
    /// Signed integer, 4 bytes.
    I32,
    /// Signed integer, 2 bytes.
    I16,
    /// Signed integer, 1 byte.
    I8,
    /// Unsigned integer, 8 bytes.
    U64,
    /// Unsigned integer, 4 bytes; some formats keep several quantised weights in one.
    U32,
    /// Unsigned integer, 2 bytes.
    U16,
    /// Unsigned integer, 1 byte.
    U8,
    /// Floating point of 4 exponent and 3 mantissa bits, 1 byte.
    #[serde(rename = "F8_E4M3")]
    F8E4M3,
    /// Floating point of 5 exponent and 2 mantissa bits, 1 byte.
    #[serde(rename = "F8_E5M2")]
    F8E5M2,
    /// A power of two, as scales of blocks are, 1 byte.
    #[serde(rename = "F8_E8M0")]
    F8E8M0,
    /// Zero or one, 1 byte.
    Bool,
    /// Floating point of 2 exponent bits and 1 mantissa bit, two in a byte, the first in the lower
    /// half. A header of safetensors calls the bytes `U8`.
    #[serde(skip)]
    F4,
    /// Integers of 4 bits without a sign, eight in a word of 4 bytes, the first in the lowest bits.
    /// A header of safetensors calls the words `I32`.
    #[serde(skip)]
    U4,
    /// GGUF's blocks of 32 numbers of 8 bits and their scale, 34 bytes. Safetensors has none of
    /// [these](Self::GGUF_BLOCKS).
    #[serde(skip)]
    Q8_0,
    /// GGUF's blocks of 32 numbers of 4 bits and their scale, 18 bytes.
    #[serde(skip)]
    Q4_0,
    /// The same with an offset, 20 bytes.
    #[serde(skip)]
    Q4_1,
    /// GGUF's blocks of 32 numbers of 5 bits and their scale, 22 bytes.
    #[serde(skip)]
    Q5_0,
    /// The same with an offset, 24 bytes.
    #[serde(skip)]
    Q5_1,
    /// GGUF's blocks of 256 numbers of 2 bits, with a scale and an offset of 4 bits for each 16, 84
    /// bytes.
    #[serde(skip)]
    Q2K,
    /// GGUF's blocks of 256 numbers of 3 bits, with a scale of 6 bits for each 16, 110 bytes.
    #[serde(skip)]
    Q3K,
    /// GGUF's blocks of 256 numbers of 4 bits, with a scale and an offset of 6 bits for each 32,
    /// 144 bytes.
    #[serde(skip)]
    Q4K,
    /// The same of numbers of 5 bits, 176 bytes.
    #[serde(skip)]
    Q5K,
    /// GGUF's blocks of 256 numbers of 6 bits, with a scale of 8 bits for each 16, 210 bytes.
    #[serde(skip)]
    Q6K,
    /// GGUF's blocks of 32 numbers out of a table of 16 and their scale, 18 bytes.
    #[serde(skip)]
    Iq4Nl,
    /// GGUF's blocks of 256 numbers out of that table, with a scale of 6 bits for each 32, 136
    /// bytes.
    #[serde(skip)]
    Iq4Xs,
    /// GGUF's blocks of 256 numbers, eight at a time out of a codebook, with a scale of 3 bits for
    /// each 32, 50 bytes.
    #[serde(skip)]
    Iq1S,
    /// The same with a scale for each 16, 56 bytes.
    #[serde(skip)]
    Iq1M,
    /// The same with a sign for each number and a scale of 4 bits for each 32, 66 bytes.
    #[serde(skip)]
    Iq2Xxs,
    /// The same with a scale for each 16, 74 bytes.
    #[serde(skip)]
    Iq2Xs,
    /// The same with a larger codebook, 82 bytes.
    #[serde(skip)]
    Iq2S,
    /// GGUF's blocks of 256 numbers, four at a time out of a codebook, with signs and a scale for
    /// each 32, 98 bytes.
    #[serde(skip)]
    Iq3Xxs,
    /// The same with a larger codebook, 110 bytes.
    #[serde(skip)]
    Iq3S,
    /// GGUF's blocks of 256 numbers from -1 to 1, five in a byte, and their scale, 54 bytes.
    #[serde(skip)]
    Tq1_0,
    /// The same with four in a byte, 66 bytes.
    #[serde(skip)]
    Tq2_0,
    /// GGUF's blocks of 32 [`F4`](Self::F4) behind their scale, an [`F8E8M0`](Self::F8E8M0), 17
    /// bytes.
    #[serde(skip)]
    Mxfp4,
    /// [`Dtype::BF16`] in fewer bits. A header of safetensors calls the bytes `U8`.
    #[serde(skip)]
    PackedBf16(PackedBf16),
}

/// Elements that follow one another in a row and are stored together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ElementBlock {
    /// How many there are; at least one.
    pub elements: usize,
    /// Bytes that they take together. These need not divide a page.
    pub bytes: usize,
}

impl ElementBlock {
    /// Bytes of a row of `columns` elements; none if it does not end with a block, or if that
    /// overflows.
    pub fn row_bytes(self, columns: usize) -> Option<u64> {
        if self.elements == 0 || !columns.is_multiple_of(self.elements) {
            return None;
        }
        let bytes = (columns / self.elements).checked_mul(self.bytes)?;
        u64::try_from(bytes).ok()
    }
}

impl Dtype {
    /// Every dtype of safetensors, in the order of declaration.
    pub const ALL: [Self; 16] = {
        use Dtype::*;
        [F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, F8E4M3, F8E5M2, F8E8M0, Bool]
    };

    /// GGUF's blocks of elements.
    pub const GGUF_BLOCKS: [Self; 22] = {
        use Dtype::*;
        [
            Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Nl, Iq4Xs, Mxfp4, Iq1S, Iq1M,
            Iq2Xxs, Iq2Xs, Iq2S, Iq3Xxs, Iq3S, Tq1_0, Tq2_0,
        ]
    };

    /// Elements that are stored together, the bytes that they take, and the name.
    const fn layout(self) -> (usize, usize, &'static str) {
        match self {
            Self::F64 => (1, 8, "F64"),
            Self::F32 => (1, 4, "F32"),
            Self::F16 => (1, 2, "F16"),
            Self::BF16 => (1, 2, "BF16"),
            Self::I64 => (1, 8, "I64"),
            Self::I32 => (1, 4, "I32"),
            Self::I16 => (1, 2, "I16"),
            Self::I8 => (1, 1, "I8"),
            Self::U64 => (1, 8, "U64"),
            Self::U32 => (1, 4, "U32"),
            Self::U16 => (1, 2, "U16"),
            Self::U8 => (1, 1, "U8"),
            Self::F8E4M3 => (1, 1, "F8_E4M3"),
            Self::F8E5M2 => (1, 1, "F8_E5M2"),
            Self::F8E8M0 => (1, 1, "F8_E8M0"),
            Self::Bool => (1, 1, "BOOL"),
            Self::F4 => (2, 1, "F4"),
            Self::U4 => (8, 4, "U4"),
            Self::Q8_0 => (32, 34, "Q8_0"),
            Self::Q4_0 => (32, 18, "Q4_0"),
            Self::Q4_1 => (32, 20, "Q4_1"),
            Self::Q5_0 => (32, 22, "Q5_0"),
            Self::Q5_1 => (32, 24, "Q5_1"),
            Self::Q2K => (256, 84, "Q2_K"),
            Self::Q3K => (256, 110, "Q3_K"),
            Self::Q4K => (256, 144, "Q4_K"),
            Self::Q5K => (256, 176, "Q5_K"),
            Self::Q6K => (256, 210, "Q6_K"),
            Self::Iq4Nl => (32, 18, "IQ4_NL"),
            Self::Iq4Xs => (256, 136, "IQ4_XS"),
            Self::Iq1S => (256, 50, "IQ1_S"),
            Self::Iq1M => (256, 56, "IQ1_M"),
            Self::Iq2Xxs => (256, 66, "IQ2_XXS"),
            Self::Iq2Xs => (256, 74, "IQ2_XS"),
            Self::Iq2S => (256, 82, "IQ2_S"),
            Self::Iq3Xxs => (256, 98, "IQ3_XXS"),
            Self::Iq3S => (256, 110, "IQ3_S"),
            Self::Tq1_0 => (256, 54, "TQ1_0"),
            Self::Tq2_0 => (256, 66, "TQ2_0"),
            Self::Mxfp4 => (32, 17, "MXFP4"),
            Self::PackedBf16(packed) => {
                let (elements, bytes) = packed.block();
                (elements, bytes, "packed BF16")
            }
        }
    }

    /// Elements that are stored together: one, but for numbers of 4 bits and GGUF's blocks.
    pub const fn block(self) -> ElementBlock {
        let (elements, bytes, _) = self.layout();
        ElementBlock { elements, bytes }
    }

    /// Bytes per [block](Self::block): per element, but for numbers of 4 bits and GGUF's blocks.
    pub const fn size(self) -> usize {
        self.layout().1
    }

    /// The name in a safetensors header, such as `BF16`, or in GGUF.
    pub const fn name(self) -> &'static str {
        self.layout().2
    }

    /// Bytes of a tensor of this dtype and `shape`; none if that overflows, or if rows are no whole
    /// blocks.
    ///
    /// Dimensions of zero count as one in the overflow check, so the product over any subset of the
    /// dimensions of an accepted shape fits a `usize`.
    pub(crate) fn bytes_of(self, shape: &[usize]) -> Option<u64> {
        let ElementBlock { elements, bytes } = self.block();
        let widest =
            shape.iter().try_fold(1, |product: usize, &dim| product.checked_mul(dim.max(1)))?;
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(elements) {
            return None;
        }
        let widest = widest.div_ceil(elements).checked_mul(bytes)?;
        let bytes = if shape.contains(&0) { 0 } else { widest };
        u64::try_from(bytes).ok()
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A dtype's name that is not one of [`Dtype::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "dtype {0:?} is not supported (F64, F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, I64, I32, I16, I8, U64, U32, U16, \
     U8 and BOOL are)"
)]
pub struct UnknownDtype(pub String);

impl FromStr for Dtype {
    type Err = UnknownDtype;

    /// Parses the name exactly as a safetensors header writes it.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| UnknownDtype(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back_in_every_form() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.to_string().parse(), Ok(dtype));
            let json = serde_json::to_string(&dtype).unwrap();
            assert_eq!(json, format!("\"{}\"", dtype.name()));
            assert_eq!(serde_json::from_str::<Dtype>(&json).unwrap(), dtype);
        }
        assert_eq!("f32".parse::<Dtype>(), Err(UnknownDtype("f32".into())));
        assert!("F6_E2M3".parse::<Dtype>().unwrap_err().to_string().contains("F6_E2M3"));
    }

    #[test]
    fn sizes_are_checked_even_behind_a_zero() {
        assert_eq!(Dtype::F32.bytes_of(&[]), Some(4));
        assert_eq!(Dtype::BF16.bytes_of(&[3, 5]), Some(30));
        assert_eq!(Dtype::F64.bytes_of(&[7, 0, 9]), Some(0));
        assert_eq!(Dtype::U8.bytes_of(&[usize::MAX]), Some(usize::MAX as u64));
        assert_eq!(Dtype::F16.bytes_of(&[usize::MAX]), None);
        assert_eq!(Dtype::U8.bytes_of(&[0, usize::MAX, 2]), None);
    }
}
