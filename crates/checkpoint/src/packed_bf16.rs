//! Packed bf16: weights in about 11.4 bits each that are, bit for bit, what they are in 16.
//!
//! Exponents of a matrix's weights hardly differ: seven neighbouring ones are those of some 97 % of
//! normally distributed numbers. So an exponent takes three or four bits, and the few others are
//! written down beside.
//!
//! # A block
//!
//! `64 · groups` neighbours of a row, with `G` groups and `P` bits for an exponent:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | the lowest exponent of the block's window, as it stands in a bf16 |
//! | a multiple of `G`, less 1 | exponents of those outside of the window, in order; the rest is 0 |
//! | `G · P · 8` | of each group `P` words of 64 bits, little endian, the lowest bits first: how far exponents are above the lowest; all ones if outside |
//! | `G · 64` | sign (the uppermost bit) and mantissa of each |
//!
//! In a group, element `16 a + 4 b + c` (`a`, `b`, `c` from 0 to 3) stands at position
//! `16 b + 4 a + c`, so that vector instructions that work on lanes of 128 bits bring it in its
//! place. "In order" is the order of positions, group after group.

/// What the name of a tensor of packed bf16 ends with in a safetensors file, behind the weight's
/// own.
const SUFFIX: &str = ".packed_bf16";

/// How bf16 are packed: the sizes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackedBf16 {
    groups: u8,
    group_bytes: u8,
}

impl PackedBf16 {
    /// Elements of a group.
    pub const GROUP: usize = 64;

    /// The most groups of a block: so that it takes less than a page.
    const MOST_GROUPS: usize = 32;

    /// Bits of an exponent in groups of few bytes, and the bytes of signs, mantissas and exponents
    /// in groups of each number of bits.
    const FEW_BITS: usize = 3;

    /// Blocks of so many groups, which take so many bytes each; none if there are no such.
    pub const fn new(groups: usize, group_bytes: usize) -> Option<Self> {
        if groups == 0 || groups > Self::MOST_GROUPS {
            return None;
        }
        // Three bits and a byte of others at least; less than bf16 take.
        if group_bytes <= Self::GROUP + 8 * Self::FEW_BITS || group_bytes >= 2 * Self::GROUP {
            return None;
        }
        Some(Self { groups: groups as u8, group_bytes: group_bytes as u8 })
    }

    /// The sizes for rows of so many columns, in which at most so many exponents of a block are
    /// outside of its window, given the bits that an exponent takes. None if rows are no whole
    /// groups, or if it saves too little.
    pub fn of_rows(columns: usize, most_outside: impl Fn(usize) -> usize) -> Option<Self> {
        let groups = Self::groups_of(columns)?;
        let with_bits = |bits: usize| {
            let left = (1 + most_outside(bits)).div_ceil(groups);
            let bytes = Self::GROUP + 8 * bits + left;
            let one = Self::new(groups, bytes).filter(|one| one.exponent_bits() == bits)?;
            // A saving of less than a tenth is not worth it.
            (10 * bytes <= 9 * 2 * Self::GROUP).then_some(one)
        };
        let both = [Self::FEW_BITS, Self::FEW_BITS + 1].into_iter().filter_map(with_bits);
        both.min_by_key(|one| one.group_bytes)
    }

    /// The most groups of which blocks make up rows of so many columns.
    pub fn groups_of(columns: usize) -> Option<usize> {
        let groups = columns / Self::GROUP;
        let is_whole = columns > 0 && columns.is_multiple_of(Self::GROUP);
        (1..=Self::MOST_GROUPS).rev().find(|most| is_whole && groups.is_multiple_of(*most))
    }

    /// Groups of a block.
    pub const fn groups(self) -> usize {
        self.groups as usize
    }

    /// Bits of an exponent: three or four.
    pub const fn exponent_bits(self) -> usize {
        let most = Self::GROUP + 8 * (Self::FEW_BITS + 1);
        if self.group_bytes as usize <= most { Self::FEW_BITS } else { Self::FEW_BITS + 1 }
    }

    /// Bytes of a block before its exponents: the lowest one, and room for those outside.
    pub const fn head(self) -> usize {
        (self.group_bytes as usize - Self::GROUP - 8 * self.exponent_bits()) * self.groups()
    }

    /// Elements and bytes of a block.
    pub(crate) const fn block(self) -> (usize, usize) {
        (Self::GROUP * self.groups(), self.group_bytes as usize * self.groups())
    }

    /// Name and shape of the tensor of bytes that holds a matrix of this name and shape:
    /// `[rows, blocks of a row, groups, bytes of a group]`, in which the sizes can be read.
    pub fn stored(self, name: &str, [rows, columns]: [usize; 2]) -> (String, [usize; 4]) {
        let blocks = columns / (Self::GROUP * self.groups());
        (format!("{name}{SUFFIX}"), [rows, blocks, self.groups(), self.group_bytes.into()])
    }

    /// The matrix that a tensor of bytes of this name and shape holds, if it is one of these.
    pub(crate) fn of_stored(name: &str, shape: &[usize]) -> Option<(String, Self, [usize; 2])> {
        let name = name.strip_suffix(SUFFIX).filter(|name| !name.is_empty())?;
        let &[rows, blocks, groups, bytes] = shape else { return None };
        let columns = blocks.checked_mul(groups)?.checked_mul(Self::GROUP)?;
        Some((name.to_owned(), Self::new(groups, bytes)?, [rows, columns]))
    }
}

const _: () = {
    // A block is less than the page that a conversion may take at a time.
    assert!(PackedBf16::MOST_GROUPS * 2 * PackedBf16::GROUP <= 4096);
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Dtype;

    proptest! {
        /// What is stored is found again, and its bytes are those of its blocks.
        #[test]
        fn a_matrix_is_found_as_it_was_stored(
            rows in 0usize..50, groups in 0usize..300, outside in 0usize..300, name in "[a-z.]{1,9}",
        ) {
            let shape = [rows, groups * PackedBf16::GROUP];
            let found = PackedBf16::of_rows(shape[1], |bits| outside >> (3 * (bits - 3)));
            let Some(packed) = found else { return Ok(()) };
            let (stored, bytes) = packed.stored(&name, shape);
            prop_assert_eq!(PackedBf16::of_stored(&stored, &bytes), Some((name, packed, shape)));
            let len = Dtype::U8.bytes_of(&bytes).unwrap();
            prop_assert_eq!(Dtype::PackedBf16(packed).bytes_of(&shape), Some(len));
            // There is room for what is outside, and it saves a tenth.
            let room = packed.head() - 1;
            prop_assert!(room >= outside >> (3 * (packed.exponent_bits() - 3)));
            prop_assert!(10 * len <= 9 * (rows * shape[1] * 2) as u64);
        }

        /// Any name and shape are a matrix or none, without a panic.
        #[test]
        fn any_tensor_is_looked_at(
            shape in prop::collection::vec(prop_oneof![0usize..200, any::<usize>()], 0..6),
            name in prop::sample::select(vec!["a.packed_bf16", ".packed_bf16", "a", ""]),
        ) {
            if let Some((name, packed, matrix)) = PackedBf16::of_stored(name, &shape) {
                prop_assert_eq!(name, "a");
                let bytes = Dtype::U8.bytes_of(&shape);
                let same = Dtype::PackedBf16(packed).bytes_of(&matrix);
                prop_assert!(bytes.is_none() || same.is_none() || bytes == same);
            }
        }
    }
}
