//! What a map has of a GPU, and what to say when the GPU fails.

use crate::{Error, Options};
use burn::tensor::Device;
use outsize_plan::{DeviceMap, Tier};

/// A map's share of a GPU.
#[derive(Debug, Clone)]
pub(crate) struct GpuShare {
    pub(crate) tier: Tier,
    pub(crate) device: Device,
    /// What is planned to be held there, in bytes.
    planned: u64,
    /// What the plan leaves to others, in bytes.
    reserve: u64,
}

/// How drivers, and the libraries above them, say that memory is full.
const FULL: [&str; 4] =
    ["out of memory", "out-of-memory", "out of device memory", "not enough memory"];

/// What is added to a reserve, in bytes: memory is given in pages.
const MARGIN: u64 = 64 << 20;

/// Reserves are said in multiples of so many bytes.
const STEP: u64 = 10_000_000;

impl GpuShare {
    pub(crate) fn new(number: usize, device: &Device, map: &DeviceMap, options: &Options) -> Self {
        let tier = Tier::Gpu(number);
        let planned =
            map.tiers().iter().find(|held| held.tier == tier).map_or(0, |held| held.sum());
        let reserve = options.planning.reserve_bytes;
        Self { tier, device: device.clone(), planned, reserve }
    }

    /// The error of a device that failed with this reason.
    pub(crate) fn failed(&self, reason: &str) -> Error {
        let (tier, planned) = (self.tier, self.planned);
        let known = reason.to_lowercase();
        let reason = in_a_line(reason);
        if !FULL.iter().any(|full| known.contains(full)) {
            return Error::Gpu { tier, reason };
        }
        let held = self.device.memory_pool_usage().map_or(0, |usage| usage.bytes_reserved);
        let missing = planned.saturating_sub(held).saturating_add(MARGIN);
        let reserve = self.reserve.saturating_add(missing).div_ceil(STEP).saturating_mul(STEP);
        Error::GpuFull { tier, planned, held, reserve, reason }
    }
}

/// A reason without the backtrace behind it.
fn in_a_line(reason: &str) -> String {
    let lines = reason.lines().take_while(|line| !line.trim_start().starts_with("Backtrace"));
    let lines = lines.map(str::trim).filter(|line| !line.is_empty() && *line != "Caused by:");
    let line = lines.collect::<Vec<_>>().join(": ");
    line.trim_end_matches(':').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share() -> GpuShare {
        GpuShare { tier: Tier::Gpu(0), device: Device::flex(), planned: 2_000_000_000, reserve: 0 }
    }

    #[test]
    fn a_full_memory_is_told_from_other_failures() {
        for full in [
            "An error happened\nCaused by:\n  out of device memory allocating 5 bytes\nBacktrace:\n1: x",
            "wgpu error: Out of Memory",
            "An out-of-memory error happened during launch",
        ] {
            let Error::GpuFull { reserve, reason, .. } = share().failed(full) else {
                panic!("{full}");
            };
            assert_eq!(reserve, 2_070_000_000);
            assert!(!reason.contains('\n') && !reason.contains("1: x"), "{reason}");
        }
        let text = share().failed("out of memory").to_string();
        assert!(text.contains("`--reserve 2.07GB`"), "{text}");
        let lost = "A device failed\nCaused by:\n  Unknown: the device was lost:\nBacktrace:\n1: x";
        let Error::Gpu { tier: Tier::Gpu(0), reason } = share().failed(lost) else {
            panic!("not lost");
        };
        assert_eq!(reason, "A device failed: Unknown: the device was lost");
    }
}
