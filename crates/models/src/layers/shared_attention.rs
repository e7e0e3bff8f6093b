//! Attention whose keys and values later layers look at too.

use burn::module::Module;
use burn::tensor::Tensor;

use super::attention::seen::attend_seen;
use super::{Linear, QueryPositions, RmsNorm, Rotation, Scores, rotated, unit_rms_norm};
use crate::{Activations, Error, Init, KvCache, PassShape};

/// The sizes of a [`SharedAttention`].
#[derive(Debug, Clone, Copy)]
pub struct SharedAttentionConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides the query heads.
    pub key_value_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Whether the projections have a bias.
    pub bias: bool,
    /// Added to the mean square in norms.
    pub epsilon: f64,
    /// Whose keys and values it looks at.
    pub source: KeyValueSource,
}

/// Whose keys and values a layer looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyValueSource {
    /// Its own.
    Own {
        /// Whether values have a projection of their own, rather than that of keys.
        values_apart: bool,
        /// Whether later layers look at them too.
        is_shared: bool,
    },
    /// Those of the layer of that number.
    Layer(usize),
}

impl KeyValueSource {
    /// Its own, which no other layer looks at; keys serve as values.
    pub const OWN: Self = Self::Own { values_apart: false, is_shared: false };
}

/// Causal self-attention with norms of each head's queries, keys and values, the last without
/// weights, and scores that are not scaled. Keys and values may be those of an earlier layer
/// ([Brandon et al., 2024](https://arxiv.org/abs/2405.12981)).
#[derive(Module, Debug)]
pub struct SharedAttention {
    /// `[heads · head_dim, hidden]`.
    pub q_proj: Linear,
    /// `[key_value_heads · head_dim, hidden]`, where it has keys of its own.
    pub k_proj: Option<Linear>,
    /// `[key_value_heads · head_dim, hidden]`, where it has values that are not made of the same as
    /// keys.
    pub v_proj: Option<Linear>,
    /// `[head_dim]`.
    pub q_norm: RmsNorm,
    /// `[head_dim]`.
    pub k_norm: Option<RmsNorm>,
    /// `[hidden, heads · head_dim]`.
    pub o_proj: Linear,
    #[module(skip)]
    config: SharedAttentionConfig,
}

impl SharedAttention {
    /// A block without storage.
    pub fn new(config: &SharedAttentionConfig, init: &Init) -> Self {
        let SharedAttentionConfig { hidden, heads, key_value_heads, head_dim, bias, .. } = *config;
        let norm = || RmsNorm::new(head_dim, config.epsilon, init);
        let keys = || Linear::new(hidden, key_value_heads * head_dim, bias, init);
        let (has_keys, has_values) = match config.source {
            KeyValueSource::Own { values_apart, .. } => (true, values_apart),
            KeyValueSource::Layer(_) => (false, false),
        };
        Self {
            q_proj: Linear::new(hidden, heads * head_dim, bias, init),
            k_proj: has_keys.then(keys),
            v_proj: has_values.then(keys),
            q_norm: norm(),
            k_norm: has_keys.then(norm),
            o_proj: Linear::new(heads * head_dim, hidden, bias, init),
            config: *config,
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same of the tokens that queries are
    /// [wanted](QueryPositions::queries) of. The tokens' keys and values, if it has any, are
    /// appended to layer `layer` of the cache.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let SharedAttentionConfig { heads, key_value_heads, head_dim, epsilon, source, .. } =
            self.config;
        let split = |y: Tensor<3>, heads| {
            let [batch, tokens, _] = y.dims();
            y.reshape([batch, tokens, heads, head_dim])
        };
        let queries = self.q_proj.forward(positions.needed(x.clone()));
        let queries = self.q_norm.forward(split(queries, heads));
        let queries = rotation.of_queries(positions).apply(queries);
        let positions = &positions.of_queries();
        let scores = Scores {
            compute: self.o_proj.compute,
            scale: Some(1.0),
            softcap: None,
            bias: None,
            sinks: None,
        };
        let mixed = match (source, &self.k_proj, &self.k_norm) {
            (KeyValueSource::Layer(source), ..) => {
                attend_seen(queries, cache.shared(source)?, positions, scores)
            }
            (KeyValueSource::Own { is_shared, .. }, Some(keys), Some(norm)) => {
                let keys = split(keys.forward(x.clone()), key_value_heads);
                let values = match &self.v_proj {
                    Some(values) => split(values.forward(x), key_value_heads),
                    None => keys.clone(),
                };
                let keys = rotated(Some(rotation), norm.forward(keys));
                let values = unit_rms_norm(values, epsilon);
                let seen = cache.see(layer, keys.swap_dims(1, 2), values.swap_dims(1, 2))?;
                let mixed = attend_seen(queries, &seen, positions, scores);
                match is_shared {
                    true => cache.share(layer, seen),
                    false => cache.keep(layer, seen)?,
                }
                mixed
            }
            _ => unreachable!("it is made with what its source says"),
        };
        Ok(self.o_proj.forward(mixed))
    }

    /// What it holds at most, besides the residual stream and what it leaves for later layers.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let SharedAttentionConfig { hidden, heads, key_value_heads, head_dim, .. } = self.config;
        let [hidden, queries, keys] =
            [hidden, heads * head_dim, key_value_heads * head_dim].map(|n| n as u64);
        // The norm's output; queries, their norm and the copy of a tiled product; then they beside
        // keys and values, of each of which there are three: projected, normed and rotated.
        let project = hidden + queries + (2 * queries).max(6 * keys);
        let held_back = if pass.holds_back() { 2 * keys } else { 0 };
        let attend = 2 * queries + 2 * keys + held_back;
        let output = queries + 2 * hidden;
        Activations::values(pass.rows() * project.max(attend).max(output))
            .with_unpooled(pass.rows() * (4 * keys + held_back))
            .with_scratch(pass.attention_scratch(heads, key_value_heads, head_dim))
    }

    /// What stays for later layers until the pass ends.
    pub fn left_for_others(&self, pass: &PassShape) -> Activations {
        let SharedAttentionConfig { key_value_heads, head_dim, source, .. } = self.config;
        let stays = matches!(source, KeyValueSource::Own { is_shared: true, .. });
        let keys = if stays && pass.holds_back() { 2 * key_value_heads * head_dim } else { 0 };
        let values = pass.rows() * keys as u64;
        Activations::values(values).with_unpooled(values)
    }
}
