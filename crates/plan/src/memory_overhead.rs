use serde::{Deserialize, Serialize};

/// Main memory that is not for weights and their ring. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryOverhead {
    /// The process itself: its code, libraries and the slack of its allocator.
    pub process: u64,
    /// The KV cache of the blocks that compute there.
    pub kv_cache: u64,
    /// Activations of a pass.
    pub activations: u64,
    /// Staging memory of the reader threads.
    pub readers: u64,
    /// Memory for leases beyond the ring. Modules that hold at most two weights of one layer at a
    /// time, such as a weight and its bias, need none; all of burn-nn's do. A module that collects
    /// several weights, or computes layers on several threads, needs what the others take, or
    /// fails.
    pub overflow: u64,
}

impl MemoryOverhead {
    /// The sum in bytes, saturating.
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
