//! The work of a block, and what it takes a processor.

use super::seconds;
use crate::tree::Weights;
use crate::{Block, BlockCost, PassCost, Processor, Routed, Tensor, WeightDtype, Workload};

/// Attention's operations for each byte of keys and values that a prompt's token attends to, if
/// nobody says: as with 32-bit values and two query heads for each key.
const ATTENTION_FLOPS_PER_BYTE: f64 = 1.0;

/// Activations are in f32 on their way between devices.
const ACTIVATION_BYTES: f64 = 4.0;

/// The work of a block for one token of one sequence.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Amounts {
    /// Bytes of weights that passes use.
    pub(super) weights: Weights,
    /// How a router chooses the experts among them.
    pub(super) routed: Option<Routed>,
    /// Bytes of weights that only the first pass over a prompt uses: an encoder's.
    pub(super) weights_once: f64,
    /// Floating point operations of these for all of a sequence's prompt.
    pub(super) flops_once: f64,
    /// Values that go into these matmuls and come out of them.
    pub(super) values_once: f64,
    /// Floating point operations of matmuls.
    pub(super) flops: f64,
    /// Values that go into matmuls and come out of them.
    pub(super) values: f64,
    /// Whether they multiply in bf16: both the activations and the weights are of that type.
    pub(super) bf16: bool,
    /// Operations of attention for each position that it sees.
    pub(super) attention_flops: f64,
    /// Whether only the last token of a prompt comes here.
    pub(super) last_only: bool,
    /// Keys and values of all positions, in bytes.
    pub(super) kv_bytes: f64,
    /// Keys and values that a generated token attends to, in bytes.
    pub(super) cache: f64,
    /// Keys and values of a prompt that an encoder read, in bytes.
    pub(super) cross: f64,
    /// Keys and values of one position, in bytes.
    pub(super) cache_per_position: f64,
    /// The most positions that it attends to.
    pub(super) window: f64,
    /// Bytes of activations that it takes for one token.
    pub(super) input: f64,
    /// Bytes that the processors read of what it gives for one token.
    pub(super) output: f64,
    /// Whether it computes anything.
    pub(super) computes: bool,
    /// What it does instead in each pass, if that is always the same.
    pub(super) pass: Option<PassCost>,
}

impl Amounts {
    /// How many of a pass's tokens come here.
    pub(super) fn tokens(&self, all: f64) -> f64 {
        if self.last_only { all.min(1.0) } else { all }
    }

    /// Seconds of matmuls with weights of so many bytes and so many rows, and of what lies between
    /// them.
    pub(super) fn matmuls(
        &self,
        weights: f64,
        operations: f64,
        values: f64,
        rows: f64,
        on: &Processor,
    ) -> f64 {
        let arithmetic = match on.prefill.filter(|_| rows > 1.0) {
            Some(rates) => {
                let gemm = if self.bf16 { rates.bf16 } else { rates.f32 };
                seconds(weights, gemm.bytes_per_second)
                    + seconds(operations, gemm.flops)
                    + seconds(values, gemm.values_per_second)
            }
            None => seconds(operations, on.product_flops),
        };
        arithmetic.max(seconds(weights, on.product_bytes_per_second))
    }

    /// The share of experts that a pass of so many tokens uses.
    pub(super) fn share(&self, tokens: f64) -> f64 {
        self.routed.map_or(1.0, |routed| routed.share(tokens))
    }

    /// Seconds of a pass that is always the same.
    pub(super) fn fixed(&self, pass: &PassCost, on: &Processor) -> f64 {
        let (flops, values) = (pass.flops as f64, pass.values as f64);
        self.matmuls(self.weights.all as f64, flops, values, f64::INFINITY, on)
            + seconds(pass.attention_flops as f64, attention_rate(on))
            + on.block_seconds.max(0.0)
    }
}

/// The work of a block.
pub(super) fn amounts(block: &Block, workload: &Workload) -> Amounts {
    let BlockCost { kv_bytes, kv_bytes_per_position, window, .. } = block.work;
    let BlockCost { cross_kv_bytes, flops_once, .. } = block.work;
    let touched = block.tensors.iter().filter(|tensor| tensor.bytes_per_use() > 0);
    // One pass: a model of many tensors is larger than a processor's caches.
    let (mut weights, mut routed) = (Weights::default(), None);
    let (mut of_shapes, mut values, mut unknown) = (0.0, 0.0, false);
    let (mut weights_once, mut values_once, mut bf16) = (0.0, 0.0, workload.bf16);
    for tensor in touched {
        let flops = product_flops(tensor);
        let dims = tensor.shape.iter().map(|n| *n as f64).sum::<f64>();
        let of_matmul = if flops > 0.0 { dims } else { 0.0 };
        bf16 &= flops == 0.0 || tensor.dtype == WeightDtype::Bf16;
        if tensor.once {
            weights_once += tensor.bytes as f64;
            values_once += of_matmul;
            continue;
        }
        weights = weights.plus(Weights::of(tensor, tensor.bytes));
        let of_token = tensor.routed.map_or(1.0, |routed| routed.share(1.0));
        routed = routed.or(tensor.routed);
        of_shapes += flops * of_token;
        values += of_matmul * of_token;
        unknown |= tensor.shape.is_empty();
    }
    let flops = block.work.flops_per_token.map_or(of_shapes, |flops| flops as f64);
    let of_attention = kv_bytes_per_position as f64 / workload.batch.max(1) as f64;
    let attention_flops = (block.work.attention_flops)
        .map_or(of_attention * ATTENTION_FLOPS_PER_BYTE, |flops| flops as f64);
    let seen = workload.position.min(window.unwrap_or(u64::MAX));
    Amounts {
        weights,
        routed,
        weights_once,
        flops_once: flops_once as f64,
        values_once,
        flops,
        values,
        bf16,
        attention_flops,
        last_only: block.work.last_only,
        kv_bytes: kv_bytes as f64,
        cache: kv_bytes_per_position as f64 * seen as f64 + cross_kv_bytes as f64,
        cross: cross_kv_bytes as f64,
        cache_per_position: kv_bytes_per_position as f64,
        window: window.map_or(f64::INFINITY, |window| window as f64),
        input: block.work.input_values as f64 * ACTIVATION_BYTES,
        output: block.work.output_values as f64 * ACTIVATION_BYTES,
        computes: flops > 0.0 || kv_bytes_per_position > 0 || unknown,
        pass: block.work.pass,
    }
}

/// Operations of attention per second in passes of many tokens.
pub(super) fn attention_rate(on: &Processor) -> f64 {
    on.prefill.map_or(on.product_flops, |rates| rates.attention_flops)
}

/// Two operations for each value of a matrix.
fn product_flops(tensor: &Tensor) -> f64 {
    match tensor.shape.len() {
        0 | 1 => 0.0,
        _ => 2.0 * tensor.shape.iter().map(|n| *n as f64).product::<f64>(),
    }
}
