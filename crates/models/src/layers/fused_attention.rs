//! Causal self-attention of one projection, in which what belongs to a head of keys is together.

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_kernels::attention::Alibi;

use super::attention::attend;
use super::{Linear, QueryPositions, Rotation, rotated};
use crate::{Activations, Error, Init, KvCache, PassShape};

/// The sizes of a [`FusedAttention`].
#[derive(Debug, Clone, Copy)]
pub struct FusedAttentionConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides the query heads.
    pub key_value_heads: usize,
    /// Whether the projections have a bias.
    pub bias: bool,
}

/// Causal self-attention of one projection, as GPT-NeoX, BLOOM and Falcon have it.
#[derive(Module, Debug)]
pub struct FusedAttention {
    /// `[(heads + 2 · key_value_heads) · head_dim, hidden]`: for each head of keys, the queries
    /// that share it, the key and the value.
    pub query_key_value: Linear,
    /// `[hidden, hidden]`.
    pub dense: Linear,
    heads: usize,
    key_value_heads: usize,
    #[module(skip)]
    alibi: Option<Alibi>,
}

impl FusedAttention {
    /// A block without storage.
    pub fn new(shape: &FusedAttentionConfig, init: &Init) -> Self {
        let FusedAttentionConfig { hidden, heads, key_value_heads, bias } = *shape;
        let fused = hidden / heads * (heads + 2 * key_value_heads);
        Self {
            query_key_value: Linear::new(hidden, fused, bias, init),
            dense: Linear::new(hidden, hidden, bias, init),
            heads,
            key_value_heads,
            alibi: None,
        }
    }

    /// The same with scores that fall with the distance.
    pub fn with_alibi(self, alibi: Option<Alibi>) -> Self {
        Self { alibi, ..self }
    }

    /// `[batch, tokens, hidden]` f32 to the same. The tokens' keys and values are appended to layer
    /// `layer` of the cache.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        rotation: Option<&Rotation>,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let [batch, tokens, hidden] = x.dims();
        let (groups, width) = (self.key_value_heads, hidden / self.heads);
        let shared = self.heads / groups;
        let fused = self.query_key_value.forward(x);
        let fused = fused.reshape([batch * tokens, groups, shared + 2, width]);
        let [queries, keys, values] =
            [(0, shared), (shared, 1), (shared + 1, 1)].map(|(at, count)| {
                let part = fused.clone().narrow(2, at, count);
                part.reshape([batch, tokens, groups * count, width])
            });
        drop(fused);
        let [queries, keys] = [queries, keys].map(|x| rotated(rotation, x));
        let positions = QueryPositions { alibi: self.alibi.as_ref(), ..*positions };
        let all = [queries, keys, values];
        let mixed = attend(all, self.dense.compute, None, &positions, cache, layer)?;
        Ok(self.dense.forward(mixed))
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let [fused, hidden]: [usize; 2] = self.query_key_value.weight.lazy_shape().dims();
        let width = hidden / self.heads;
        let keys = (self.key_value_heads * width) as u64;
        // The norm's output and the fused projection with the copy of a tiled or biased one; or the
        // projection, a copy of each part of it and the result.
        let held_back = if pass.holds_back() { 2 * keys } else { 0 };
        let scratch = pass.attention_scratch(self.heads, self.key_value_heads, width);
        Activations::values(pass.rows() * ((2 * fused + hidden) as u64 + held_back))
            .with_unpooled(pass.rows() * (fused as u64 + 2 * keys + held_back))
            .with_scratch(scratch)
    }
}
