//! The memory that a model takes, by the dtype of its weights.

use crate::{
    Block, BlockCost, Budget, Casts, Error, Options, Tensor, TensorKind, Tier, Tree, WeightDtype,
    infer, place,
};
use serde::Serialize;
use std::collections::HashMap;

/// The memory that a model takes with its weights in one dtype. All sizes in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// The dtype; none if each tensor is as stored.
    pub dtype: Option<WeightDtype>,
    /// Number of parameters, tied ones counted once.
    pub parameters: u64,
    /// All weights and buffers.
    pub weights: u64,
    /// The largest block; none if there are no tensors.
    pub largest_block: Option<LargestBlock>,
    /// The KV cache of all positions; none if unknown.
    pub kv_cache: Option<u64>,
    /// Activations of the longest pass; none if unknown.
    pub activations: Option<u64>,
    /// Everything in memory, the process included; none if unknown.
    pub resident: Option<u64>,
    /// The least budget that runs it, with passes of one token; none if unknown.
    pub least: Option<u64>,
    /// Training with Adam; none if this dtype is not trained in.
    pub training: Option<Training>,
}

/// A block and the bytes of its weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LargestBlock {
    /// Its path in the module.
    pub name: String,
    /// What its tensors take, in bytes.
    pub bytes: u64,
}

/// Bytes that training with Adam keeps for the weights, without activations.
///
/// With 32-bit weights: weights, gradients and two moments, 16 bytes for each value. With 16-bit
/// weights, mixed precision as by PyTorch's `autocast` and Accelerate: the same in 32 bits and a
/// 16-bit copy of the weights, 18 bytes for each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Training {
    /// The weights that the optimizer updates.
    pub weights: u64,
    /// The 16-bit copy, in mixed precision.
    pub copy: u64,
    /// Gradients.
    pub gradients: u64,
    /// Adam's two moments.
    pub moments: u64,
    /// All of it.
    pub total: u64,
}

/// The options of the longest passes, which are made if there is room, and of the shortest.
#[derive(Debug, Clone, PartialEq)]
pub struct Passes {
    /// Passes of many tokens.
    pub longest: Options,
    /// Passes of one token of each sequence.
    pub shortest: Options,
}

/// Estimates the memory of `tree` with its weights in `dtype` (see [`Casts::stored`]), or as they
/// are stored. Without `passes`, nothing is known but the weights.
///
/// # Errors
/// [`Error::Duplicate`] and [`Error::TooLarge`] for impossible trees.
pub fn estimate(
    tree: &Tree,
    dtype: Option<WeightDtype>,
    passes: Option<&Passes>,
) -> Result<Estimate, Error> {
    let mut tree = match dtype {
        Some(dtype) => tree.cast(&Casts::stored(dtype))?,
        None => tree.clone(),
    };
    let kv_cache = tree.blocks.iter().map(|block| block.work.kv_bytes).fold(0, u64::saturating_add);
    for block in &mut tree.blocks {
        // Counted in the overhead, for all blocks together.
        block.work = BlockCost::default();
    }
    let with_cache = |options: &Options| {
        let mut options = options.clone();
        options.needs.kv_cache = options.needs.kv_cache.saturating_add(kv_cache);
        options
    };
    // Planning also checks the tree.
    let plain = Options::default();
    let longest = passes.map_or(plain.clone(), |passes| with_cache(&passes.longest));
    let shortest = passes.map_or(plain, |passes| with_cache(&passes.shortest));
    let resident = place(&tree, &Budget::default(), &longest, |_| true)?.memory_bytes();
    let mut nothing = Budget::default();
    nothing.set(Tier::Cpu, 0);
    let least = match infer(&tree, &nothing, &shortest) {
        Ok(map) => map.memory_bytes(),
        Err(Error::TooSmall(shortfall)) => shortfall.least,
        Err(error) => return Err(error),
    };
    let weights = sum(tree.tensors(), |tensor| tensor.bytes);
    Ok(Estimate {
        dtype,
        parameters: values(&tree),
        weights,
        largest_block: largest(&tree.blocks),
        kv_cache: passes.map(|_| longest.needs.kv_cache),
        activations: passes.map(|_| longest.needs.activations),
        resident: passes.map(|_| resident),
        least: passes.map(|_| least),
        training: Training::of(&tree),
    })
}

/// The sum of a size over tensors; tied ones once, at the size of the largest.
fn sum<'t>(tensors: impl Iterator<Item = &'t Tensor>, size: impl Fn(&Tensor) -> u64) -> u64 {
    let mut shared: HashMap<&str, u64> = HashMap::new();
    let mut sum = 0u64;
    for tensor in tensors {
        match &tensor.tied {
            None => sum = sum.saturating_add(size(tensor)),
            Some(key) => {
                let largest = shared.entry(key).or_default();
                *largest = size(tensor).max(*largest);
            }
        }
    }
    shared.into_values().fold(sum, u64::saturating_add)
}

/// Values of all parameters, tied ones counted once.
fn values(tree: &Tree) -> u64 {
    let tensors = tree.tensors();
    let learned = tensors.filter(|tensor| tensor.kind == TensorKind::Parameter);
    sum(learned, Tensor::values)
}

/// The first of the largest blocks.
fn largest(blocks: &[Block]) -> Option<LargestBlock> {
    let mut largest: Option<LargestBlock> = None;
    for block in blocks {
        let bytes = block.tensors.iter().map(|tensor| tensor.bytes);
        let bytes = bytes.fold(0, u64::saturating_add);
        if largest.as_ref().is_none_or(|most| most.bytes < bytes) {
            largest = Some(LargestBlock { name: block.name.clone(), bytes });
        }
    }
    largest
}

impl Training {
    /// Of a tree whose weights are floating point numbers of 16 bits or more.
    fn of(tree: &Tree) -> Option<Self> {
        let mut by_type: HashMap<WeightDtype, u64> = HashMap::new();
        for tensor in tree.tensors() {
            if tensor.kind != TensorKind::Parameter {
                continue;
            }
            let trained = tensor.dtype.is_float() && tensor.dtype.bits() >= 16;
            if !trained && tensor.shape.len() >= 2 {
                return None;
            }
            let bytes = by_type.entry(tensor.dtype).or_default();
            *bytes = bytes.saturating_add(tensor.bytes);
        }
        // The dtype of most weights says how they are trained.
        let (dtype, _) = by_type.into_iter().max_by_key(|(dtype, bytes)| (*bytes, *dtype))?;
        let values = values(tree);
        let (full, copy) = match dtype {
            WeightDtype::F64 => (WeightDtype::F64, 0),
            WeightDtype::F16 | WeightDtype::Bf16 => (WeightDtype::F32, dtype.bytes(values)),
            _ => (WeightDtype::F32, 0),
        };
        let weights = full.bytes(values);
        let moments = weights.saturating_mul(2);
        Some(Self {
            weights,
            copy,
            gradients: weights,
            moments,
            total: [copy, weights, moments].into_iter().fold(weights, u64::saturating_add),
        })
    }
}
