//! The ring's memory: one region, from which contiguous parts are cut and to which they return.

use crate::buffer::Buffer;
use crate::{BLOCK, Error};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A region of fixed size, handed out in contiguous ranges of whole pages.
pub(crate) struct Arena {
    memory: Buffer,
    size: usize,
    /// A lock that nothing is waited for under.
    free: Mutex<Free>,
}

impl Arena {
    /// An arena of `size` bytes, rounded down to whole pages; zero is allowed.
    pub(crate) fn new(size: u64) -> Result<Arc<Self>, Error> {
        let size = usize::try_from(size)
            .map_err(|_| Error::OutOfMemory { bytes: size, purpose: "the ring".into() })?
            / BLOCK
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

    /// The region.
    pub(crate) fn memory(&self) -> &Buffer {
        &self.memory
    }

    /// Hands `len` contiguous bytes out, rounded up to whole pages, or nothing if there is no such
    /// hole.
    pub(crate) fn cut(&self, len: usize) -> Option<Range<usize>> {
        let len = len.next_multiple_of(BLOCK);
        let start = self.free().take(len)?;
        Some(start..start + len)
    }

    /// Takes back what was handed out.
    pub(crate) fn give_back(&self, range: Range<usize>) {
        self.free().give(range);
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
    use crate::block::Block;
    use proptest::prelude::*;

    #[test]
    fn gives_back_what_it_cut() {
        let arena = Arena::new(10 * BLOCK as u64 + 5).unwrap();
        assert_eq!(arena.size(), 10 * BLOCK);
        let a = Block::cut(&arena, 1).unwrap();
        assert_eq!(a.len(), BLOCK);
        let b = Block::cut(&arena, 9 * BLOCK).unwrap();
        assert!(Block::cut(&arena, 1).is_none());
        drop(a);
        assert!(Block::cut(&arena, 2 * BLOCK).is_none());
        drop(b);
        assert_eq!(arena.free_bytes(), 10 * BLOCK);
        assert!(Block::cut(&arena, 10 * BLOCK).is_some());
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
                } else if let Some(block) = Block::cut(&arena, len) {
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
            prop_assert!(Block::cut(&arena, 16 * BLOCK).is_some());
        }
    }
}
