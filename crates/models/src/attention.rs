//! Causal self-attention with grouped queries.

mod composed;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use outsize_kernels::attention::AttentionMask;
use outsize_kernels::is_flex;

use crate::kv_cache::{Part, Seen};
use crate::{Error, KvCache, Linear, ModelConfig, Rotation, linear};

pub use composed::SCORE_BYTES;

/// Causal self-attention with grouped queries ([Ainslie et al., 2023](https://arxiv.org/abs/2305.13245)), over all tokens
/// before or over a sliding window of them.
#[derive(Module, Debug)]
pub struct Attention {
    /// `[heads · head_dim, hidden]`.
    pub q_proj: Linear,
    /// `[key_value_heads · head_dim, hidden]`.
    pub k_proj: Linear,
    /// `[key_value_heads · head_dim, hidden]`.
    pub v_proj: Linear,
    /// `[hidden, heads · head_dim]`.
    pub o_proj: Linear,
    heads: usize,
    key_value_heads: usize,
    head_dim: usize,
}

/// Where the tokens of a pass stand, which decides what they see.
#[derive(Debug)]
pub(crate) struct QueryPositions<'a> {
    /// The column of the first.
    pub start: usize,
    /// Of each text, how many columns at the start have no token.
    pub padding: &'a [usize],
}

impl Attention {
    /// A block without storage.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let (hidden, queries, keys) = (
            config.hidden_size,
            config.query_size(),
            config.key_value_size(),
        );
        let (inputs, output) = (config.attention_in_bias, config.attention_out_bias);
        Self {
            q_proj: Linear::new(hidden, queries, inputs, device),
            k_proj: Linear::new(hidden, keys, inputs, device),
            v_proj: Linear::new(hidden, keys, inputs, device),
            o_proj: Linear::new(queries, hidden, output, device),
            heads: config.num_attention_heads,
            key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same. The tokens' keys and values are appended to layer `layer` of the cache.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        standing: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let [batch, tokens, _] = x.dims();
        let split = |y: Tensor<3>, heads| y.reshape([batch, tokens, heads, self.head_dim]);
        let layers = [&self.q_proj, &self.k_proj, &self.v_proj];
        let [queries, keys, values] = linear::three(layers, x);
        let queries = rotation.apply(split(queries, self.heads));
        let keys = rotation.apply(split(keys, self.key_value_heads));
        let values = split(values, self.key_value_heads);
        let mut seen = cache.see(layer, keys.swap_dims(1, 2), values.swap_dims(1, 2))?;
        let mixed = self.attend(queries, &seen, standing);
        let held_back = seen.held_back.take();
        drop(seen);
        cache.keep(layer, held_back)?;
        Ok(self.o_proj.forward(mixed))
    }

    /// Queries `[batch, tokens, heads, head_dim]` over what they may see; gives `[batch, tokens, heads · head_dim]`.
    fn attend(&self, queries: Tensor<4>, seen: &Seen, standing: &QueryPositions<'_>) -> Tensor<3> {
        match seen.parts.as_slice() {
            [older @ .., newest] if older.len() < 2 && is_flex(&queries.device()) => {
                let [batch, tokens, heads, width] = queries.dims();
                let sight = AttentionMask {
                    start: standing.start,
                    window: seen.window,
                    padding: standing.padding.to_vec(),
                };
                outsize_kernels::attend(
                    queries,
                    older.first().map(Part::cached),
                    newest.cached(),
                    sight,
                    None,
                )
                .reshape([batch, tokens, heads * width])
            }
            _ => self.attend_composed(queries, seen, standing),
        }
    }
}

#[cfg(test)]
mod tests;
