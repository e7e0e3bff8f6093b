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

    /// Bytes that are lent.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Lends `len` bytes for the chunk of this name; none if too few are left.
    pub(crate) fn lend(&self, len: usize, chunk: &str) -> Result<Option<Loan>, Error> {
        let more = |used: u64| used.checked_add(len as u64).filter(|used| *used <= self.limit);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return Ok(None);
        }
        let share = Share { bytes: len as u64, used: self.used.clone() };
        let buffer = Buffer::new(len, &format!("`{chunk}`"))?;
        Ok(Some(Loan { buffer, _share: share }))
    }
}

/// Memory from the overflow share. On drop the memory goes first, then the count: what is counted is
/// never less than what is held.
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
