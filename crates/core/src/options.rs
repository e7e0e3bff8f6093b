use crate::Names;
use burn::tensor::DType;
use outsize_checkpoint::StorageFormat;
use outsize_plan::{
    Access, Budget, HardwareProfile, ManualMap, MemoryOverhead, Routed, Strategy, Workload,
};
use outsize_stream::BLOCK;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// In which type float parameters are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    /// As the checkpoint stores them. For modules that take weights of any type, such as those of
    /// `outsize-models`. Weights in [blocks](Options::format) stay so if [`Options::access`] says
    /// that they are read by tiles or rows, and are cast to 32-bit floats if not.
    AsStored,
    /// All in this one, cast on the way in. Unmodified modules want the type of their activations.
    Cast(DType),
}

/// How places are chosen within the budget.
#[derive(Debug, Clone, Default)]
pub struct Planning {
    /// By which rule.
    pub strategy: Strategy,
    /// Somebody's own choice instead.
    pub device_map: Option<ManualMap>,
    /// Bytes that are left free on every device.
    pub reserve_bytes: u64,
    /// Whether it is an error if anything would be streamed from disk.
    pub must_fit: bool,
    /// How fast the machine is.
    pub figures: HardwareProfile,
    /// For what the speed is predicted.
    pub workload: Workload,
}

/// How a module is planned, loaded and run.
///
/// By default strictly: every parameter must have a tensor and every tensor a parameter. See
/// [`Self::strict`], [`Self::allow_extra`], [`Self::allow_missing`] and [`Self::ignore`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes that outsize may hold on each device. What [`needs`](Self::needs) does not say is not
    /// counted.
    pub budget: Budget,
    /// What of the budget is needed besides weights: nothing unless said. With
    /// [`memory_overhead`](crate::memory_overhead) of [`process_bytes`](crate::process_bytes) and
    /// the module's activations, a budget of main memory is one for the whole process.
    /// [`MemoryOverhead::overflow`] is for modules that hold more weights at once than the two
    /// largest of one layer.
    pub needs: MemoryOverhead,
    /// How places are chosen, and what the predicted speed is made of.
    pub planning: Planning,
    /// In which type float parameters are held; 32-bit floats unless said.
    pub float_type: FloatType,
    /// The format of weights that are not plain numbers: those whose data is of its type.
    pub format: Option<StorageFormat>,
    /// What parameters are called in the checkpoint.
    pub names: Names,
    /// Classes of modules that are placed as one block, by their name without path.
    pub no_split: Vec<String>,
    /// How parameters are read, by path; those not named are read whole, and in floats.
    pub access: HashMap<String, Access>,
    /// The parameters of experts, by path, with how a router chooses: a pass that comes to them
    /// [announces](crate::Streamed::announce) those that it needs, and no other is read for it.
    pub routed: HashMap<String, Routed>,
    /// The paths of the parameters in the order in which a pass needs them, if it is known. The
    /// order of declaration is taken otherwise, and the true one is learned by the first pass.
    pub order: Option<Vec<String>>,
    /// Matrices whose tiles a pass asks for in turns with those of another, as it does for a gate
    /// and what goes through it: the other's path, by the path of the one whose turn is second.
    /// Which of them [do](crate::Streamed::is_interleaved) also depends on the ring.
    pub interleaved: HashMap<String, String>,
    /// The largest tile of a parameter that is read by tiles, in bytes. With the rest of the blocks
    /// in which it begins and ends it should be no longer than one read.
    pub tile_bytes: u64,
    /// Parameters of fewer bytes than this always stay in memory: reading them for each pass costs
    /// more time than they take memory.
    pub small_tensor_bytes: u64,
    /// The least size of the ring in bytes, if anything is streamed.
    pub min_ring_bytes: u64,
    /// Reads in flight.
    pub readers: usize,
    /// The most bytes of one read.
    pub read_bytes: usize,
    /// Do not complain about tensors that the module does not know.
    pub allow_extra: bool,
    /// Tensors whose names end in one of these are left alone: buffers that some versions of a
    /// software saved and nobody needs.
    pub ignore: Vec<String>,
    /// Do not complain about parameters that the checkpoint lacks: they keep their own
    /// initialisation, which is made when they are first used and is no part of the budget.
    /// Parameters whose tensor has another shape or type are an error nevertheless.
    pub allow_missing: bool,
    /// The GPU that all of the module computes on, which is initialised there unless it [moves its
    /// activations](Self::moves_activations): weights in main memory and
    /// on disk are copied to it for each use. Without it the module computes on the processors.
    pub gpu: Option<usize>,
    /// What that GPU holds besides weights and slots, in bytes; as many activations as `needs` has
    /// if it is not said.
    pub gpu_activations: Option<u64>,
    /// Whether the module moves its activations to where each block computes, as those of
    /// `outsize-models` do: [`Streamed::device`](crate::Streamed::device) says where that is.
    pub moves_activations: bool,
    /// Once another thread or a signal sets it, the pass under way ends with [`Error::Stopped`] at
    /// the next weight that it asks for, and so does every later one until it is cleared.
    ///
    /// [`Error::Stopped`]: crate::Error::Stopped
    pub stop: Option<Arc<AtomicBool>>,
}

impl Default for Options {
    fn default() -> Self {
        let stream = outsize_stream::Options::default();
        Self {
            budget: Budget::default(),
            needs: MemoryOverhead::default(),
            planning: Planning::default(),
            float_type: FloatType::Cast(DType::F32),
            format: None,
            names: Names::default(),
            no_split: Vec::new(),
            access: HashMap::new(),
            routed: HashMap::new(),
            order: None,
            interleaved: HashMap::new(),
            tile_bytes: (4 << 20) - BLOCK as u64,
            small_tensor_bytes: 64 << 10,
            min_ring_bytes: 0,
            readers: stream.readers,
            read_bytes: stream.read_bytes,
            allow_extra: false,
            ignore: Vec::new(),
            allow_missing: false,
            gpu: None,
            gpu_activations: None,
            moves_activations: false,
            stop: None,
        }
    }
}

impl Options {
    /// Sets [`Self::allow_extra`] and [`Self::allow_missing`] together, as PyTorch's `strict` does:
    /// neither if `strict`, which is the default; both if not.
    pub fn strict(mut self, strict: bool) -> Self {
        self.allow_extra = !strict;
        self.allow_missing = !strict;
        self
    }

    /// What the stream needs to know of these, but for the ring, which the plan decides.
    pub(crate) fn stream(&self) -> outsize_stream::Options {
        outsize_stream::Options {
            ring_bytes: 0,
            overflow_bytes: self.needs.overflow,
            readers: self.readers,
            read_bytes: self.read_bytes,
        }
    }

    /// What the planner needs to know of these.
    pub fn plan(&self) -> outsize_plan::Options {
        let planning = &self.planning;
        outsize_plan::Options {
            strategy: planning.strategy,
            reserve: planning.reserve_bytes,
            must_fit: planning.must_fit,
            figures: planning.figures.clone(),
            workload: planning.workload,
            no_split: self.no_split.clone(),
            needs: self.needs,
            tile_bytes: self.tile_bytes,
            small_tensor: self.small_tensor_bytes,
            min_ring: self.min_ring_bytes,
            execute_on: self.gpu,
            gpu_activations: self.gpu_activations.unwrap_or(self.needs.activations),
            ..outsize_plan::Options::default()
        }
    }
}
