use crate::Tier;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How fast a machine is: what a prediction is made of. Rates in bytes or operations per second,
/// times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HardwareProfile {
    /// Reads of the checkpoint's files past the page cache, with several in flight.
    pub disk: Bandwidth,
    /// Copies from memory to memory.
    pub copy_bytes_per_second: f64,
    /// Memory that is touched for the first time, which the system must find: what a resident
    /// weight costs once beside its reading.
    pub first_touch_bytes_per_second: f64,
    /// Bytes of memory that the system has at hand: these are had as fast as memory is copied.
    #[serde(default)]
    pub at_hand_bytes: u64,
    /// The processors of the host, together.
    pub cpu: Processor,
    /// GPUs by their number.
    pub gpus: BTreeMap<usize, Gpu>,
}

/// A way that bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Bytes per second of a long transfer.
    pub bytes_per_second: f64,
    /// Seconds before the first byte arrives.
    pub latency_seconds: f64,
}

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Processor {
    /// Its memory, read by all of it at once, in bytes per second.
    pub memory_bytes_per_second: f64,
    /// Bytes of weights that go through products with one row of activations per second.
    pub product_bytes_per_second: f64,
    /// Operations per second, a multiplication and an addition being two, of products with many
    /// rows.
    pub product_flops: f64,
    /// Bytes of keys and values that attention goes through per second.
    pub cache_bytes_per_second: f64,
    /// What a block of a model takes beside its products and its attention, in seconds: norms, and
    /// starting each operation.
    pub block_seconds: f64,
}

/// A GPU and the way to it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// What computes on it.
    pub processor: Processor,
    /// From main memory to its own.
    pub upload: Bandwidth,
}

impl Default for Gpu {
    /// A middling card on a PCIe 4 bus of 16 lanes.
    fn default() -> Self {
        Self {
            processor: Processor {
                memory_bytes_per_second: 500e9,
                product_bytes_per_second: 400e9,
                product_flops: 40e12,
                cache_bytes_per_second: 200e9,
                block_seconds: 100e-6,
            },
            upload: Bandwidth {
                bytes_per_second: 20e9,
                latency_seconds: 20e-6,
            },
        }
    }
}

impl Default for HardwareProfile {
    /// A middling desktop machine, until it is measured.
    fn default() -> Self {
        Self {
            disk: Bandwidth {
                bytes_per_second: 2e9,
                latency_seconds: 100e-6,
            },
            copy_bytes_per_second: 8e9,
            first_touch_bytes_per_second: 2e9,
            at_hand_bytes: 0,
            cpu: Processor {
                memory_bytes_per_second: 25e9,
                product_bytes_per_second: 20e9,
                product_flops: 200e9,
                cache_bytes_per_second: 8e9,
                block_seconds: 200e-6,
            },
            gpus: BTreeMap::new(),
        }
    }
}

impl HardwareProfile {
    /// What computes on the tier; the host's processors for the disk. A GPU that was not measured
    /// is taken for a middling one.
    pub fn processor(&self, tier: Tier) -> Processor {
        match tier {
            Tier::Gpu(number) => self.gpu(number).processor,
            Tier::Cpu | Tier::Disk => self.cpu,
        }
    }

    /// The GPU of this number; a middling one if it was not measured.
    pub fn gpu(&self, number: usize) -> Gpu {
        self.gpus.get(&number).copied().unwrap_or_default()
    }
}
