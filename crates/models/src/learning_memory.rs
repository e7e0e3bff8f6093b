//! What learning an adapter block by block holds in memory.

use outsize_core::{Parameter, Routed};
use outsize_kernels::HEAD_TOKENS;

use crate::decoder::Decoder;
use crate::{CacheLayer, PassShape};

/// Values that a block's graph and its backward pass hold at most, for each row of activations and each value that a linear
/// layer takes or gives: what layers give with their copies, what elementwise operations make of it, and gradients.
const OF_LAYERS: u64 = 3;

/// The same for each value of the residual stream: what norms give, sums, and gradients.
const OF_STREAM: u64 = 16;

/// The same for each value of a state of linear attention, which Burn's own operations make token by token.
const OF_STATES: u64 = 8;

/// The same for each value that attention of Burn's own operations has of a token and one before it.
const OF_SCORES: u64 = 12;

/// Bytes of one f32.
const VALUE_BYTES: u64 = 4;

/// What a pass forward and backward of [`low_rank_gradients`](crate::DispatchedDecoder::low_rank_gradients) allocates at most
/// besides weights, adapter and its gradients, in bytes; nothing if the model cannot learn so.
pub(crate) fn learning_bytes<D: Decoder>(
    model: &D,
    parameters: &[Parameter],
    pass: &PassShape,
) -> Option<u64> {
    let blocks = model.blocks()?.count() as u64;
    let rows = pass.rows();
    let hidden = match model.head() {
        crate::Head::Own(head) => head.widths()[1],
        crate::Head::Tied(table) => table.width(),
    };
    let hidden = parameters_hidden::<D>(parameters).unwrap_or(hidden) as u64;
    let widest = (0..blocks as usize)
        .map(|index| widths::<D>(model, parameters, index))
        .max()
        .unwrap_or(0);
    let of_rows = OF_LAYERS * widest + OF_STREAM * hidden;
    let mixing = model.cache().layers.iter().map(|layer| mixing_values(layer, pass)).max();
    // Of the head, logits of some tokens, and their gradients.
    let head = 3 * rows * HEAD_TOKENS.min(model.head().vocab_size()) as u64;
    let values = (blocks + 1) * rows * hidden + (rows * of_rows + mixing.unwrap_or(0)).max(head);
    Some(values * VALUE_BYTES + model.activations(pass).bytes())
}

/// Values of a row that the linear layers of a block take and give: of experts, those that a row goes to.
fn widths<D: Decoder>(model: &D, parameters: &[Parameter], index: usize) -> u64 {
    let prefix = format!("{}.{index}.", D::LAYERS);
    let within = parameters.iter().filter(|parameter| parameter.path.starts_with(&prefix));
    let matrices = within.filter(|parameter| parameter.shape.len() == 2);
    let (mut all, mut routed) = (0u64, 0u64);
    let mut share = 0.0f64;
    for parameter in matrices {
        let values = parameter.shape.iter().map(|n| *n as u64).sum::<u64>();
        match model.routed(&parameter.path) {
            Some(Routed { experts, per_token, .. }) => {
                routed += values;
                share = f64::from(per_token) / f64::from(experts);
            }
            None => all += values,
        }
    }
    // Besides, rows are gathered for each expert, and their results.
    all + (2.0 * routed as f64 * share).ceil() as u64
}

fn mixing_values(layer: &CacheLayer, pass: &PassShape) -> u64 {
    match layer {
        CacheLayer::Recurrent(shape) => OF_STATES * pass.rows() * shape.values() as u64,
        _ => OF_SCORES * pass.rows() * 8,
    }
}
fn parameters_hidden<D: Decoder>(_: &[Parameter]) -> Option<usize> {
    None
}
