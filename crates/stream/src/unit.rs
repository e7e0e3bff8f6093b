use crate::{BLOCK, Error};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The longest unit, in bytes: a sum of a few of them and some blocks does not overflow.
const LONGEST: u64 = (isize::MAX / 4) as u64;

/// The longest piece that goes through a reader's scratch memory, in bytes: each reader has as much.
pub(crate) const STAGED_PIECE: usize = 1 << 20;

/// Number of a unit in the list given to [`crate::Stream::start`].
pub type ChunkId = usize;

/// A byte range of a file that is read, held and dropped as a whole: a tensor, or a tile of one.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Name for error messages, usually the tensor's.
    pub name: Arc<str>,
    /// Index of the file among the sources.
    pub source: usize,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its length in the file, in bytes.
    pub len: u64,
    /// The alignment that the bytes must have in memory (a power of two, at most
    /// [`BLOCK`](crate::BLOCK)). A unit that the file stores misaligned is copied to alignment.
    pub align: usize,
    /// A conversion on the way in, element by element.
    pub convert: Option<Convert>,
    /// Whether it stays in memory, at a place of its own, once it is read. It then takes nothing of the ring.
    pub keep: bool,
}

impl Chunk {
    /// Length in memory, in bytes: after the conversion.
    pub fn len_in_memory(&self) -> u64 {
        match &self.convert {
            Some(convert) => {
                (self.len / convert.from.max(1) as u64).saturating_mul(convert.to as u64)
            }
            None => self.len,
        }
    }

    /// Refuses what could not be read piece by piece, or would overflow on the way.
    pub(crate) fn check(&self, sources: usize) -> Result<(), Error> {
        let end = self.offset.checked_add(self.len);
        let reason = if self.source >= sources {
            "its file is not among the sources"
        } else if self.len > LONGEST || self.len_in_memory() > LONGEST {
            "it is longer than any memory"
        } else if end.is_none_or(|end| end > i64::MAX as u64) {
            "it ends beyond the end of any file"
        } else if !self.align.is_power_of_two() || self.align > BLOCK {
            "its alignment is no power of two up to a block"
        } else if let Some(convert) = &self.convert
            && (convert.from == 0 || convert.to == 0 || !BLOCK.is_multiple_of(convert.from))
        {
            "a block does not hold a whole number of the elements to convert"
        } else if let Some(convert) = &self.convert
            && !self.len.is_multiple_of(convert.from as u64)
        {
            "it does not hold a whole number of the elements to convert"
        } else {
            return Ok(());
        };
        Err(Error::Chunk {
            unit: self.name.clone(),
            reason,
        })
    }

    /// Where the unit's bytes lie inside of its block.
    pub(crate) fn payload(&self) -> Range<usize> {
        let start = if self.is_staged() {
            0
        } else {
            (self.offset % BLOCK as u64) as usize
        };
        start..start + self.len_in_memory() as usize
    }

    /// Memory that the unit's block takes, in bytes.
    pub(crate) fn block_len(&self) -> usize {
        self.payload().end.div_ceil(BLOCK) * BLOCK
    }

    /// In how many pieces of at most `piece` bytes the unit is read.
    pub(crate) fn pieces(&self, piece: usize) -> usize {
        self.to_read().div_ceil(self.piece(piece))
    }

    /// The length of each piece but the last, if they are of at most `piece` bytes: whole blocks, and about
    /// as many in each. A small rest would cost a disk as much as half a megabyte.
    pub(crate) fn piece(&self, piece: usize) -> usize {
        let most = if self.is_staged() {
            piece.min(STAGED_PIECE)
        } else {
            piece
        };
        let count = self.to_read().div_ceil(most).max(1);
        self.to_read()
            .div_ceil(count)
            .max(1)
            .next_multiple_of(BLOCK)
    }

    /// Bytes to read: of the file if they are staged, else to fill the block.
    fn to_read(&self) -> usize {
        if self.len == 0 || self.is_staged() {
            self.len as usize
        } else {
            self.block_len()
        }
    }

    /// Whether bytes go through a reader's scratch memory rather than straight to their place.
    pub fn is_staged(&self) -> bool {
        self.convert.is_some() || !self.offset.is_multiple_of(self.align as u64)
    }
}

/// An element-wise conversion of bytes on their way from the file to memory.
#[derive(Clone)]
pub struct Convert {
    /// Bytes of one element in the file, a divisor of [`BLOCK`](crate::BLOCK).
    pub from: usize,
    /// Bytes of one element in memory.
    pub to: usize,
    /// Converts whole elements: the output holds as many of them as the input. It should not panic; if
    /// it does, the unit fails with [`Error::Reader`], and the message of the panic hook is its own.
    pub run: fn(&[u8], &mut [u8]),
}

impl fmt::Debug for Convert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Convert({} -> {} bytes)", self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Pieces cover the unit, are no longer than allowed, and about equal.
        #[test]
        fn pieces_are_about_equal(
            offset in 0u64..3 * BLOCK as u64,
            len in 0u64..40 << 20,
            align in prop::sample::select(vec![1, 64, BLOCK]),
            blocks in 1usize..2000,
        ) {
            let unit = Chunk {
                name: "a unit".into(),
                source: 0,
                offset,
                len,
                align,
                convert: None,
                keep: false,
            };
            let most = blocks * BLOCK;
            let (count, piece) = (unit.pieces(most), unit.piece(most));
            prop_assert!(piece.is_multiple_of(BLOCK) && piece <= most);
            prop_assert!(!unit.is_staged() || piece <= STAGED_PIECE);
            let all = unit.to_read();
            prop_assert!(count * piece >= all);
            prop_assert!(count == 0 || (count - 1) * piece < all);
            // No more of them than need be, and none that is a small rest: each gives up less than a block to others.
            let allowed = if unit.is_staged() { most.min(STAGED_PIECE) } else { most };
            prop_assert_eq!(count, all.div_ceil(allowed));
            if count > 0 {
                let last = all - (count - 1) * piece;
                prop_assert!(last + count * BLOCK > piece, "{} of {}, the last {}", count, piece, last);
            }
        }
    }
}
