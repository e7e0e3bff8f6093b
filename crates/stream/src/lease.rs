use crate::block::Block;
use crate::pool::Pool;
use crate::{ChunkId, Error};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The bytes of one chunk, in memory for as long as this or a clone of it lives: as a slice those
/// of its first segment.
///
/// Dropping the last clone gives the memory back to the ring.
#[derive(Clone)]
pub struct Lease {
    block: Option<Arc<Block>>,
    /// Where the bytes of each segment lie in the block.
    payload: Arc<[Range<usize>]>,
    segment: usize,
    pool: Arc<Pool>,
}

impl Lease {
    /// Waits for a chunk's bytes.
    pub(crate) fn of(pool: &Arc<Pool>, chunk: ChunkId) -> Result<Self, Error> {
        let block = pool.lease(chunk)?;
        Ok(Self {
            block: Some(block),
            payload: pool.chunks[chunk].payload().into(),
            segment: 0,
            pool: pool.clone(),
        })
    }

    /// The same lease as a slice of another segment's bytes: none if there is no such segment.
    pub fn segment(&self, segment: usize) -> Self {
        let mut lease = self.clone();
        lease.segment = segment;
        lease
    }

    fn range(&self) -> Range<usize> {
        self.payload.get(self.segment).cloned().unwrap_or(0..0)
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        match &self.block {
            // SAFETY: a lease is made when the last read into the block has completed; readers do
            // not touch it any more, and the memory is not reused while a lease holds the block.
            Some(block) => unsafe { block.bytes(self.range()) },
            None => &[],
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.give_back(block);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes)", self.range().len())
    }
}
