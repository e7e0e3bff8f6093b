use crate::{HardwareProfile, MemoryOverhead, Strategy, Tier, Tree, Workload};

/// What the plan depends on besides sizes and budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// How places are chosen.
    pub strategy: Strategy,
    /// What must fit in main memory besides weights, rings and the KV cache of the blocks that say
    /// what theirs takes.
    pub needs: MemoryOverhead,
    /// Intermediate results of a pass on each GPU that computes, in bytes.
    pub gpu_activations: u64,
    /// Bytes that are left free on every device.
    pub reserve: u64,
    /// Whether it is an error if anything does not stay in memory.
    pub must_fit: bool,
    /// Classes of modules that Accelerate's strategies do not split.
    pub no_split: Vec<String>,
    /// Whether buffers of modules that are offloaded are offloaded with them (Accelerate's
    /// strategies).
    pub offload_buffers: bool,
    /// Whether something smaller is looked for when the next module is too large for an empty
    /// device (Accelerate's strategies).
    pub fallback_allocation: bool,
    /// The largest tile of a tensor that is streamed by tiles, in bytes as held on the device.
    pub tile_bytes: u64,
    /// Tensors of fewer bytes than this are always resident: reading a norm's weight at each pass
    /// costs more than the memory it takes.
    pub small_tensor: u64,
    /// The least size of the ring in bytes, if as much is streamed.
    pub min_ring: u64,
    /// How fast the machine is.
    pub figures: HardwareProfile,
    /// For what the speed is predicted.
    pub workload: Workload,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            strategy: Strategy::default(),
            needs: MemoryOverhead::default(),
            gpu_activations: 0,
            reserve: 0,
            must_fit: false,
            no_split: Vec::new(),
            offload_buffers: false,
            fallback_allocation: false,
            tile_bytes: 4 << 20,
            small_tensor: 64 << 10,
            min_ring: 0,
            figures: HardwareProfile::default(),
            workload: Workload::default(),
        }
    }
}

impl Options {
    /// The options with what `tree` itself needs.
    pub(crate) fn adjusted(&self, tree: &Tree) -> Self {
        let mut options = self.clone();
        options.needs.readers = options.needs.readers.max(tree.staging_bytes);
        options
    }

    /// Bytes of a device's budget that are for no weights and no KV cache of a block.
    pub(crate) fn taken_of(&self, tier: Tier) -> u64 {
        let needs = match tier {
            Tier::Gpu(_) => self.gpu_activations,
            Tier::Cpu | Tier::Disk => self.needs.sum(),
        };
        needs.saturating_add(self.reserve)
    }
}
