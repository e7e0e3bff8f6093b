//! Causal self-attention over a compressed cache.

mod head_matrices;

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Tensor};

pub use self::head_matrices::HeadMatrices;
use super::attention::query_positions::QueryPositions;
use super::attention::scores::Scores;
use super::attention::seen::attend_seen;
use super::chosen_attention::{attend_chosen, chosen_activations};
use super::indexer::IndexerInputs;
use super::linear::zeros;
use super::{
    Indexer, IndexerConfig, KeyValueSource, Linear, QueryScaling, RmsNorm, Rotation, entered,
    rotation,
};
use crate::chosen_tokens::ChosenTokens;
use crate::kv_cache::{Part, Seen};
use crate::{Activations, Error, Init, KvCache, PassShape};

/// Heads whose queries and results are made at a time, at least: they are wider than what they are
/// made of.
const HEADS_AT_ONCE: usize = 16;

/// Queries of all tokens that are made at a time, if these are more heads.
const QUERIES_AT_ONCE: usize = 2048;

/// The sizes of a [`LatentAttention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentAttentionConfig {
    /// Width of what queries are compressed to, if they are.
    pub query_rank: Option<usize>,
    /// Width of what keys and values are compressed to.
    pub rank: usize,
    /// Elements of a head of queries and keys that are not rotated.
    pub plain: usize,
    /// Elements of a head of queries and keys that are rotated; all heads share those of keys.
    pub rotated: usize,
    /// Width of a head of values.
    pub value: usize,
    /// Whether what makes keys and what makes values are matrices of their own, as in GGUF files.
    pub apart: bool,
    /// What scores are multiplied by.
    pub scale: f64,
    /// What the norms of compressed queries, keys and values add.
    pub epsilon: f64,
    /// What keys and values are made of is multiplied by this once it is normed, in LongCat-Flash
    /// and dots3-note.
    pub latent_scale: Option<f64>,
    /// Whether the rotated part of keys is normed before it is rotated.
    pub norms_rotated: bool,
    /// Whether each head has a [sink](super::Attention::sinks).
    pub has_sinks: bool,
    /// What multiplies what comes of each head.
    pub gate: LatentGate,
    /// Whether queries grow with their position, as it was learned.
    pub scales_queries: bool,
    /// Whose keys and values it looks at.
    pub source: KeyValueSource,
    /// The sizes of what chooses the tokens that are seen, if not all are.
    pub indexer: Option<IndexerConfig>,
}

/// What multiplies what comes of each head of [`LatentAttention`]: the sigmoid of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatentGate {
    /// Nothing.
    None,
    /// Of a projection.
    Values,
    /// Of a projection to one number for all of a head.
    Heads,
    /// Of what is made with queries, of what these are compressed to, normed and as it is.
    WithQueries,
}

/// Which tokens a layer of [`LatentAttention`] with an indexer sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatentChoice {
    /// Those that its own indexer chooses.
    Own,
    /// Those that the indexer of the layer of that number chose.
    Layer(usize),
}

impl LatentAttentionConfig {
    /// Width of a head of queries.
    pub fn query(&self) -> usize {
        self.plain + self.rotated
    }

    /// Values of a token that attention is over.
    pub fn seen(&self) -> usize {
        self.rank + self.rotated
    }

    /// Values that the cache has of a token: these, unless an earlier layer keeps them, and the key
    /// of an indexer.
    pub fn cached(&self, choice: LatentChoice) -> usize {
        let indexer = self.indexer.filter(|_| choice == LatentChoice::Own);
        self.kept() + indexer.map_or(0, |indexer| indexer.head_dim)
    }

    /// Of these, what keys and values are made of.
    fn kept(&self) -> usize {
        match self.source {
            KeyValueSource::Own { .. } => self.seen(),
            KeyValueSource::Layer(_) => 0,
        }
    }
}

/// Multi-head latent attention ([DeepSeek-AI, 2024](https://arxiv.org/abs/2405.04434)). The cache
/// has of each token one vector that all heads share: what its keys and values are made of, and the
/// part of its keys that is rotated.
///
/// Keys and values are never made: `q · (K c) = (Kᵀ q) · c`, and `Σ w (V c) = V (Σ w c)`, so that
/// queries and results take the way there and back instead. What they are made of may be what an
/// earlier layer keeps.
#[derive(Module, Debug)]
pub struct LatentAttention {
    /// `[heads · (plain + rotated), hidden]`, where queries are not compressed.
    pub q_proj: Option<Linear>,
    /// `[query_rank, hidden]`.
    pub q_a_proj: Option<Linear>,
    /// `[query_rank]`.
    pub q_a_layernorm: Option<RmsNorm>,
    /// `[heads · (plain + rotated), query_rank]`; where it makes gates too,
    /// `[heads · (plain + rotated + value), 2 · query_rank]`.
    pub q_b_proj: Option<Linear>,
    /// `[rank + rotated, hidden]`, where it has keys and values of its own.
    pub kv_a_proj_with_mqa: Option<Linear>,
    /// `[rank]`.
    pub kv_a_layernorm: Option<RmsNorm>,
    /// `[rotated]`: of the part of keys that is rotated.
    pub k_rope_only_layernorm: Option<RmsNorm>,
    /// What makes keys and values.
    pub kv_b_proj: HeadMatrices,
    /// `[hidden, heads · value]`.
    pub o_proj: Linear,
    /// `[heads]`: scores that take a share of each softmax and give no value.
    pub sinks: Option<Param<Tensor<1>>>,
    /// `[heads · value, hidden]`, of a gate.
    pub gate_proj: Option<Linear>,
    /// `[heads, hidden]`, of a gate of all of a head.
    pub g_proj: Option<Linear>,
    /// How queries grow with their position.
    pub softmax_scaling: Option<QueryScaling>,
    /// What chooses the tokens that are seen.
    pub indexer: Option<Indexer>,
    heads: usize,
    #[module(skip)]
    config: LatentAttentionConfig,
    #[module(skip)]
    choice: LatentChoice,
}

impl LatentAttention {
    /// A block without storage.
    pub fn new(
        hidden: usize,
        heads: usize,
        config: LatentAttentionConfig,
        bias: bool,
        init: &Init,
    ) -> Self {
        let LatentAttentionConfig { query_rank, rank, value, has_sinks, gate, .. } = config;
        let queries = heads * config.query();
        let norm = |rank| RmsNorm::new(rank, config.epsilon, init);
        let is_source = config.kept() > 0;
        Self {
            q_proj: query_rank.is_none().then(|| Linear::new(hidden, queries, false, init)),
            q_a_proj: query_rank.map(|rank| Linear::new(hidden, rank, bias, init)),
            q_a_layernorm: query_rank.map(norm),
            q_b_proj: query_rank.map(|rank| match gate {
                LatentGate::WithQueries => {
                    Linear::new(2 * rank, queries + heads * value, false, init)
                }
                _ => Linear::new(rank, queries, false, init),
            }),
            kv_a_proj_with_mqa: is_source.then(|| Linear::new(hidden, config.seen(), bias, init)),
            kv_a_layernorm: is_source.then(|| norm(rank)),
            k_rope_only_layernorm: (is_source && config.norms_rotated)
                .then(|| norm(config.rotated)),
            kv_b_proj: HeadMatrices::new(heads, &config, init),
            o_proj: Linear::new(heads * value, hidden, bias, init),
            sinks: has_sinks.then(|| zeros(heads, &init.device)),
            gate_proj: (gate == LatentGate::Values)
                .then(|| Linear::new(hidden, heads * value, false, init)),
            g_proj: (gate == LatentGate::Heads).then(|| Linear::new(hidden, heads, false, init)),
            softmax_scaling: config.scales_queries.then(|| QueryScaling::new(heads, init)),
            indexer: None,
            heads,
            config,
            choice: LatentChoice::Own,
        }
    }

    /// The same that sees the tokens that an indexer chooses, if the model has such.
    pub fn choosing(self, hidden: usize, choice: LatentChoice, init: &Init) -> Self {
        let indexer = self.config.indexer.filter(|_| choice == LatentChoice::Own);
        let rank = self.config.query_rank.unwrap_or(hidden);
        let indexer = indexer.map(|indexer| Indexer::new(hidden, rank, indexer, init));
        Self { indexer, choice, ..self }
    }

    /// `[batch, tokens, hidden]` f32 to the same of the tokens that queries are
    /// [wanted](QueryPositions::queries) of. What is kept of the tokens is appended to layer
    /// `layer` of the cache.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        rotation: Option<&Rotation>,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let LatentAttentionConfig { rank, plain, rotated, scale, .. } = self.config;
        let x = entered(x, &self.o_proj.weight);
        // An indexer is asked for all tokens.
        let wanted = positions.queries.filter(|_| self.indexer.is_none());
        let of_all = QueryPositions { queries: wanted, ..*positions };
        let (needed, positions) = (of_all.needed(x.clone()), &of_all.of_queries());
        let [batch, tokens, _] = needed.dims();
        let (queried, queries, fused) = self.queries(&needed);
        let of_queries = rotation.map(|rotation| rotation.of_queries(&of_all));
        let queries = match &of_queries {
            Some(rotation) => rotation.grown(queries),
            None => queries,
        };
        let queries = match &self.softmax_scaling {
            Some(scaling) => scaling.forward(queries, positions),
            None => queries,
        };
        let mut kept = self.latents(&x, rotation);
        kept.extend(self.indexer.as_ref().map(|indexer| indexer.keys(x.clone(), rotation)));
        let mut own = match kept.is_empty() {
            true => None,
            false => {
                let kept = Tensor::cat(kept, 3).swap_dims(1, 2);
                Some(cache.see(layer, kept.clone(), kept)?)
            }
        };
        let gate = self.gate_proj.as_ref().or(self.g_proj.as_ref());
        let gate = gate.map(|projection| (projection, needed.clone()));
        let rotation = of_queries.as_deref();
        let inputs = IndexerInputs { x: needed, compressed: queried, rotation, positions };
        let chosen = self.chosen(inputs, own.as_ref(), cache, layer)?;
        let seen = self.seen(own.as_ref(), cache)?;

        let compute = self.o_proj.compute;
        let sinks = self.sinks.as_ref().map(|sinks| sinks.val().cast(DType::F32));
        // Without what the cache has for an indexer.
        let is_wider = |part: &Part| part.keys.dims()[3] > rank + rotated;
        let narrow = seen.parts.iter().any(is_wider);
        let narrow = narrow.then(|| seen.narrowed(0..batch, rank + rotated));
        let matrices = self.kv_b_proj.held(self.config, &queries);
        let [tokens_at_once, heads_at_once] = self.at_once([batch, tokens]);
        let mixed = (0..tokens).step_by(tokens_at_once).map(|token| {
            let count = tokens_at_once.min(tokens - token);
            let queries = queries.clone().narrow(1, token, count);
            let of_tokens = rotation.filter(|_| count < tokens);
            let of_tokens = of_tokens.map(|rotation| rotation.of_tokens(token, count));
            let rotation = of_tokens.as_ref().or(rotation);
            let mut mixed = Vec::with_capacity(self.heads);
            for first in (0..self.heads).step_by(heads_at_once) {
                let heads = first..self.heads.min(first + heads_at_once);
                let of_heads = queries.clone().narrow(2, heads.start, heads.len());
                let sinks =
                    sinks.as_ref().map(|sinks| sinks.clone().narrow(0, heads.start, heads.len()));
                let (scale, sinks) = (Some(scale), sinks.as_ref());
                let scores = Scores { compute, scale, softcap: None, bias: None, sinks };
                let turned = (rotated > 0).then(|| {
                    rotation::rotated(rotation, of_heads.clone().narrow(3, plain, rotated))
                });
                let over_latents = heads.clone().map(|head| {
                    let query = of_heads.clone().narrow(2, head - first, 1).narrow(3, 0, plain);
                    let query = query.reshape([batch * count, plain]);
                    matrices.over_latent(compute, head, query).reshape([batch, count, 1, rank])
                });
                let over_latents = Tensor::cat(over_latents.collect(), 2);
                let over_cached = match turned {
                    Some(turned) => Tensor::cat(vec![over_latents, turned], 3),
                    None => over_latents,
                };
                let sums = match &chosen {
                    Some(chosen) => {
                        let first = positions.start - of_all.start + token;
                        attend_chosen(chosen, over_cached, first, seen, &of_all, scores)
                    }
                    None => {
                        let start = positions.start + token;
                        let positions = QueryPositions { start, ..*positions };
                        attend_seen(
                            over_cached,
                            narrow.as_ref().unwrap_or(seen),
                            &positions,
                            scores,
                        )
                    }
                };
                let sums = sums.to_device(&queries.device());
                let sums = sums.reshape([batch, count, heads.len(), rank + rotated]);
                for head in heads {
                    let sum = sums.clone().narrow(2, head - first, 1).narrow(3, 0, rank);
                    let sum = sum.reshape([batch, count, rank]);
                    mixed.push(matrices.head_values(compute, head, sum));
                }
            }
            Tensor::cat(mixed, 2)
        });
        let mut mixed: Vec<_> = mixed.collect();
        // The next matrix may need their memory.
        drop((matrices, narrow));
        match (own.take(), self.config.source) {
            (Some(seen), KeyValueSource::Own { is_shared: true, .. }) => cache.share(layer, seen),
            (Some(seen), _) => cache.keep(layer, seen)?,
            (None, _) => {}
        }
        let mixed = match mixed.len() {
            1 => mixed.remove(0),
            _ => Tensor::cat(mixed, 1),
        };
        let gate = fused.or_else(|| gate.map(|(projection, x)| projection.forward(x)));
        Ok(self.o_proj.forward(match gate {
            Some(gate) => gated(mixed, sigmoid(gate)),
            None => mixed,
        }))
    }

    /// What the tokens' keys and values are made of, if it has any of its own, as the cache is to
    /// have it: `[batch, tokens, hidden]` f32 to `[batch, tokens, 1, width]` each.
    fn latents(&self, x: &Tensor<3>, rotation: Option<&Rotation>) -> Vec<Tensor<4>> {
        let LatentAttentionConfig { rank, rotated, .. } = self.config;
        let (Some(down), Some(norm)) = (&self.kv_a_proj_with_mqa, &self.kv_a_layernorm) else {
            return Vec::new();
        };
        let [batch, tokens, _] = x.dims();
        let compressed = down.forward(x.clone());
        let part = |from, width| compressed.clone().narrow(2, from, width);
        let latent = norm.forward(part(0, rank)).reshape([batch, tokens, 1, rank]);
        let latent = match self.config.latent_scale {
            Some(scale) => latent * scale,
            None => latent,
        };
        let turned = (rotated > 0).then(|| {
            let turned = match &self.k_rope_only_layernorm {
                Some(norm) => norm.forward(part(rank, rotated)),
                None => part(rank, rotated),
            };
            let turned = turned.reshape([batch, tokens, 1, rotated]);
            rotation::rotated(rotation, turned)
        });
        std::iter::once(latent).chain(turned).collect()
    }

    /// Where what keys and values are made of is, of what the layer itself keeps and what earlier
    /// ones share.
    fn seen<'a>(&self, own: Option<&'a Seen>, cache: &'a KvCache) -> Result<&'a Seen, Error> {
        match self.config.source {
            KeyValueSource::Layer(source) => cache.shared(source),
            KeyValueSource::Own { .. } => Ok(own.expect("it keeps keys and values of its own")),
        }
    }

    /// Of `[batch, tokens, hidden]` f32 what an indexer makes queries of,
    /// `[batch, tokens, query_rank]` f32 or the same; queries
    /// `[batch, tokens, heads, plain + rotated]` f32; and gates `[batch, tokens, heads · value]`
    /// f32, if they are made with these.
    fn queries(&self, x: &Tensor<3>) -> (Tensor<3>, Tensor<4>, Option<Tensor<3>>) {
        let ([batch, tokens, _], query) = (x.dims(), self.config.query());
        let is_fused = self.config.gate == LatentGate::WithQueries;
        let (compressed, inputs) = match (&self.q_a_proj, &self.q_a_layernorm) {
            (Some(down), Some(norm)) => {
                let plain = down.forward(x.clone());
                let normed = norm.forward(plain.clone());
                let both = || Tensor::cat(vec![normed.clone(), plain], 2);
                let inputs = if is_fused { both() } else { normed.clone() };
                (normed, inputs)
            }
            _ => (x.clone(), x.clone()),
        };
        let up = self.q_proj.as_ref().or(self.q_b_proj.as_ref());
        let made = up.expect("it is made with one of them").forward(inputs);
        if !is_fused {
            return (compressed, made.reshape([batch, tokens, self.heads, query]), None);
        }
        let value = self.config.value;
        let made = made.reshape([batch, tokens, self.heads, query + value]);
        let gates = made.clone().narrow(3, query, value);
        let gates = gates.reshape([batch, tokens, self.heads * value]);
        (compressed, made.narrow(3, 0, query), Some(gates))
    }

    /// Which tokens are seen, if any token of the pass sees fewer than it may.
    fn chosen(
        &self,
        inputs: IndexerInputs<'_>,
        own: Option<&Seen>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Option<Arc<ChosenTokens>>, Error> {
        let Some(IndexerConfig { top_k, .. }) = self.config.indexer else {
            return Ok(None);
        };
        let window = self.seen(own, cache)?.window;
        if inputs.positions.most_columns(inputs.x.dims()[1], window) <= top_k {
            return Ok(None);
        }
        match (self.choice, &self.indexer, own) {
            (LatentChoice::Layer(source), ..) => cache.chosen_by(source).map(Some),
            (LatentChoice::Own, Some(indexer), Some(own)) => {
                let chosen = Arc::new(indexer.choose(inputs, own, self.config.kept()));
                cache.set_chosen(layer, chosen.clone());
                Ok(Some(chosen))
            }
            (LatentChoice::Own, ..) => unreachable!("it is made with what it chooses with"),
        }
    }

    /// Tokens and heads whose queries are made at a time: of all tokens some heads; where what a
    /// token sees may be gathered for it, of some tokens all heads.
    fn at_once(&self, [batch, tokens]: [usize; 2]) -> [usize; 2] {
        match self.config.indexer.is_some() {
            true => [(QUERIES_AT_ONCE / (batch * self.heads)).clamp(1, tokens), self.heads],
            false => {
                let heads = QUERIES_AT_ONCE / (batch * tokens).max(1);
                [tokens, self.heads.min(HEADS_AT_ONCE.max(heads))]
            }
        }
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let LatentAttentionConfig { query_rank, rank, plain, rotated, value, .. } = self.config;
        let tokens = (pass.tokens() as usize).max(1);
        let batch = pass.rows() as usize / tokens;
        let indexer = self.config.indexer.filter(|indexer| pass.visible() > indexer.top_k);
        let at_once = self.at_once([batch, tokens]);
        let [heads, hidden] = [self.heads, self.o_proj.weight.lazy_shape()[0]].map(|n| n as u64);
        let kept = self.config.cached(self.choice) as u64;
        // What is gathered of a token, with the key of an indexer where an earlier layer keeps it.
        let wide = match (self.config.source, self.config.indexer) {
            (KeyValueSource::Layer(_), Some(indexer)) => self.config.seen() + indexer.head_dim,
            _ => kept as usize,
        };
        let [query, cached, rank, value] =
            [plain + rotated, rank + rotated, rank, value].map(|n| n as u64);
        // What queries are made of, with the norm's output; and what is made with them.
        let ranks = query_rank.unwrap_or(0) as u64;
        let (ranks, fused) = match self.config.gate {
            LatentGate::WithQueries => (4 * ranks, value),
            _ => (2 * ranks, 0),
        };
        let (queries, values) = (heads * (query + fused), heads * value);
        // The norm's output, compressed queries with their norm's output, queries and the copy of a
        // tiled product; what the cache is to have, with what it is made of.
        let project = hidden + ranks + 2 * queries + 4 * kept;
        // Of some heads or tokens at a time: queries over latents with the copies that they are
        // made of, and what comes of them.
        let block = 2 * query + rank + 3 * cached;
        let of_block = (batch * at_once[0] * at_once[1]) as u64 * block;
        let attend = pass.rows() * (queries + values + 4 * kept) + of_block;
        // What the gate is made of waits for all of that; then the gate, its sigmoid and what comes
        // of it.
        let (waits, gate) = match self.config.gate {
            LatentGate::Values => (hidden, 4 * values),
            LatentGate::Heads => (hidden, values + 3 * heads),
            LatentGate::WithQueries => (values, 3 * values),
            LatentGate::None => (0, 0),
        };
        let output = (2 * values + 2 * hidden).max(values + gate);
        let most = (pass.rows() * project).max(attend).max(pass.rows() * output);
        let most = most + pass.rows() * waits;
        // And the matrices of one head, if they are stored in blocks.
        let decoded = (plain as u64) * rank;
        let scratch = pass.attention_scratch(at_once[1], 1, self.config.seen());
        let all = Activations::values(most + decoded).with_scratch(scratch);
        let Some(IndexerConfig { top_k, .. }) = indexer else {
            return all;
        };
        // The norm's output and compressed queries wait for the indexer; then attention is over
        // what it chose.
        let inputs = pass.rows() * (hidden + query_rank.unwrap_or(0) as u64);
        let chooses = self.indexer.as_ref().map(|indexer| indexer.activations(pass));
        let chooses = Activations::values(inputs).and(chooses.unwrap_or_default());
        let attends = Activations::values(pass.rows() * values + of_block).and(chosen_activations(
            pass,
            at_once[0] * at_once[1],
            wide,
            top_k,
        ));
        // With the rotations of the tokens at hand.
        let held = pass.rows() * (queries + 4 * kept + 2 * rotated as u64 + waits) + decoded;
        all.or(Activations::values(held).with_scratch(scratch).and(chooses.or(attends)))
    }

    /// What stays for later layers until the pass ends.
    pub fn left_for_others(&self, pass: &PassShape) -> Activations {
        let stays = matches!(self.config.source, KeyValueSource::Own { is_shared: true, .. });
        let kept = if stays && pass.holds_back() { self.config.cached(self.choice) } else { 0 };
        Activations::values(pass.rows() * kept as u64)
    }
}

/// What comes of all heads, `[batch, tokens, heads · value]`, times a gate of each value or of each
/// head.
fn gated(mixed: Tensor<3>, gate: Tensor<3>) -> Tensor<3> {
    let ([batch, tokens, width], [.., gates]) = (mixed.dims(), gate.dims());
    let of_heads = mixed.reshape([batch, tokens, gates, width / gates]);
    (of_heads * gate.unsqueeze_dim::<4>(3)).reshape([batch, tokens, width])
}

#[cfg(test)]
mod tests;
