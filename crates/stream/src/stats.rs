use std::time::Duration;

/// What a stream did since it was started. All figures only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes read from files, whole blocks of direct reads included.
    pub bytes_read: u64,
    /// Reads that readers made: each of a chunk or a part of one.
    pub reads: u64,
    /// Time that these took, added up. Over a span of time it is as many times as long as there
    /// were reads in flight on average.
    pub reading: Duration,
    /// Time that callers spent waiting for data in [`crate::Stream::lease`] and
    /// [`crate::Stream::waiting`].
    pub waiting_for_data: Duration,
    /// Time that readers spent with something to read and no memory to read it into, averaged over
    /// the readers.
    pub waiting_for_buffers: Duration,
    /// Leases served from memory without waiting.
    pub hits: u64,
    /// Leases whose read was under way and was waited for.
    pub waits: u64,
    /// Leases whose read had not begun: what the schedule did not foresee or had no memory for.
    pub misses: u64,
    /// Leases served from the overflow share.
    pub overflows: u64,
}

impl Stats {
    /// What happened since `earlier`.
    pub fn since(&self, earlier: &Stats) -> Stats {
        Stats {
            bytes_read: self.bytes_read - earlier.bytes_read,
            reads: self.reads - earlier.reads,
            reading: self.reading - earlier.reading,
            waiting_for_data: self.waiting_for_data - earlier.waiting_for_data,
            waiting_for_buffers: self.waiting_for_buffers - earlier.waiting_for_buffers,
            hits: self.hits - earlier.hits,
            waits: self.waits - earlier.waits,
            misses: self.misses - earlier.misses,
            overflows: self.overflows - earlier.overflows,
        }
    }
}
