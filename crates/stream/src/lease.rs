use crate::arena::Block;
use crate::pool::Pool;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The bytes of one unit, in memory for as long as this or a clone of it lives.
///
/// Dropping the last clone gives the memory back to the ring.
#[derive(Clone)]
pub struct Lease {
    block: Option<Arc<Block>>,
    payload: Range<usize>,
    pool: Arc<Pool>,
}

impl Lease {
    pub(crate) fn new(block: Arc<Block>, payload: Range<usize>, pool: Arc<Pool>) -> Self {
        Self {
            block: Some(block),
            payload,
            pool,
        }
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        match &self.block {
            // SAFETY: a lease is made when the last read into the block has completed; readers do
            // not touch it any more, and the memory is not reused while a lease holds the block.
            Some(block) => unsafe { block.bytes(self.payload.clone()) },
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
        write!(f, "Lease({} bytes)", self.payload.len())
    }
}
