//! The ring's memory: one region, from which contiguous blocks are cut and to which they return.

use crate::buffer::Buffer;
use crate::kept::ResidentArena;
use crate::overflow::Loan;
use crate::{BLOCK, Error};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A region of fixed size, handed out in contiguous [`Block`]s of whole pages.
pub(crate) struct Arena {
    memory: Buffer,
    size: usize,
    /// A lock that nothing is waited for under.
    free: Mutex<Free>,
}

impl Arena {
    /// An arena of `size` bytes, rounded down to whole pages; zero is allowed.
    pub(crate) fn new(size: u64) -> Result<Arc<Self>, Error> {
        let size = usize::try_from(size).map_err(|_| Error::OutOfMemory {
            bytes: size,
            purpose: "the ring".into(),
        })? / BLOCK
            * BLOCK;
        Ok(Arc::new(Self {
            memory: Buffer::new(size, "the ring")?,
            size,
            free: Mutex::new(Free::all(size)),
        }))
    }

    /// Size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Cuts `len` contiguous bytes, rounded up to whole pages, or nothing if there is no such hole.
    pub(crate) fn cut(self: &Arc<Self>, len: usize) -> Option<Block> {
        let len = len.div_ceil(BLOCK) * BLOCK;
        let start = self.free().take(len)?;
        Some(Block::Ring {
            arena: self.clone(),
            range: start..start + len,
        })
    }

    /// Bytes that are not handed out.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free().bytes()
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        // The list is only ever changed by code that cannot panic half-way.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A piece of memory for one unit: a part of the ring, or memory of its own.
pub(crate) enum Block {
    /// Part of the ring; returns to it on drop.
    Ring {
        arena: Arc<Arena>,
        range: Range<usize>,
    },
    /// The place of a unit that is kept.
    ResidentArena {
        kept: Arc<ResidentArena>,
        range: Range<usize>,
    },
    /// Memory from the overflow share.
    Overflow(Loan),
}

impl Block {
    /// Length in bytes, a multiple of [`BLOCK`].
    pub(crate) fn len(&self) -> usize {
        match self {
            Block::Ring { range, .. } | Block::ResidentArena { range, .. } => range.len(),
            Block::Overflow(Loan { buffer, .. }) => buffer.len(),
        }
    }

    /// Whether its memory is a part of the ring.
    pub(crate) fn is_in_ring(&self) -> bool {
        matches!(self, Block::Ring { .. })
    }

    /// Sees to it that the system has found the memory of a part before it is read into, where that pays.
    pub(crate) fn prepare(&self, part: Range<usize>) {
        if let Block::ResidentArena { kept, range } = self {
            kept.prepare(range.start + part.start..range.start + part.end);
        }
    }

    fn place(&self, part: Range<usize>) -> (&Buffer, Range<usize>) {
        assert!(part.start <= part.end && part.end <= self.len());
        match self {
            Block::Ring { arena, range } => (
                &arena.memory,
                range.start + part.start..range.start + part.end,
            ),
            Block::ResidentArena { kept, range } => (
                kept.memory(),
                range.start + part.start..range.start + part.end,
            ),
            Block::Overflow(Loan { buffer, .. }) => (buffer, part),
        }
    }

    /// Reads a part of the block.
    ///
    /// # Safety
    /// Nobody may write into that part as long as the slice lives. Other blocks never overlap.
    pub(crate) unsafe fn bytes(&self, part: Range<usize>) -> &[u8] {
        let (buffer, range) = self.place(part);
        // SAFETY: handed on to the caller; blocks of an arena are disjoint.
        unsafe { buffer.bytes(range) }
    }

    /// Writes a part of the block.
    ///
    /// # Safety
    /// Nobody else may read or write that part as long as the slice lives.
    #[allow(clippy::mut_from_ref)] // Exclusive access to the part is the caller's contract.
    pub(crate) unsafe fn bytes_mut(&self, part: Range<usize>) -> &mut [u8] {
        let (buffer, range) = self.place(part);
        // SAFETY: handed on to the caller; blocks of an arena are disjoint.
        unsafe { buffer.bytes_mut(range) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Block::Ring { arena, range } = self {
            arena.free().give(range.clone());
        }
    }
}

/// Free ranges by their start; neighbours are always merged.
struct Free(BTreeMap<usize, usize>);

impl Free {
    fn all(size: usize) -> Self {
        let mut ranges = BTreeMap::new();
        if size > 0 {
            ranges.insert(0, size);
        }
        Self(ranges)
    }

    fn bytes(&self) -> usize {
        self.0.values().sum()
    }

    /// Best fit: the smallest hole that is large enough, the first of them on a tie.
    fn take(&mut self, len: usize) -> Option<usize> {
        if len == 0 {
            return Some(0);
        }
        let (start, hole) = self
            .0
            .iter()
            .filter(|(_, hole)| **hole >= len)
            .min_by_key(|(_, hole)| **hole)
            .map(|(start, hole)| (*start, *hole))?;
        self.0.remove(&start);
        if hole > len {
            self.0.insert(start + len, hole - len);
        }
        Some(start)
    }

    fn give(&mut self, range: Range<usize>) {
        let (mut start, mut end) = (range.start, range.end);
        if start == end {
            return;
        }
        if let Some(len) = self.0.remove(&end) {
            end += len;
        }
        if let Some((before, len)) = self.0.range(..start).next_back().map(|(s, l)| (*s, *l))
            && before + len == start
        {
            self.0.remove(&before);
            start = before;
        }
        self.0.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gives_back_what_it_cut() {
        let arena = Arena::new(10 * BLOCK as u64 + 5).unwrap();
        assert_eq!(arena.size(), 10 * BLOCK);
        let a = arena.cut(1).unwrap();
        assert_eq!(a.len(), BLOCK);
        let b = arena.cut(9 * BLOCK).unwrap();
        assert!(arena.cut(1).is_none());
        drop(a);
        assert!(arena.cut(2 * BLOCK).is_none());
        drop(b);
        assert_eq!(arena.free_bytes(), 10 * BLOCK);
        assert!(arena.cut(10 * BLOCK).is_some());
    }

    proptest! {
        /// Blocks never overlap, and nothing is lost however they come and go.
        #[test]
        fn blocks_are_disjoint(steps in prop::collection::vec((1usize..6 * BLOCK, any::<prop::sample::Index>(), any::<bool>()), 1..80)) {
            let arena = Arena::new(16 * BLOCK as u64).unwrap();
            let mut held: Vec<Block> = Vec::new();
            for (len, at, give) in steps {
                if give && !held.is_empty() {
                    held.swap_remove(at.index(held.len()));
                } else if let Some(block) = arena.cut(len) {
                    held.push(block);
                }
                let mut ranges: Vec<_> = held.iter().map(|b| match b {
                    Block::Ring { range, .. } => range.clone(),
                    _ => unreachable!(),
                }).collect();
                ranges.sort_by_key(|r| r.start);
                for pair in ranges.windows(2) {
                    prop_assert!(pair[0].end <= pair[1].start);
                }
                let held_bytes: usize = held.iter().map(Block::len).sum();
                prop_assert_eq!(held_bytes + arena.free_bytes(), arena.size());
            }
            held.clear();
            prop_assert!(arena.cut(16 * BLOCK).is_some());
        }
    }
}
