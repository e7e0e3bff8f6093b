//! What learning an adapter, block by block, holds in memory.

use std::collections::HashMap;

use outsize_core::Parameter;
use outsize_kernels::{GRADIENT_PIECE, HEAD_TOKENS};

use crate::decoder::Decoder;
use crate::{Activations, CacheLayer, PassShape};

/// Values that a block's graph and its backward pass hold at most, for each row of activations and
/// every two values that a linear layer takes or gives: what layers give, what elementwise
/// operations make of it, and gradients.
const OF_LAYERS: u64 = 3;

/// The same for each value of the residual stream: sums, what norms give, and gradients.
const OF_STREAM: u64 = 6;

/// The same for each expert that a row may go to: scores, shares and what is chosen of them.
const OF_EXPERTS: u64 = 12;

/// Bytes that the graph itself takes for each token of a block of linear attention, where each
/// token is a step of its own. That of all blocks is there until the pass ends.
const GRAPH_OF_STEP: u64 = 20 << 10;

/// What a pass forward and backward of
/// [`low_rank_gradients`](crate::DispatchedDecoder::low_rank_gradients) allocates at most, besides
/// weights, the adapter and its gradients, in bytes; nothing if the model cannot learn so.
pub(crate) fn learning_bytes(
    model: &dyn Decoder,
    layers: &str,
    parameters: &[Parameter],
    pass: PassShape,
    kept: usize,
) -> Option<u64> {
    let blocks = model.blocks()?.count() as u64;
    let (rows, hidden) = (pass.rows(), model.head().width() as u64);
    let mut of_block: HashMap<usize, u64> = HashMap::new();
    for parameter in parameters {
        if let Some(block) = block_of(layers, &parameter.path) {
            *of_block.entry(block).or_default() += row_values(model, parameter);
        }
    }
    let widest = of_block.into_values().max().unwrap_or(0);
    let inputs = (blocks + 1) * hidden;
    let block = widest + OF_STREAM * hidden;
    // Logits of some tokens, and their gradients.
    let head = 3 * model.head().vocab_size().min(HEAD_TOKENS) as u64 + 4 * hidden;
    let learning = Activations::values(rows.saturating_mul(block.max(head)));
    let forward = model.activations(&pass);
    // Of operations that keep more than others.
    let more = model.activations(&pass.learning()).beyond(forward);
    let inputs = Activations::values(rows.saturating_mul(inputs));
    let of_kept = Activations::values(rows.saturating_mul(block)).and(more);
    let of_kept =
        (0..blocks.min(kept as u64)).fold(Activations::default(), |all, _| all.and(of_kept));
    let is_linear = |layer: &&CacheLayer| layer.recurrent().is_some_and(|it| it.heads.is_some());
    let linear = model.cache().layers.iter().filter(is_linear).count() as u64;
    let steps = linear.saturating_mul(pass.tokens());
    let held = forward.or(learning).and(more).and(inputs).and(of_kept);
    Some(held.bytes().saturating_add(steps.saturating_mul(GRAPH_OF_STEP)))
}

/// What a pass forward and backward of [`full_gradients`](crate::DispatchedDecoder::full_gradients)
/// allocates at most, besides weights, in bytes; nothing if the model cannot learn so.
pub(crate) fn full_learning_bytes(
    model: &dyn Decoder,
    layers: &str,
    parameters: &[Parameter],
    pass: PassShape,
) -> Option<u64> {
    let learning = learning_bytes(model, layers, parameters, pass, 0)?;
    let mut of_block: HashMap<Option<usize>, u64> = HashMap::new();
    let (mut widest, rows) = (model.head().width() as u64, pass.rows());
    for Parameter { path, shape, .. } in parameters {
        let block = block_of(layers, path);
        match shape[..] {
            [rows, columns] if block.is_some() => widest = widest.max(rows.max(columns) as u64),
            // A table or a head: of the one there are rows, of the other some tokens.
            [..] if shape.len() == 2 => {}
            // Values that are leaves of the graph.
            _ => {
                let values = of_block.entry(block).or_default();
                *values += shape.iter().product::<usize>() as u64;
            }
        }
    }
    // A copy of each, its gradient, and that as it is handed over.
    let leaves = 4 * 3 * of_block.into_values().max().unwrap_or(0);
    // What both sides of a gradient's product are, and tokens' rows with their gradients; and a
    // piece of a gradient, with those that it is added to.
    let operands = Activations::values(rows.saturating_mul(3 * widest)).bytes();
    Some(
        learning.saturating_add(leaves).saturating_add(operands).saturating_add(2 * GRADIENT_PIECE),
    )
}

/// The number of the block, of those at the path `layers`, that a parameter belongs to.
pub(crate) fn block_of(layers: &str, path: &str) -> Option<usize> {
    path.strip_prefix(layers)?.strip_prefix('.')?.split('.').next()?.parse().ok()
}

/// Values that a block holds of each row for a parameter of a linear layer.
fn row_values(model: &dyn Decoder, parameter: &Parameter) -> u64 {
    let &[rows, columns] = &parameter.shape[..] else { return 0 };
    let values = (OF_LAYERS * (rows + columns) as u64).div_ceil(2);
    match model.routed(&parameter.path) {
        // Of all experts together a row goes to some; for each it is gathered, and so is what comes
        // of it.
        Some(routed) => {
            let of_all = 2 * values * u64::from(routed.per_token) + OF_EXPERTS;
            of_all.div_ceil(u64::from(routed.experts.max(1)))
        }
        None => values,
    }
}
