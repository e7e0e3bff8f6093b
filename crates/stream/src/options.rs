use crate::BLOCK;
use crate::chunk::scratch_bytes;

/// How a stream works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Size of the ring in bytes. Every chunk that does not stay must fit, see
    /// [`crate::footprint`].
    pub ring_bytes: u64,
    /// Bytes beyond the ring for callers who hold more at once than it can give.
    pub overflow_bytes: u64,
    /// Number of reader threads, that is, reads in flight; from 1 to 1024.
    pub readers: usize,
    /// The most bytes of one read, rounded up to whole blocks; at most 1 GiB. A disk takes some
    /// time for each read, whatever its size.
    pub read_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { ring_bytes: 64 << 20, overflow_bytes: 0, readers: 4, read_bytes: 4 << 20 }
    }
}

impl Options {
    /// Memory that the reader threads take besides the ring, in bytes, if some chunk is converted
    /// or moved to alignment on its way.
    pub fn staging_bytes(&self) -> u64 {
        self.threads() as u64 * scratch_bytes(self.read_bytes()) as u64
    }

    /// Size of one read in bytes, in whole blocks.
    pub(crate) fn read_bytes(&self) -> usize {
        self.read_bytes.clamp(1, 1 << 30).div_ceil(BLOCK) * BLOCK
    }

    /// Number of reader threads.
    pub(crate) fn threads(&self) -> usize {
        self.readers.clamp(1, 1024)
    }
}
