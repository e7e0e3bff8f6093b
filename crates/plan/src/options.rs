use crate::{HardwareProfile, MemoryOverhead, Strategy, Tier, Tree, Workload};

/// What a plan depends on besides sizes and budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// How tensors are placed.
    pub strategy: Strategy,
    /// The overhead in main memory, without the KV cache that blocks declare themselves.
    pub needs: MemoryOverhead,
    /// Activations on each GPU that computes, in bytes.
    pub gpu_activations: u64,
    /// Bytes that are left free on every device.
    pub reserve: u64,
    /// Whether it is an error if anything is streamed from disk.
    pub must_fit: bool,
    /// Classes of modules that Accelerate's strategies do not split.
    pub no_split: Vec<String>,
    /// The GPU that computes all of the module; none where each block computes where that is
    /// predicted to be fastest.
    pub execute_on: Option<usize>,
    /// Whether buffers are offloaded with their modules (Accelerate's strategies).
    pub offload_buffers: bool,
    /// Whether a smaller module is tried if the next is too large for an empty device (Accelerate's
    /// strategies).
    pub fallback_allocation: bool,
    /// The largest tile of a tensor that is streamed by tiles, in bytes as held on the device.
    pub tile_bytes: u64,
    /// Tensors of fewer bytes, such as norms, are always resident: reading them costs more.
    pub small_tensor: u64,
    /// The least bytes of the ring, if as much is streamed.
    pub min_ring: u64,
    /// The machine's hardware profile.
    pub figures: HardwareProfile,
    /// The workload that the speed is predicted for.
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
            execute_on: None,
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
    /// The options with the staging memory that `tree` needs.
    pub(crate) fn adjusted(&self, tree: &Tree) -> Self {
        let mut options = self.clone();
        options.needs.readers = options.needs.readers.max(tree.staging_bytes);
        options
    }

    /// As [`Self::adjusted`], and with what GPUs hold besides the weights as stored. Accelerate's
    /// strategies know nothing of that.
    pub(crate) fn adjusted_for_gpus(&self, tree: &Tree) -> Self {
        let mut options = self.adjusted(tree);
        options.gpu_activations = options.gpu_activations.saturating_add(tree.widened_bytes());
        options
    }

    /// Bytes of a tier's budget that are not for weights and the KV cache of its blocks.
    pub(crate) fn taken_of(&self, tier: Tier) -> u64 {
        let needs = match tier {
            Tier::Gpu(_) => self.gpu_activations,
            Tier::Cpu | Tier::Disk => self.needs.sum(),
        };
        needs.saturating_add(self.reserve)
    }
}
