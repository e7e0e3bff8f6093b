//! What is lacking where nothing fits.

use crate::placement::{CpuRoom, Scene};
use crate::steps::Demand;
use crate::{Error, Needs, Shortfall, Tier};

/// What is lacking if nothing fits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lack {
    /// Beside the needs, in main memory.
    pub(super) demand: Demand,
    /// Keys and values of blocks on the CPU, in bytes.
    pub(super) kv_cache: u64,
}

impl Lack {
    /// Bytes of main memory that would do.
    pub(super) fn least(&self, scene: &Scene<'_>) -> u64 {
        let Needs { kv_cache, .. } = scene.options.needs;
        let needs = Needs {
            kv_cache: kv_cache.saturating_add(self.kv_cache),
            ..scene.options.needs
        };
        needs.sum().saturating_add(self.demand.sum())
    }

    /// What is said of it.
    pub(super) fn error(&self, scene: &Scene<'_>) -> Error {
        let options = scene.options;
        let least = self.least(scene).saturating_add(options.reserve);
        let needs = Needs {
            kv_cache: options.needs.kv_cache.saturating_add(self.kv_cache),
            ..options.needs
        };
        let budget = match scene.rooms.cpu {
            CpuRoom::Bytes(_) => scene.rooms.given_cpu,
            CpuRoom::Unused | CpuRoom::Unbounded => 0,
        };
        if scene.rooms.disk.is_some() {
            return Error::MustFit {
                lacking: least.saturating_sub(budget),
                least,
            };
        }
        Error::TooSmall(Shortfall {
            tier: Tier::Cpu,
            budget,
            least,
            needs,
            ring: self.demand.ring,
            resident: self.demand.resident,
            reserve: options.reserve,
        })
    }
}
