use crate::placement::{CpuCapacity, PlanContext};
use crate::steps::MemoryDemand;
use crate::{Error, MemoryOverhead, Shortfall, Tier};

/// What main memory would have to hold, if nothing fits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InsufficientMemory {
    /// With the KV cache of blocks on the CPU.
    pub(super) needs: MemoryOverhead,
    /// What weights and ring take besides.
    pub(super) demand: MemoryDemand,
}

impl InsufficientMemory {
    /// The least bytes of main memory that suffice.
    pub(super) fn least(&self) -> u64 {
        self.needs.sum().saturating_add(self.demand.sum())
    }

    pub(super) fn error(&self, context: &PlanContext<'_>) -> Error {
        let reserve = context.options.reserve;
        let least = self.least().saturating_add(reserve);
        let budget = match context.capacities.cpu {
            CpuCapacity::Bytes(_) => context.capacities.given_cpu,
            CpuCapacity::Unused | CpuCapacity::Unbounded => 0,
        };
        if context.capacities.disk.is_some() {
            let lacking = least.saturating_sub(budget);
            return Error::MustFit { lacking, least };
        }
        Error::TooSmall(Shortfall {
            tier: Tier::Cpu,
            budget,
            least,
            needs: self.needs,
            ring: self.demand.ring,
            resident: self.demand.resident,
            reserve,
        })
    }
}
