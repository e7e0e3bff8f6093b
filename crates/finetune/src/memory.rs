//! What learning takes in main memory besides the model.

use std::collections::HashMap;

use outsize_core::LEAST_RING;
use outsize_lora::LoraTarget;
use outsize_models::{ActivationDtype, CacheOptions, Logits, ModelConfig};
use outsize_plan::{Budget, DeviceMap, Tree, infer};

/// What a pass over `batch` examples of `context` tokens takes that keeps activations of so many
/// blocks, in bytes; nothing if the model cannot learn.
pub(crate) fn pass_bytes(
    config: &ModelConfig,
    targets: &[LoraTarget],
    compute: ActivationDtype,
    [batch, context]: [usize; 2],
    kept: usize,
) -> Option<u64> {
    let rows = (batch as u64).saturating_mul(context as u64);
    // What an adapter makes of activations, and their gradients: more than a block has. Rows go to
    // several experts.
    let widest = targets.iter().map(|target| {
        let values = (2 * target.rank + 2 * target.shape[0]) as u64;
        values * config.routed(&target.path).map_or(1, |routed| u64::from(routed.per_token))
    });
    let widest = widest.max();
    let of_adapter =
        rows.saturating_mul(4 * 4 * widest.unwrap_or(0)).saturating_mul(1 + kept as u64);
    let cache = CacheOptions { batch, ..CacheOptions::new(context) };
    let packed = config.packed_bytes(compute, context, &cache);
    let learning = config.learning_bytes(batch, context, kept)?;
    Some(learning.saturating_add(of_adapter).saturating_add(packed))
}

/// What a pass takes in which all weights learn, over `batch` examples of `context` tokens, in
/// bytes; nothing if the model cannot learn.
pub(crate) fn full_pass_bytes(
    config: &ModelConfig,
    compute: ActivationDtype,
    [batch, context]: [usize; 2],
) -> Option<u64> {
    let cache = CacheOptions { batch, ..CacheOptions::new(context) };
    let packed = config.packed_bytes(compute, context, &cache);
    Some(config.full_learning_bytes(batch, context)?.saturating_add(packed))
}

/// What passes over so many batches of so many sequences of so many tokens take whose inputs of
/// layers are seen, in bytes; nothing if the model cannot be run block by block.
pub(crate) fn observed_pass_bytes(
    config: &ModelConfig,
    compute: ActivationDtype,
    [batches, batch, context]: [usize; 3],
) -> Option<u64> {
    let cache = CacheOptions { batch, ..CacheOptions::new(context) };
    let packed = config.packed_bytes(compute, context, &cache);
    Some(config.observing_bytes([batches, batch, context])?.saturating_add(packed))
}

/// What of it are buffers of kernels that can be used again.
pub(crate) fn reusable_bytes(config: &ModelConfig, [batch, context]: [usize; 2]) -> usize {
    let cache = CacheOptions { batch, ..CacheOptions::new(context) };
    let all = config.activation_bytes(context, &cache, Logits::Last);
    let others = config.unpooled_activation_bytes(context, &cache, Logits::Last);
    all.saturating_sub(others).try_into().unwrap_or(usize::MAX)
}

/// Places weights for passes forward and backward.
pub(crate) fn infer_learning(
    config: &ModelConfig,
    tree: &Tree,
    budget: &Budget,
    options: &outsize_core::Options,
) -> Result<DeviceMap, outsize_plan::Error> {
    let options = outsize_plan::Options { no_split: Vec::new(), ..options.plan() };
    let with_ring = |min_ring| outsize_plan::Options { min_ring, ..options.clone() };
    // A block that stays in the ring from its pass forward to the one backward is read once for
    // both.
    let large = with_ring(LEAST_RING.saturating_add(largest_block(config, tree)));
    infer(tree, budget, &large).or_else(|_| infer(tree, budget, &with_ring(LEAST_RING)))
}

/// The bytes of the largest block, experts that a router chooses left out.
fn largest_block(config: &ModelConfig, tree: &Tree) -> u64 {
    let mut blocks = HashMap::<usize, u64>::new();
    for tensor in tree.tensors().filter(|tensor| tensor.routed.is_none()) {
        if let Some(block) = config.block_of(&tensor.name) {
            *blocks.entry(block).or_default() += tensor.bytes;
        }
    }
    blocks.into_values().max().unwrap_or(0)
}

/// Weights that a row of activations is multiplied with: of experts, those that it goes to.
pub(crate) fn used_values(tree: &Tree) -> f64 {
    let used = |tensor: &outsize_plan::Tensor| {
        let share = tensor.routed.map_or(1.0, |routed| routed.share(1.0));
        tensor.shape.iter().product::<u64>() as f64 * share
    };
    tree.tensors().map(used).sum()
}
