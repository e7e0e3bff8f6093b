//! Memory for one chunk.

use crate::arena::Arena;
use crate::buffer::Buffer;
use crate::overflow::Loan;
use crate::resident_arena::ResidentArena;
use std::ops::Range;
use std::sync::Arc;

/// The memory of one chunk: a part of the ring, its place among the residents, or memory of its
/// own.
pub(crate) enum Block {
    /// Part of the ring; returns to it on drop.
    Ring { arena: Arc<Arena>, range: Range<usize> },
    /// The place of a chunk that stays. Whoever makes it sees to it that nobody has that place
    /// already.
    Resident { arena: Arc<ResidentArena>, range: Range<usize> },
    /// Memory from the overflow share.
    Overflow(Loan),
}

impl Block {
    /// Cuts `len` contiguous bytes from the ring, rounded up to whole pages, or nothing if there is
    /// no such hole.
    pub(crate) fn cut(arena: &Arc<Arena>, len: usize) -> Option<Block> {
        let range = arena.cut(len)?;
        Some(Block::Ring { arena: arena.clone(), range })
    }

    /// Length in bytes, a multiple of [`BLOCK`](crate::BLOCK).
    pub(crate) fn len(&self) -> usize {
        match self {
            Block::Ring { range, .. } | Block::Resident { range, .. } => range.len(),
            Block::Overflow(Loan { buffer, .. }) => buffer.len(),
        }
    }

    /// Whether its memory is a part of the ring.
    pub(crate) fn is_in_ring(&self) -> bool {
        matches!(self, Block::Ring { .. })
    }

    /// Faults the pages of a part in before it is read into, where that pays.
    pub(crate) fn prepare(&self, part: Range<usize>) {
        if let Block::Resident { arena, range } = self {
            arena.prepare(range.start + part.start..range.start + part.end);
        }
    }

    fn place(&self, part: Range<usize>) -> (&Buffer, Range<usize>) {
        assert!(part.start <= part.end && part.end <= self.len());
        let (memory, start) = match self {
            Block::Ring { arena, range } => (arena.memory(), range.start),
            Block::Resident { arena, range } => (arena.memory(), range.start),
            Block::Overflow(Loan { buffer, .. }) => (buffer, 0),
        };
        (memory, start + part.start..start + part.end)
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
            arena.give_back(range.clone());
        }
    }
}
