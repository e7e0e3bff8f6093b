//! What is lacking where nothing fits.

use crate::placement::{CpuCapacity, PlanContext};
use crate::steps::MemoryDemand;
use crate::{Error, MemoryOverhead, Shortfall, Tier};

/// What is lacking if nothing fits.
#[derive(Debug, Clone, Copy)]
pub(super) struct InsufficientMemory {
    /// Beside the needs, in main memory.
    pub(super) demand: MemoryDemand,
    /// Keys and values of blocks on the CPU, in bytes.
    pub(super) kv_cache: u64,
}

impl InsufficientMemory {
    /// Bytes of main memory that would do.
    pub(super) fn least(&self, context: &PlanContext<'_>) -> u64 {
        let MemoryOverhead { kv_cache, .. } = context.options.needs;
        let needs = MemoryOverhead {
            kv_cache: kv_cache.saturating_add(self.kv_cache),
            ..context.options.needs
        };
        needs.sum().saturating_add(self.demand.sum())
    }

    /// What is said of it.
    pub(super) fn error(&self, context: &PlanContext<'_>) -> Error {
        let options = context.options;
        let least = self.least(context).saturating_add(options.reserve);
        let needs = MemoryOverhead {
            kv_cache: options.needs.kv_cache.saturating_add(self.kv_cache),
            ..options.needs
        };
        let budget = match context.capacities.cpu {
            CpuCapacity::Bytes(_) => context.capacities.given_cpu,
            CpuCapacity::Unused | CpuCapacity::Unbounded => 0,
        };
        if context.capacities.disk.is_some() {
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
