//! The share of memory for callers who hold more than the ring foresees.

use crate::Error;
use crate::buffer::Buffer;
use crate::sync::AtomicU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Memory beyond the ring, up to a limit.
pub(crate) struct Overflow {
    limit: u64,
    used: Arc<AtomicU64>,
}

impl Overflow {
    /// A share of `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, used: Arc::new(AtomicU64::new(0)) }
    }

    /// Size in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Lends `len` bytes for the chunk of this name.
    pub(crate) fn lend(&self, len: usize, chunk: &str) -> Result<Loan, Refusal> {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(len as u64).filter(|used| *used <= self.limit)
            })
            .map_err(|used| Refusal::Spent { used })?;
        let share = Share { bytes: len as u64, used: self.used.clone() };
        Ok(Loan {
            buffer: Buffer::new(len, &format!("`{chunk}`")).map_err(Refusal::NoMemory)?,
            _share: share,
        })
    }
}

/// Why nothing was lent.
pub(crate) enum Refusal {
    /// So many bytes are lent already.
    Spent { used: u64 },
    /// The system has no memory.
    NoMemory(Error),
}

/// Memory from the overflow share. On drop the memory goes first, then the count: what is counted
/// is never less than what is held.
pub(crate) struct Loan {
    pub(crate) buffer: Buffer,
    _share: Share,
}

/// What a loan counts for.
struct Share {
    bytes: u64,
    used: Arc<AtomicU64>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
