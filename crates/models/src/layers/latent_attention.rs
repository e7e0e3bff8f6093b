//! Causal self-attention over a compressed cache.

use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Device, Tensor};
use outsize_core::Streamed;
use outsize_kernels::{
    ActivationDtype, WeightTensor, add_linear_in_out, fetched_linear, is_gpu, linear_with,
};

use super::attention::query_positions::QueryPositions;
use super::attention::scores::Scores;
use super::attention::seen::attend_seen;
use super::chosen_attention::{attend_chosen, chosen_activations};
use super::indexer::IndexerInputs;
use super::linear::{differentiated, matrix, whole, zeros};
use super::{Indexer, IndexerConfig, Linear, RmsNorm, Rotation, entered, rope};
use crate::chosen_tokens::ChosenTokens;
use crate::kv_cache::Seen;
use crate::{Activations, Error, Init, KvCache, PassShape};

/// The norms of compressed queries, keys and values add this, whatever others add.
const EPSILON: f64 = 1e-6;

/// Heads whose queries and results are made at a time, at least: they are wider than what they are made of.
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
    /// What keys and values are made of is multiplied by this once it is normed, in LongCat-Flash.
    pub latent_scale: Option<f64>,
    /// Whether each head has a [sink](super::Attention::sinks).
    pub has_sinks: bool,
    /// Whether what comes of each head is multiplied by the sigmoid of a projection.
    pub is_gated: bool,
    /// The same by one number for all of a head.
    pub gates_heads: bool,
    /// The sizes of what chooses the tokens that are seen, if not all are.
    pub indexer: Option<IndexerConfig>,
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

    /// Values that the cache has of a token: these, and the key of an indexer.
    pub fn cached(&self, choice: LatentChoice) -> usize {
        let indexer = self.indexer.filter(|_| choice == LatentChoice::Own);
        self.seen() + indexer.map_or(0, |indexer| indexer.head_dim)
    }
}

/// Multi-head latent attention ([DeepSeek-AI, 2024](https://arxiv.org/abs/2405.04434)). The cache has of each token one
/// vector that all heads share: what its keys and values are made of, and the part of its keys that is rotated.
///
/// Keys and values are never made: `q · (K c) = (Kᵀ q) · c`, and `Σ w (V c) = V (Σ w c)`, so that queries and results take the
/// way there and back instead.
#[derive(Module, Debug)]
pub struct LatentAttention {
    /// `[heads · (plain + rotated), hidden]`, where queries are not compressed.
    pub q_proj: Option<Linear>,
    /// `[query_rank, hidden]`.
    pub q_a_proj: Option<Linear>,
    /// `[query_rank]`.
    pub q_a_layernorm: Option<RmsNorm>,
    /// `[heads · (plain + rotated), query_rank]`.
    pub q_b_proj: Option<Linear>,
    /// `[rank + rotated, hidden]`.
    pub kv_a_proj_with_mqa: Linear,
    /// `[rank]`.
    pub kv_a_layernorm: RmsNorm,
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
    /// What chooses the tokens that are seen.
    pub indexer: Option<Indexer>,
    heads: usize,
    #[module(skip)]
    config: LatentAttentionConfig,
    #[module(skip)]
    choice: LatentChoice,
}

/// Matrices of all heads, those of one below those of the other: in one, or apart as in GGUF files. They are small beside the
/// other matrices, and a pass holds them all.
#[derive(Module, Debug)]
pub struct HeadMatrices {
    /// `[heads · (plain + value), rank]`: of each head, what makes keys, then what makes values.
    pub weight: Option<Param<Tensor<2>>>,
    /// `[heads · rank, plain]`: of each head what makes keys, the other way round.
    pub keys: Option<Param<Tensor<2>>>,
    /// `[heads · value, rank]`: of each head what makes values.
    pub values: Option<Param<Tensor<2>>>,
}

impl HeadMatrices {
    fn new(heads: usize, config: &LatentAttentionConfig, init: &Init) -> Self {
        let LatentAttentionConfig { rank, plain, value, apart, .. } = *config;
        let new = |rows, columns| matrix([heads * rows, columns], &init.device);
        Self {
            weight: (!apart).then(|| new(plain + value, rank)),
            keys: apart.then(|| new(rank, plain)),
            values: apart.then(|| new(value, rank)),
        }
    }

    /// As they are multiplied with what is made of `x`.
    fn held(&self, config: LatentAttentionConfig, x: &Tensor<4>) -> HeldMatrices<'_> {
        let held = |matrix| HeadMatrix::new(matrix, x);
        match (&self.weight, &self.keys, &self.values) {
            (Some(both), ..) => HeldMatrices { config, keys: held(both), values: None },
            (None, Some(keys), Some(values)) => {
                HeldMatrices { config, keys: held(keys), values: Some(held(values)) }
            }
            _ => unreachable!("they are made as one or apart"),
        }
    }
}

/// A matrix of all heads.
enum HeadMatrix<'a> {
    /// All of it, as it is held.
    Held(Box<WeightTensor>),
    /// Fetched for each product, as gradients flow through it, so that none of it is held until they do.
    Fetched(&'a Streamed),
}

impl<'a> HeadMatrix<'a> {
    fn new(matrix: &'a Param<Tensor<2>>, x: &Tensor<4>) -> Self {
        match differentiated(x, matrix) {
            Some(streamed) => Self::Fetched(streamed),
            None => Self::Held(Box::new(held(matrix, &x.device()))),
        }
    }

    /// `x · Wᵀ` of some of its rows.
    fn product<const D: usize>(
        &self,
        compute: ActivationDtype,
        x: Tensor<D>,
        rows: Range<usize>,
    ) -> Tensor<D> {
        match self {
            Self::Held(weight) => linear_with(compute, x, weight.slice(rows)),
            Self::Fetched(matrix) => fetched_linear(compute, x, matrix.operand_rows(rows, false)),
        }
    }

    /// `x · W` of some of its rows.
    fn transposed(&self, compute: ActivationDtype, x: Tensor<2>, rows: Range<usize>) -> Tensor<2> {
        match self {
            Self::Held(weight) => transposed(compute, x, weight.slice(rows)),
            Self::Fetched(matrix) => fetched_linear(compute, x, matrix.operand_rows(rows, true)),
        }
    }
}

/// All of a matrix, as it is held.
fn held(matrix: &Param<Tensor<2>>, device: &Device) -> WeightTensor {
    match Streamed::of(matrix).filter(|_| is_gpu(device)) {
        Some(streamed) => {
            let tiles = streamed.tiles_on(device);
            let tiles = tiles.map(|(_, tile)| tile.into_float(device)).collect();
            Tensor::cat(tiles, 0).into()
        }
        None => whole(matrix),
    }
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
        let LatentAttentionConfig { query_rank, rank, value, has_sinks, is_gated, .. } = config;
        let queries = heads * config.query();
        Self {
            q_proj: query_rank.is_none().then(|| Linear::new(hidden, queries, false, init)),
            q_a_proj: query_rank.map(|rank| Linear::new(hidden, rank, bias, init)),
            q_a_layernorm: query_rank.map(|rank| RmsNorm::new(rank, EPSILON, init)),
            q_b_proj: query_rank.map(|rank| Linear::new(rank, queries, false, init)),
            kv_a_proj_with_mqa: Linear::new(hidden, config.seen(), bias, init),
            kv_a_layernorm: RmsNorm::new(rank, EPSILON, init),
            kv_b_proj: HeadMatrices::new(heads, &config, init),
            o_proj: Linear::new(heads * value, hidden, bias, init),
            sinks: has_sinks.then(|| zeros(heads, &init.device)),
            gate_proj: is_gated.then(|| Linear::new(hidden, heads * value, false, init)),
            g_proj: config.gates_heads.then(|| Linear::new(hidden, heads, false, init)),
            indexer: None,
            heads,
            config,
            choice: LatentChoice::Own,
        }
    }

    /// The same that sees the tokens that an indexer chooses, if the model has such.
    pub fn choosing(self, hidden: usize, choice: LatentChoice, init: &Init) -> Self {
        let indexer = self.config.indexer.filter(|_| choice == LatentChoice::Own);
        let indexer = indexer.zip(self.config.query_rank);
        let indexer = indexer.map(|(indexer, rank)| Indexer::new(hidden, rank, indexer, init));
        Self { indexer, choice, ..self }
    }

    /// `[batch, tokens, hidden]` f32 to the same. What is kept of the tokens is appended to layer `layer` of the cache.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        rotation: Option<&Rotation>,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let LatentAttentionConfig { rank, plain, rotated, scale, .. } = self.config;
        let x = entered(x, &self.kv_a_proj_with_mqa.weight);
        let [batch, tokens, _] = x.dims();
        let queried = self.compressed_queries(x.clone());
        let queries = self.queries(&queried).reshape([batch, tokens, self.heads, plain + rotated]);
        let queries = match rotation {
            Some(rotation) => rotation.grown(queries),
            None => queries,
        };
        let compressed = self.kv_a_proj_with_mqa.forward(x.clone());
        let part = |from, width| compressed.clone().narrow(2, from, width);
        let latent = self.kv_a_layernorm.forward(part(0, rank)).reshape([batch, tokens, 1, rank]);
        let latent = match self.config.latent_scale {
            Some(scale) => latent * scale,
            None => latent,
        };
        let turned = part(rank, rotated).reshape([batch, tokens, 1, rotated]);
        let turned = rope::rotated(rotation, turned);
        drop(compressed);
        let key = self.indexer.as_ref().map(|indexer| indexer.keys(x.clone(), rotation));
        let kept = [Some(latent), Some(turned), key].into_iter().flatten();
        let kept = Tensor::cat(kept.collect(), 3).swap_dims(1, 2);
        let mut seen = cache.see(layer, kept.clone(), kept)?;
        let gate = self.gate_proj.as_ref().or(self.g_proj.as_ref());
        let gate = gate.map(|projection| (projection, x.clone()));
        let inputs = IndexerInputs { x, compressed: queried, rotation, positions };
        let chosen = self.chosen(inputs, &seen, cache, layer)?;

        let compute = self.o_proj.compute;
        let sinks = self.sinks.as_ref().map(|sinks| sinks.val().cast(DType::F32));
        // Without what the cache has for the indexer.
        let narrow = self.indexer.as_ref().map(|_| seen.narrowed(0..batch, rank + rotated));
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
                let turned = rope::rotated(rotation, of_heads.clone().narrow(3, plain, rotated));
                let over_latents = heads.clone().map(|head| {
                    let query = of_heads.clone().narrow(2, head - first, 1).narrow(3, 0, plain);
                    let query = query.reshape([batch * count, plain]);
                    matrices.over_latent(compute, head, query).reshape([batch, count, 1, rank])
                });
                let over_latents = Tensor::cat(over_latents.collect(), 2);
                let over_cached = Tensor::cat(vec![over_latents, turned], 3);
                let sums = match &chosen {
                    Some(chosen) => {
                        attend_chosen(chosen, over_cached, token, &seen, positions, scores)
                    }
                    None => {
                        let start = positions.start + token;
                        let positions = QueryPositions { start, ..*positions };
                        attend_seen(
                            over_cached,
                            narrow.as_ref().unwrap_or(&seen),
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
        let held_back = seen.held_back.take();
        drop(seen);
        cache.keep(layer, held_back)?;
        let mixed = match mixed.len() {
            1 => mixed.remove(0),
            _ => Tensor::cat(mixed, 1),
        };
        Ok(self.o_proj.forward(match gate {
            Some((projection, x)) => gated(mixed, sigmoid(projection.forward(x))),
            None => mixed,
        }))
    }

    /// What queries are made of: `[batch, tokens, hidden]` f32 to `[batch, tokens, query_rank]`, or the same.
    fn compressed_queries(&self, x: Tensor<3>) -> Tensor<3> {
        match (&self.q_a_proj, &self.q_a_layernorm) {
            (Some(down), Some(norm)) => norm.forward(down.forward(x)),
            _ => x,
        }
    }

    fn queries(&self, compressed: &Tensor<3>) -> Tensor<3> {
        let up = self.q_proj.as_ref().or(self.q_b_proj.as_ref());
        up.expect("it is made with one of them").forward(compressed.clone())
    }

    /// Which tokens are seen, if any token of the pass sees fewer than it may.
    fn chosen(
        &self,
        inputs: IndexerInputs<'_>,
        seen: &Seen,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Option<Arc<ChosenTokens>>, Error> {
        let Some(IndexerConfig { top_k, .. }) = self.config.indexer else {
            return Ok(None);
        };
        if inputs.positions.most_columns(inputs.x.dims()[1], seen.window) <= top_k {
            return Ok(None);
        }
        match (self.choice, &self.indexer) {
            (LatentChoice::Layer(source), _) => cache.chosen_by(source).map(Some),
            (LatentChoice::Own, Some(indexer)) => {
                let chosen = Arc::new(indexer.choose(inputs, seen, self.config.seen()));
                cache.set_chosen(layer, chosen.clone());
                Ok(Some(chosen))
            }
            (LatentChoice::Own, None) => unreachable!("it is made with what it chooses with"),
        }
    }

    /// Tokens and heads whose queries are made at a time: of all tokens some heads; where what a token sees may be gathered
    /// for it, of some tokens all heads.
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
        let [query, cached, rank, value] =
            [plain + rotated, rank + rotated, rank, value].map(|n| n as u64);
        let (queries, values) = (heads * query, heads * value);
        // The norm's output, compressed queries with their norm's output, queries and the copy of a tiled product; what the
        // cache is to have, with what it is made of.
        let project = hidden + 2 * query_rank.unwrap_or(0) as u64 + 2 * queries + 4 * kept;
        // Of some heads or tokens at a time: queries over latents with the copies that they are made of, and what comes of them.
        let block = 2 * query + rank + 3 * cached;
        let of_block = (batch * at_once[0] * at_once[1]) as u64 * block;
        let attend = pass.rows() * (queries + values + 4 * kept) + of_block;
        // What the gate is made of waits for all of that; then the gate, its sigmoid and what comes of it.
        let (waits, gate) = match (&self.gate_proj, &self.g_proj) {
            (Some(_), _) => (hidden, 4 * values),
            (None, Some(_)) => (hidden, values + 3 * heads),
            (None, None) => (0, 0),
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
        // The norm's output and compressed queries wait for the indexer; then attention is over what it chose.
        let inputs = pass.rows() * (hidden + query_rank.unwrap_or(0) as u64);
        let chooses = self.indexer.as_ref().map(|indexer| indexer.activations(pass));
        let chooses = Activations::values(inputs).and(chooses.unwrap_or_default());
        let attends = Activations::values(pass.rows() * values + of_block).and(chosen_activations(
            pass,
            at_once[0] * at_once[1],
            kept as usize,
            top_k,
        ));
        // With the rotations of the tokens at hand.
        let held = pass.rows() * (queries + 4 * kept + 2 * rotated as u64 + waits) + decoded;
        all.or(Activations::values(held).with_scratch(scratch).and(chooses.or(attends)))
    }
}

/// What comes of all heads, `[batch, tokens, heads · value]`, times a gate of each value or of each head.
fn gated(mixed: Tensor<3>, gate: Tensor<3>) -> Tensor<3> {
    let ([batch, tokens, width], [.., gates]) = (mixed.dims(), gate.dims());
    let of_heads = mixed.reshape([batch, tokens, gates, width / gates]);
    (of_heads * gate.unsqueeze_dim::<4>(3)).reshape([batch, tokens, width])
}

/// What makes keys and values of all heads, as it is held in a pass.
struct HeldMatrices<'a> {
    config: LatentAttentionConfig,
    /// What makes keys; and values, if these have none apart.
    keys: HeadMatrix<'a>,
    values: Option<HeadMatrix<'a>>,
}

impl HeldMatrices<'_> {
    /// What a head's queries `[rows, plain]` are over what the cache has: `[rows, rank]`.
    fn over_latent(&self, compute: ActivationDtype, head: usize, query: Tensor<2>) -> Tensor<2> {
        let LatentAttentionConfig { rank, plain, value, .. } = self.config;
        if self.values.is_some() {
            return self.keys.product(compute, query, head * rank..(head + 1) * rank);
        }
        let first = head * (plain + value);
        self.keys.transposed(compute, query, first..first + plain)
    }

    /// A head's values of what attention gives over latents: `[batch, tokens, rank]` to `[batch, tokens, value]`.
    fn head_values(&self, compute: ActivationDtype, head: usize, sum: Tensor<3>) -> Tensor<3> {
        let LatentAttentionConfig { plain, value, .. } = self.config;
        match &self.values {
            Some(values) => values.product(compute, sum, head * value..(head + 1) * value),
            None => {
                let end = (head + 1) * (plain + value);
                self.keys.product(compute, sum, end - value..end)
            }
        }
    }
}

/// `x · W`: `[rows, in]` and a weight `[in, out]` to `[rows, out]`.
fn transposed(compute: ActivationDtype, x: Tensor<2>, weight: WeightTensor) -> Tensor<2> {
    let device = x.device();
    // The kernel takes no blocks this way round.
    let weight = WeightTensor::from(weight.into_float(&device));
    let [_, out] = weight.dims();
    let zeros = Tensor::zeros([x.dims()[0], out], (&device, DType::F32));
    add_linear_in_out(compute, zeros, x, 0, weight)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;
    use outsize_kernels::RotaryPairs;

    use super::*;
    use crate::{AttentionCache, Batch, CacheLayer, CacheOptions, CacheSpec, WhenFull};

    #[test]
    fn tokens_see_the_same_in_passes_of_any_length() {
        // Some of the tokens before, or all.
        [20, 200].into_iter().for_each(sees_the_same);
    }

    fn sees_the_same(top_k: usize) {
        const TOKENS: usize = 120;
        let device = Device::default();
        let init = &Init::new(&device);
        let pairs = RotaryPairs::Halves;
        let indexer =
            IndexerConfig { heads: 4, head_dim: 8, top_k, pairs, plain: 0, epsilon: EPSILON };
        let config = LatentAttentionConfig {
            query_rank: Some(16),
            rank: 24,
            plain: 8,
            rotated: 4,
            value: 8,
            apart: false,
            scale: 5.0,
            latent_scale: None,
            has_sinks: false,
            is_gated: false,
            gates_heads: false,
            indexer: Some(indexer),
        };
        // So many that the queries of some tokens are made at a time.
        let heads = 40;
        let attention = LatentAttention::new(32, heads, config, false, init);
        let attention = attention.choosing(32, LatentChoice::Own, init);
        assert!(attention.at_once([1, TOKENS])[0] < TOKENS / 2);
        let cache = AttentionCache {
            heads,
            key_value_heads: 1,
            head_dim: config.cached(LatentChoice::Own),
            window: None,
            is_chunked: false,
            keys_are_values: true,
            chosen: Some(indexer.top_k),
            entries: None,
        };
        let layers = vec![CacheLayer::Attention(cache)];
        let spec = CacheSpec { layers, ..CacheSpec::uniform(0, 1, 1, 2, TOKENS) };
        let x = Tensor::<3>::random([1, TOKENS, 32], Distribution::Normal(0.0, 1.0), &device);
        let run = |options: &CacheOptions, step: usize| -> Vec<u32> {
            let mut cache = KvCache::new(&spec, options, &device).unwrap();
            let passes = (0..TOKENS).step_by(step).flat_map(|start| {
                let count = step.min(TOKENS - start);
                let batch = Batch::left_padded(&[vec![1; count]]).unwrap();
                cache.begin(&batch);
                let positions =
                    QueryPositions { start, padding: &[0], lengths: &[], groups: &[], alibi: None };
                let x = x.clone().narrow(1, start, count);
                let y = attention.forward(x, None, &positions, &mut cache, 0).unwrap();
                cache.advance(&batch);
                y.into_data().try_into_vec::<f32>().unwrap()
            });
            passes.map(f32::to_bits).collect()
        };
        // Of all tokens, or of the last 60.
        let sliding = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(60) };
        for options in [CacheOptions::new(TOKENS), sliding] {
            let whole = run(&options, TOKENS);
            for step in [1, 7, 64] {
                assert_eq!(
                    run(&options, step),
                    whole,
                    "passes of {step}, {top_k} chosen, with {options:?}"
                );
            }
        }
    }
}
