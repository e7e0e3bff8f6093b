//! Integers of 4 or 8 bits, each less the zero point of its group and times the scale of it.

use crate::dtype::Dtype;

/// How integers and their zero points lie in the tensors of a weight `[out, in]`. A word has 32
/// bits, of which the lowest are the first number's.
///
/// | order | data | zero points | as |
/// |---|---|---|---|
/// | [`Rows`](IntegerOrder::Rows) | `[out, words of in]` | `[words of out, groups]` | compressed-tensors packs them |
/// | `Rows` of [`I8`](IntegerWidth::I8) | `[out, in]` bytes | `[out, groups]` bytes | compressed-tensors, not packed |
/// | [`Columns`](IntegerOrder::Columns) | `[words of in, out]` | `[groups, words of out]` | GPTQ |
/// | [`Interleaved`](IntegerOrder::Interleaved) | `[in, words of out]` | `[groups, words of out]` | AWQ |
///
/// Scales are `[out, groups]` in `Rows`, and `[groups, out]` otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Integers {
    /// The bits of each.
    pub width: IntegerWidth,
    /// Where each lies.
    pub order: IntegerOrder,
    /// What is subtracted.
    pub zeros: ZeroPoints,
}

/// The bits of an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IntegerWidth {
    /// 4, without a sign.
    U4,
    /// 8, without a sign.
    U8,
    /// 8, with a sign; a tensor of bytes.
    I8,
}

/// Which numbers share a word, and in which order words come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IntegerOrder {
    /// Neighbours of a row of the weight, row after row.
    Rows,
    /// Neighbours of a row of the weight, column after column.
    Columns,
    /// Neighbours of a column of the weight, column after column: in a word those of the rows of
    /// [`INTERLEAVED`].
    Interleaved,
}

/// Rows of eight, in the order in which AWQ has their numbers in a word.
pub const INTERLEAVED: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// What is subtracted from integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZeroPoints {
    /// The middle of what there is: 8, 128, or 0 of integers with a sign.
    Middle,
    /// A number for each group.
    Stored,
    /// The same less one: what a word of them stands for is the word with one added to each,
    /// carries and all.
    StoredLessOne,
}

impl IntegerWidth {
    /// The type of the weight's elements.
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::U4 => Dtype::U4,
            Self::U8 => Dtype::U8,
            Self::I8 => Dtype::I8,
        }
    }

    /// The type of the tensors that hold them.
    pub const fn stored(self) -> Dtype {
        match self {
            Self::U4 | Self::U8 => Dtype::I32,
            Self::I8 => Dtype::I8,
        }
    }

    /// Numbers in an element of these tensors.
    pub const fn per_word(self) -> usize {
        match self {
            Self::U4 => 8,
            Self::U8 => 4,
            Self::I8 => 1,
        }
    }

    /// The number in the middle of all: as a byte.
    pub const fn middle(self) -> u8 {
        match self {
            Self::U4 => 8,
            Self::U8 => 128,
            Self::I8 => 0,
        }
    }

    /// Number `at` of a word.
    pub const fn number(self, word: u32, at: usize) -> u8 {
        match self {
            Self::U4 => (word >> (4 * at)) as u8 & 15,
            Self::U8 => (word >> (8 * at)) as u8,
            Self::I8 => word as u8,
        }
    }

    /// Bytes of a row of so many numbers, in whole words; none if that overflows.
    pub fn row_bytes(self, columns: usize) -> Option<u64> {
        let words = columns.div_ceil(self.per_word());
        u64::try_from(words.checked_mul(self.stored().size())?).ok()
    }
}

impl Integers {
    /// The same in memory: row after row, and zero points, if there are any, as a byte for each
    /// scale.
    #[must_use]
    pub const fn in_memory(self) -> Self {
        let zeros = match self.zeros {
            ZeroPoints::Middle => ZeroPoints::Middle,
            _ => ZeroPoints::Stored,
        };
        Self { order: IntegerOrder::Rows, zeros, ..self }
    }

    /// Whether rows of the weight are columns of the tensors.
    pub const fn is_turned(self) -> bool {
        !matches!(self.order, IntegerOrder::Rows)
    }

    /// The shape of the weight that a tensor of this shape holds: with so many `columns`, if the
    /// tensor may have them.
    pub(crate) fn shape_of(self, data: [usize; 2], columns: Option<usize>) -> Option<[usize; 2]> {
        let n = self.width.per_word();
        let (rows, words) = match self.order {
            IntegerOrder::Rows => (data[0], data[1]),
            IntegerOrder::Columns => (data[1], data[0]),
            IntegerOrder::Interleaved => return Some([data[1].checked_mul(n)?, data[0]]),
        };
        let columns = columns.filter(|columns| columns.div_ceil(n) == words);
        Some([rows, columns.or(words.checked_mul(n))?])
    }

    /// The shape of the tensor that holds a weight of this shape; nothing if its rows are no whole
    /// words.
    pub(crate) fn data_shape(self, [rows, columns]: [usize; 2]) -> Option<[usize; 2]> {
        let n = self.width.per_word();
        match self.order {
            IntegerOrder::Rows => Some([rows, columns.div_ceil(n)]),
            IntegerOrder::Columns => Some([columns.div_ceil(n), rows]),
            IntegerOrder::Interleaved => rows.is_multiple_of(n).then_some([columns, rows / n]),
        }
    }

    /// The shape of the zero points of so many rows and groups.
    pub(crate) fn zeros_shape(self, [rows, groups]: [usize; 2]) -> [usize; 2] {
        let words = rows.div_ceil(self.width.per_word());
        if self.is_turned() { [groups, words] } else { [words, groups] }
    }
}
