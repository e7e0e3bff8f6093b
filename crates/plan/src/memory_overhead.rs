use serde::{Deserialize, Serialize};

/// What must fit on the device that computes besides weights and the ring they are streamed
/// through. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryOverhead {
    /// The process itself: its code, libraries and the slack of its allocator.
    pub process: u64,
    /// Keys and values of all positions of the blocks that compute there.
    pub kv_cache: u64,
    /// Intermediate results of a pass.
    pub activations: u64,
    /// Staging memory of the reader threads.
    pub readers: u64,
    /// The share declared for leases beyond the ring. None is needed by modules that hold at most
    /// two weights of one layer at a time, such as a weight and its bias, as all of burn-nn do. One
    /// that collects several before it uses them, or that computes layers on several threads at
    /// once, needs what the others take: without it, it ends in an error.
    pub overflow: u64,
}

impl MemoryOverhead {
    /// All together, in bytes; no more than 64 bits hold.
    pub fn sum(&self) -> u64 {
        [self.kv_cache, self.activations, self.readers, self.overflow]
            .into_iter()
            .fold(self.process, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_need_counts_and_none_overflows() {
        let mut needs = MemoryOverhead {
            process: 1,
            kv_cache: 20,
            activations: 300,
            readers: 4_000,
            overflow: 50_000,
        };
        assert_eq!(needs.sum(), 54_321);
        needs.readers = u64::MAX;
        assert_eq!(needs.sum(), u64::MAX);
    }
}
