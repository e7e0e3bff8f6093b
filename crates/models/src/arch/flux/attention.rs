//! Attention of the blocks in which pictures and texts have the same weights.

use burn::module::Module;
use burn::tensor::Tensor;

use super::FluxTransformer2dConfig;
use super::config::EPSILON;
use crate::architecture::Init;
use crate::layers::{Linear, RmsNorm, Rotation, attend_tokens, heads, normed_heads};

/// Attention with the same projections for all tokens, and none of its result.
#[derive(Module, Debug)]
pub(super) struct FluxAttention {
    to_q: Linear,
    norm_q: RmsNorm,
    to_k: Linear,
    norm_k: RmsNorm,
    to_v: Linear,
}

impl FluxAttention {
    pub fn new(config: &FluxTransformer2dConfig, init: &Init) -> Self {
        let square = || Linear::new(config.hidden(), config.hidden(), true, init);
        let norm = || RmsNorm::new(config.attention_head_dim, EPSILON, init);
        Self { to_q: square(), norm_q: norm(), to_k: square(), norm_k: norm(), to_v: square() }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub fn forward(&self, x: &Tensor<3>, rotation: &Rotation) -> Tensor<3> {
        let queries = rotation.apply(normed_heads(&self.to_q, &self.norm_q, x));
        let keys = rotation.apply(normed_heads(&self.to_k, &self.norm_k, x));
        let values = heads(&self.to_v, x, self.norm_q.width());
        attend_tokens(self.to_q.compute, [queries, keys, values])
    }
}
