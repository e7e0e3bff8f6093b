//! Causal self-attention with grouped queries.

mod attend;
mod composed;
mod gate;
mod position_bias;
pub(super) mod query_positions;
pub(super) mod scores;
pub(super) mod seen;

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};

pub(crate) use self::attend::{attend, attend_all, attend_causal, attend_prompt, attend_with};
pub use self::gate::{AttentionGate, GateFunction, GateProjection};
pub(crate) use self::position_bias::{DistanceBuckets, PositionBias};
pub use self::query_positions::QueryPositions;
pub(crate) use self::scores::Scores;
use super::{BlockIndexer, Linear, RmsNorm, Rotation, entered, linear, rotated, unit_rms_norm};

use crate::{Activations, Error, Init, KvCache, PassShape};

pub use composed::SCORE_BYTES;

/// The sizes of an [`Attention`].
#[derive(Debug, Clone, Copy)]
pub struct AttentionConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides the query heads.
    pub key_value_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Whether the projections to queries, keys and values have a bias.
    pub in_bias: bool,
    /// Whether the projection from attention has a bias.
    pub out_bias: bool,
}

/// Causal self-attention with grouped queries ([Ainslie et al.,
/// 2023](https://arxiv.org/abs/2305.13245)), over all tokens before or over a sliding window of
/// them.
#[derive(Module, Debug)]
pub struct Attention {
    /// `[heads · head_dim, hidden]`; with gates (`GateProjection::Queries`)
    /// `[heads · 2 · head_dim, hidden]`.
    pub q_proj: Linear,
    /// `[key_value_heads · head_dim, hidden]`.
    pub k_proj: Linear,
    /// `[key_value_heads · head_dim, hidden]`.
    pub v_proj: Linear,
    /// Of queries, where there is one: of each head, `[head_dim]`, or of all together.
    pub q_norm: Option<RmsNorm>,
    /// Of keys, likewise.
    pub k_norm: Option<RmsNorm>,
    /// The same with this name.
    pub q_layernorm: Option<RmsNorm>,
    /// The same with this name.
    pub k_layernorm: Option<RmsNorm>,
    /// Of queries of each head once they are rotated, `[head_dim]`, where there is one.
    pub query_layernorm: Option<RmsNorm>,
    /// Of keys, likewise.
    pub key_layernorm: Option<RmsNorm>,
    /// `[heads · head_dim, hidden]` or `[heads, hidden]`, of a gate (`GateProjection::Gate`).
    pub gate_proj: Option<Linear>,
    /// The same where it has this name.
    pub g_proj: Option<Linear>,
    /// `[hidden, heads · head_dim]`.
    pub o_proj: Option<Linear>,
    /// The same where it has this name.
    pub out_proj: Option<Linear>,
    /// What chooses the blocks of tokens that are seen.
    pub indexer: Option<BlockIndexer>,
    /// `[heads]`: scores that take a share of each softmax and give no value.
    pub sinks: Option<Param<Tensor<1>>>,
    heads: usize,
    key_value_heads: usize,
    head_dim: usize,
    #[module(skip)]
    scale: Option<f64>,
    #[module(skip)]
    gate: Option<AttentionGate>,
    #[module(skip)]
    softcap: Option<f64>,
    /// Width of a head of values.
    value_dim: usize,
    /// What values are multiplied by.
    #[module(skip)]
    value_scale: Option<f64>,
    /// What queries, keys and values are clipped to, as they are projected.
    #[module(skip)]
    clip: Option<f64>,
    /// Of norms without weights: of queries and keys once they are rotated.
    #[module(skip)]
    unit_epsilon: Option<f64>,
    /// Of a norm without weights: of what comes of each head.
    #[module(skip)]
    mixed_epsilon: Option<f64>,
}

impl Attention {
    /// A block without storage.
    pub fn new(shape: &AttentionConfig, init: &Init) -> Self {
        let AttentionConfig { hidden, heads, key_value_heads, head_dim, in_bias, out_bias } =
            *shape;
        let (queries, keys) = (heads * head_dim, key_value_heads * head_dim);
        Self {
            q_proj: Linear::new(hidden, queries, in_bias, init),
            k_proj: Linear::new(hidden, keys, in_bias, init),
            v_proj: Linear::new(hidden, keys, in_bias, init),
            q_norm: None,
            k_norm: None,
            q_layernorm: None,
            k_layernorm: None,
            query_layernorm: None,
            key_layernorm: None,
            gate_proj: None,
            g_proj: None,
            o_proj: Some(Linear::new(queries, hidden, out_bias, init)),
            out_proj: None,
            indexer: None,
            sinks: None,
            heads,
            key_value_heads,
            head_dim,
            value_dim: head_dim,
            value_scale: None,
            scale: None,
            gate: None,
            softcap: None,
            clip: None,
            unit_epsilon: None,
            mixed_epsilon: None,
        }
    }

    /// The same with norms of queries and keys: of each head if a norm is as wide as one, else of
    /// all heads together.
    pub fn normed(self, [queries, keys]: [RmsNorm; 2]) -> Self {
        Self { q_norm: Some(queries), k_norm: Some(keys), ..self }
    }

    /// The same with these norms, and LFM2's names for them and for the projection from attention.
    pub fn normed_as_lfm2(self, [queries, keys]: [RmsNorm; 2]) -> Self {
        let (q_layernorm, k_layernorm) = (Some(queries), Some(keys));
        Self { q_layernorm, k_layernorm, out_proj: self.o_proj, o_proj: None, ..self }
    }

    /// The same with norms of each head's queries and keys once they are rotated.
    pub fn normed_behind(self, [queries, keys]: [RmsNorm; 2]) -> Self {
        Self { query_layernorm: Some(queries), key_layernorm: Some(keys), ..self }
    }

    /// The same with queries, keys and values clipped to so much either way, if they are.
    pub fn clipped(self, clip: Option<f64>) -> Self {
        Self { clip, ..self }
    }

    /// The same with each head's queries and keys brought to unit mean square once they are
    /// rotated.
    pub fn normed_to_unit(self, epsilon: f64) -> Self {
        Self { unit_epsilon: Some(epsilon), ..self }
    }

    /// The same with what comes of each head brought to unit mean square.
    pub fn normed_to_unit_behind(self, epsilon: f64) -> Self {
        Self { mixed_epsilon: Some(epsilon), ..self }
    }

    /// The same with values of `width` elements a head, no more than queries have, multiplied by
    /// `scale` if there is one.
    pub fn with_values(
        self,
        width: usize,
        scale: Option<f64>,
        shape: &AttentionConfig,
        init: &Init,
    ) -> Self {
        let AttentionConfig { hidden, heads, key_value_heads, in_bias, out_bias, .. } = *shape;
        Self {
            v_proj: Linear::new(hidden, key_value_heads * width, in_bias, init),
            o_proj: Some(Linear::new(heads * width, hidden, out_bias, init)),
            value_dim: width,
            value_scale: scale,
            ..self
        }
    }

    /// The same with scores multiplied by `scale` rather than `1 / √head_dim`.
    pub fn scaled(self, scale: f64) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// The same with scores that stay below `cap` in magnitude, if there is one.
    pub fn capped(self, softcap: Option<f64>) -> Self {
        Self { softcap, ..self }
    }

    /// The same with a learned sink for each head ([Xiao et al.,
    /// 2023](https://arxiv.org/abs/2309.17453)), without storage.
    pub fn with_sinks(self, init: &Init) -> Self {
        Self { sinks: Some(linear::zeros(self.heads, &init.device)), ..self }
    }

    /// The same that sees blocks of tokens that an indexer chooses.
    pub fn choosing(self, indexer: BlockIndexer) -> Self {
        Self { indexer: Some(indexer), ..self }
    }

    /// The same with what comes of each head multiplied by a gate.
    pub fn gated(self, gate: AttentionGate, shape: &AttentionConfig, init: &Init) -> Self {
        let AttentionConfig { hidden, heads, head_dim, in_bias, .. } = *shape;
        let width = if gate.of_heads { heads } else { heads * head_dim };
        let projection = || Some(Linear::new(hidden, width, false, init));
        let gated = Self { gate: Some(gate), ..self };
        match gate.projection {
            GateProjection::Queries => {
                let q_proj = Linear::new(hidden, 2 * heads * head_dim, in_bias, init);
                Self { q_proj, ..gated }
            }
            GateProjection::Gate => Self { gate_proj: projection(), ..gated },
            GateProjection::G => Self { g_proj: projection(), ..gated },
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same of the tokens that queries are
    /// [wanted](QueryPositions::queries) of. The tokens' keys and values are appended to layer
    /// `layer` of the cache.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        rotation: Option<&Rotation>,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        if positions.only_kept && self.indexer.is_none() {
            self.keep(&x, rotation, cache, layer)?;
            return Ok(x);
        }
        let output = self.output();
        // An indexer is asked for all tokens.
        let queries = positions.queries.filter(|_| self.indexer.is_none());
        let positions = &QueryPositions { queries, ..*positions };
        let needed = positions.needed(x.clone());
        let [batch, tokens, _] = needed.dims();
        let layers @ [q_proj, k_proj, v_proj] = [&self.q_proj, &self.k_proj, &self.v_proj];
        let own_gate = self.own_gate().map(|projection| (projection, needed.clone()));
        let indexed = self.indexer.as_ref().map(|indexer| (indexer, x.clone()));
        let projected = match queries {
            None => {
                drop(needed);
                linear::three(layers, x)
            }
            Some(_) => [q_proj.forward(needed), k_proj.forward(x.clone()), v_proj.forward(x)],
        };
        let [queries, keys, values] = projected.map(|y| self.clamped(y));
        let (queries, gate) = match self.gate_of_queries() {
            true => {
                let both = queries.reshape([batch, tokens, self.heads, 2 * self.head_dim]);
                let part = |at| {
                    let part = both.clone().narrow(3, at, self.head_dim);
                    part.reshape([batch, tokens, self.heads * self.head_dim])
                };
                (part(0), Some(part(self.head_dim)))
            }
            false => (queries, None),
        };
        let norm = self.q_norm.as_ref().or(self.q_layernorm.as_ref());
        let queries = self.normed_heads(norm, queries, self.heads);
        let queries = match rotation {
            Some(rotation) => rotation.of_queries(positions).apply_to_queries(queries),
            None => queries,
        };
        let queries = self.normed_if(&self.query_layernorm, queries);
        let [keys, values] = self.keys_and_values([keys, values], rotation);
        let sinks = self.sinks.as_ref().map(|sinks| sinks.val().cast(DType::F32));
        let scores = Scores {
            compute: output.compute,
            scale: self.scale,
            softcap: self.softcap,
            bias: None,
            sinks: sinks.as_ref(),
        };
        let mixed = match indexed {
            None => attend_with([queries, keys, values], scores, positions, cache, layer)?,
            Some((indexer, x)) => {
                let kept = indexer.beside(x.clone(), rotation, [keys, values]);
                let [keys, values] = kept.map(|kept| kept.swap_dims(1, 2));
                let seen = cache.see(layer, keys, values)?;
                let mixed = indexer.attend((x, queries), rotation, &seen, positions, scores);
                cache.keep(layer, seen)?;
                mixed
            }
        };
        let mixed = match self.value_dim < self.head_dim {
            true => self.heads_of(mixed, self.heads).narrow(3, 0, self.value_dim).reshape([
                batch,
                tokens,
                self.heads * self.value_dim,
            ]),
            false => mixed,
        };
        let mixed = match self.mixed_epsilon {
            Some(epsilon) => {
                let [batch, tokens, width] = mixed.dims();
                let heads = mixed.reshape([batch, tokens, self.heads, width / self.heads]);
                unit_rms_norm(heads, epsilon).reshape([batch, tokens, width])
            }
            None => mixed,
        };
        let gate = gate.or_else(|| own_gate.map(|(projection, x)| projection.forward(x)));
        Ok(output.forward(match (self.gate, gate) {
            (Some(gate), Some(projected)) => gate.applied(projected, mixed, self.heads),
            _ => mixed,
        }))
    }

    /// Appends the keys and values of `[batch, tokens, hidden]` f32 to layer `layer` of the cache.
    fn keep(
        &self,
        x: &Tensor<3>,
        rotation: Option<&Rotation>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<(), Error> {
        let projected = [&self.k_proj, &self.v_proj]
            .map(|projection| self.clamped(projection.forward(x.clone())));
        let kept = self.keys_and_values(projected, rotation);
        let [keys, values] = kept.map(|kept| kept.swap_dims(1, 2));
        let seen = cache.see(layer, keys, values)?;
        cache.keep(layer, seen)
    }

    /// What projections gave, clipped if it is to be.
    fn clamped(&self, x: Tensor<3>) -> Tensor<3> {
        match self.clip {
            Some(clip) => x.clamp(-clip, clip),
            None => x,
        }
    }

    /// `[batch, tokens, heads · head_dim]` as heads: `[batch, tokens, heads, head_dim]`.
    fn heads_of(&self, x: Tensor<3>, heads: usize) -> Tensor<4> {
        let [batch, tokens, _] = x.dims();
        x.reshape([batch, tokens, heads, self.head_dim])
    }

    /// The same, normed if there is a norm: of each head if it is as wide as one.
    fn normed_heads(&self, norm: Option<&RmsNorm>, x: Tensor<3>, heads: usize) -> Tensor<4> {
        match norm {
            Some(norm) if norm.width() == self.head_dim => norm.forward(self.heads_of(x, heads)),
            Some(norm) => self.heads_of(norm.forward(x), heads),
            None => self.heads_of(x, heads),
        }
    }

    /// What a norm of rotated heads makes of them, if there is one.
    fn normed_if(&self, norm: &Option<RmsNorm>, x: Tensor<4>) -> Tensor<4> {
        match (norm, self.unit_epsilon) {
            (Some(norm), _) => norm.forward(x),
            (None, Some(epsilon)) => unit_rms_norm(x, epsilon),
            (None, None) => x,
        }
    }

    /// Keys and values as attention and the cache take them,
    /// `[batch, tokens, key_value_heads, head_dim]`, of what was projected to them.
    fn keys_and_values(
        &self,
        [keys, values]: [Tensor<3>; 2],
        rotation: Option<&Rotation>,
    ) -> [Tensor<4>; 2] {
        let norm = self.k_norm.as_ref().or(self.k_layernorm.as_ref());
        let keys = rotated(rotation, self.normed_heads(norm, keys, self.key_value_heads));
        [self.normed_if(&self.key_layernorm, keys), self.as_wide_as_keys(values)]
    }

    /// Activations where its block computes.
    pub(crate) fn entered<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        entered(x, &self.q_proj.weight)
    }

    /// Values `[batch, tokens, key_value_heads · value_dim]` as attention and the cache take them:
    /// `[batch, tokens, key_value_heads, head_dim]`, filled up with zeros.
    fn as_wide_as_keys(&self, values: Tensor<3>) -> Tensor<4> {
        let [batch, tokens, _] = values.dims();
        let values = values.reshape([batch, tokens, self.key_value_heads, self.value_dim]);
        let values = match self.value_scale {
            Some(scale) => values * scale,
            None => values,
        };
        let missing = self.head_dim - self.value_dim;
        if missing == 0 {
            return values;
        }
        let shape = [batch, tokens, self.key_value_heads, missing];
        let zeros = Tensor::zeros(shape, (&values.device(), DType::F32));
        Tensor::cat(vec![values, zeros], 3)
    }

    fn gate_of_queries(&self) -> bool {
        self.gate.is_some_and(|gate| gate.projection == GateProjection::Queries)
    }

    /// The projection of a gate that has one of its own.
    fn own_gate(&self) -> Option<&Linear> {
        self.gate_proj.as_ref().or(self.g_proj.as_ref())
    }

    fn output(&self) -> &Linear {
        self.o_proj.as_ref().or(self.out_proj.as_ref()).expect("it is made with one of them")
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let hidden = self.output().weight.lazy_shape()[0] as u64;
        let queries = (self.heads * self.head_dim) as u64;
        let keys = (self.key_value_heads * self.head_dim) as u64;
        // The norm's output, queries while they are rotated (half as much again, then twice), then
        // keys and values, of which one is twice there. What a bias makes of them is no more; nor
        // are the three made together, which are rotated in place when the norm's output is gone.
        let project = hidden + queries + (2 * queries).max(3 * keys);
        let held_back = if pass.holds_back() { 2 * keys } else { 0 };
        let attend = 2 * queries + held_back;
        // Attention's result, its projection and the copy of a tiled product or of a biased one.
        let output = queries + 2 * hidden;
        // Gates beside the queries, both of them copied; then beside the others, and what comes of
        // them with the result.
        let gate = if self.gate_of_queries() { 2 * queries } else { 0 };
        let most = (project + gate).max(attend + gate).max(output).max(2 * gate);
        // A projection of its own takes what waits for it.
        let waits = self.own_gate().map_or(0, |_| hidden);
        let most = (most + waits).max(queries + waits + AttentionGate::values(self.own_gate()));
        // Narrow values are copied as they are filled up, and so is what comes of them.
        let copied = match self.value_dim < self.head_dim {
            true => 2 * keys + queries,
            false => 0,
        };
        let most = most + copied;
        let scores = match self.softcap.is_some() || self.sinks.is_some() {
            true => pass.score_values(self.heads),
            false => 0,
        };
        let indexed = self
            .indexer
            .as_ref()
            .map(|indexer| indexer.activations(pass, self.heads * self.head_dim, self.head_dim));
        Activations::values(pass.rows() * most + scores)
            .with_unpooled(
                pass.rows()
                    * (2 * keys
                        + copied
                        + held_back
                        + gate
                        + gate / 2
                        + AttentionGate::values(self.own_gate())),
            )
            .with_scratch(pass.attention_scratch(self.heads, self.key_value_heads, self.head_dim))
            .and(indexed.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
