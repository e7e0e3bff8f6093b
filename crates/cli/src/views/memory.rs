//! The memory that was held.

use outsize::core::Devices;
use outsize::machine::peak_rss;
use outsize::plan::{DeviceMap, Tier, format_size};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The most memory that was held so far, in bytes. As text it goes on a line of figures:
/// ` · peak memory 600 MB, 960 MB on gpu0`.
#[derive(Debug, Serialize)]
pub struct MemoryHeld {
    /// The largest resident set of the process.
    pub peak_rss_bytes: Option<u64>,
    /// What the memory pools of each GPU hold, as `{"gpu0": 960000000}`.
    pub gpu_memory_bytes: GpuPools,
}

/// What the memory pools of GPUs hold, in bytes. As text: `, 960 MB on gpu0`.
#[derive(Debug, Default, Serialize)]
pub struct GpuPools(pub BTreeMap<Tier, u64>);

impl MemoryHeld {
    /// That of this process, with the GPUs that a map uses.
    pub fn now(map: &DeviceMap) -> Self {
        Self { peak_rss_bytes: peak_rss(), gpu_memory_bytes: GpuPools::now(map) }
    }
}

impl GpuPools {
    /// Those of the GPUs that a map uses.
    pub fn now(map: &DeviceMap) -> Self {
        Self(Devices::of_map(map).map_or_else(|_| BTreeMap::new(), |gpus| gpus.memory_held()))
    }
}

impl fmt::Display for MemoryHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(peak) = self.peak_rss_bytes {
            write!(f, " · peak memory {}", format_size(peak))?;
        }
        write!(f, "{}", self.gpu_memory_bytes)
    }
}

impl fmt::Display for GpuPools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(gpu, bytes)| write!(f, ", {} on {gpu}", format_size(*bytes)))
    }
}
