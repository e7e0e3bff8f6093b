//! Attention and MLP side by side, of one projection in and one out. Dehghani et al. 2023
//! (arXiv:2302.05442).

use burn::module::Module;
use burn::tensor::Tensor;

use super::Flux2Transformer2dConfig;
use crate::architecture::Init;
use crate::layers::{Activation, Linear, RmsNorm, Rotation, attend_tokens, entered, joined};

/// Attention with the same projections for all tokens, and an MLP beside it.
#[derive(Module, Debug)]
pub(super) struct Flux2ParallelSelfAttention {
    // In the order of use.
    /// `[3 · hidden + 2 · inner, hidden]`: queries, keys, values, the gate of the MLP, and what
    /// goes through it.
    to_qkv_mlp_proj: Linear,
    norm_q: RmsNorm,
    norm_k: RmsNorm,
    /// `[hidden, hidden + inner]`.
    to_out: Linear,
}

impl Flux2ParallelSelfAttention {
    pub fn new(config: &Flux2Transformer2dConfig, init: &Init) -> Self {
        let (hidden, inner) = (config.hidden(), config.inner);
        let norm = || RmsNorm::new(config.attention_head_dim, config.eps, init);
        Self {
            to_qkv_mlp_proj: Linear::new(hidden, 3 * hidden + 2 * inner, false, init),
            norm_q: norm(),
            norm_k: norm(),
            to_out: Linear::new(hidden + inner, hidden, false, init),
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub fn forward(&self, x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
        let [batch, tokens, hidden] = x.dims();
        let inner = self.to_out.widths()[1] - hidden;
        let parts = [hidden, hidden, hidden, inner, inner];
        let [queries, keys, values, gate, up] = self.to_qkv_mlp_proj.parts_pixels(x, parts);
        let inner = Activation::Silu.gate(gate, up);
        let width = self.norm_q.width();
        let heads = |y: Tensor<3>| y.reshape([batch, tokens, hidden / width, width]);
        let queries = rotation.apply(self.norm_q.forward(heads(queries)));
        let keys = rotation.apply(self.norm_k.forward(heads(keys)));
        let mixed = attend_tokens(self.to_out.compute, [queries, keys, heads(values)]);
        self.to_out.forward_pixels(joined(vec![mixed, inner], 2))
    }

    /// Activations where its block computes.
    pub fn entered<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        entered(x, &self.to_qkv_mlp_proj.weight)
    }
}
