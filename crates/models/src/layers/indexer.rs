//! The layer that chooses the tokens which attention sees.

use std::ops::Range;

use burn::module::Module;
use burn::tensor::{DType, Tensor, TensorData};
use outsize_kernels::{ActivationDtype, RotaryPairs, linear_with};

use super::attention::query_positions::QueryPositions;
use super::{LayerNorm, Linear, QueryScaling, Rotation};
use crate::chosen_tokens::ChosenTokens;
use crate::kv_cache::Seen;
use crate::{Activations, Init, PassShape};

/// Products of queries and keys that are made at a time, unless one token has more.
pub(super) const PRODUCTS_AT_ONCE: usize = 1 << 20;

/// The sizes of an [`Indexer`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IndexerConfig {
    /// Heads of queries; all share one of keys.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens that a token sees, itself included, at most.
    pub top_k: usize,
    /// Which elements of a head are rotated together.
    pub pairs: RotaryPairs,
    /// Elements of a head before those that are rotated.
    pub plain: usize,
    /// What norms add.
    pub epsilon: f64,
    /// Whether what queries are made of is normed, and they grow with their position as it was
    /// learned.
    pub scales_queries: bool,
}

/// The lightning indexer of sparse attention ([DeepSeek-AI,
/// 2025](https://arxiv.org/abs/2512.02556)): it scores the tokens before a token, of which
/// attention sees the best. A score is the sum over heads of `weight · max(q · k, 0)`.
///
/// Its products are of f32 activations, whatever those of other layers are: near a tie, rounding
/// would choose another token.
#[derive(Module, Debug)]
pub struct Indexer {
    /// `[query_rank]`: of what queries are made of.
    pub q_input_norm: Option<LayerNorm>,
    /// `[heads · head_dim, query_rank]`.
    pub wq_b: Linear,
    /// How queries grow with their position.
    pub softmax_scaling: Option<QueryScaling>,
    /// `[head_dim, hidden]`.
    pub wk: Linear,
    /// `[head_dim]`.
    pub k_norm: LayerNorm,
    /// `[heads, hidden]`: how much a head counts.
    pub weights_proj: Linear,
    #[module(skip)]
    config: IndexerConfig,
}

/// What an indexer takes of the tokens of a pass.
pub(crate) struct IndexerInputs<'a> {
    /// `[batch, tokens, hidden]` f32.
    pub x: Tensor<3>,
    /// Compressed queries, `[batch, tokens, query_rank]` f32; the same as `x` where they are not
    /// compressed.
    pub compressed: Tensor<3>,
    pub rotation: Option<&'a Rotation>,
    pub positions: &'a QueryPositions<'a>,
}

impl Indexer {
    /// A layer without storage, whose queries are made of `query_rank` values.
    pub fn new(hidden: usize, query_rank: usize, config: IndexerConfig, init: &Init) -> Self {
        let IndexerConfig { heads, head_dim, .. } = config;
        let init = &Init { compute: ActivationDtype::F32, ..init.clone() };
        let linear = |inputs, outputs| Linear::new(inputs, outputs, false, init);
        Self {
            q_input_norm: (config.scales_queries)
                .then(|| LayerNorm::new(query_rank, config.epsilon, init)),
            wq_b: linear(query_rank, heads * head_dim),
            softmax_scaling: config.scales_queries.then(|| QueryScaling::new(heads, init)),
            wk: linear(hidden, head_dim),
            k_norm: LayerNorm::new(head_dim, config.epsilon, init),
            weights_proj: linear(hidden, heads),
            config,
        }
    }

    /// The keys of tokens `[batch, tokens, hidden]` f32, which the cache is to have:
    /// `[batch, tokens, 1, head_dim]`. No gradient flows through them, as in transformers: they
    /// choose, and are no part of what comes of it.
    pub(super) fn keys(&self, x: Tensor<3>, rotation: Option<&Rotation>) -> Tensor<4> {
        let [batch, tokens, _] = x.dims();
        let keys = self.k_norm.forward(self.wk.forward(x));
        self.rotated(rotation, keys.reshape([batch, tokens, 1, self.config.head_dim])).detach()
    }

    fn rotated(&self, rotation: Option<&Rotation>, x: Tensor<4>) -> Tensor<4> {
        let IndexerConfig { pairs, plain, .. } = self.config;
        match rotation {
            Some(rotation) => rotation.apply_to_pairs_behind(pairs, plain, x),
            None => x,
        }
    }

    /// Which columns the tokens of a pass see, whose keys are among `seen`, in what the cache has
    /// of a token from element `first` on.
    pub(super) fn choose(
        &self,
        inputs: IndexerInputs<'_>,
        seen: &Seen,
        first: usize,
    ) -> ChosenTokens {
        let IndexerConfig { heads, head_dim, top_k, .. } = self.config;
        let IndexerInputs { x, compressed, rotation, positions } = inputs;
        let [batch, tokens, _] = x.dims();
        let scale = ((heads * head_dim) as f64).powf(-0.5);
        let weights = self.weights_proj.forward(x) * scale;
        let compressed = match &self.q_input_norm {
            Some(norm) => norm.forward(compressed),
            None => compressed,
        };
        let queries = self.wq_b.forward(compressed).reshape([batch, tokens, heads, head_dim]);
        let queries = match &self.softmax_scaling {
            Some(scaling) => scaling.forward(queries, positions),
            None => queries,
        };
        let queries = self.rotated(rotation, queries);
        let sees = |row, token| positions.columns(row, token, seen.window);
        best_columns(queries, weights, seen, first, top_k, sees)
    }

    /// What it holds at most, besides its input and what it gives.
    pub(super) fn activations(&self, pass: &PassShape) -> Activations {
        let normed = self.q_input_norm.as_ref().map_or(0, LayerNorm::width) as u64;
        let normed = Activations::values(pass.rows() * normed);
        best_columns_activations(pass, self.config.heads, self.config.head_dim).and(normed)
    }
}

/// What [`best_columns`] holds at most, with the queries and weights that it takes.
pub(super) fn best_columns_activations(
    pass: &PassShape,
    heads: usize,
    head_dim: usize,
) -> Activations {
    let columns = pass.visible();
    let step = (PRODUCTS_AT_ONCE / (heads * columns)).clamp(1, pass.tokens() as usize);
    // Queries and their copy; weights and theirs; keys; products; columns, scores, and both
    // together as they are collected.
    let of_rows = pass.rows() * (2 * heads * head_dim + 2 * heads) as u64;
    let of_columns = columns * (head_dim + step * heads + 2 + 1 + 4);
    Activations::values(of_rows + of_columns as u64)
}

/// Which `top_k` columns each token looks at of those that it `sees`, a row of which is less than
/// one of a later token: those of the greatest sums over heads of `weight · max(q · k, 0)`. Queries
/// are `[batch, tokens, heads, head_dim]`, weights `[batch, tokens, heads]`; keys are what there is
/// of a column from element `first` on.
pub(super) fn best_columns(
    queries: Tensor<4>,
    weights: Tensor<3>,
    seen: &Seen,
    first: usize,
    top_k: usize,
    sees: impl Fn(usize, usize) -> Range<usize>,
) -> ChosenTokens {
    let [batch, tokens, heads, head_dim] = queries.dims();
    let weights = fetched(weights);
    let weights = values(&weights);
    let mut chosen = ChosenTokens::all(batch, tokens);
    for row in 0..batch {
        // Of consecutive tokens none sees fewer.
        let Some(from) = (0..tokens).find(|token| sees(row, *token).len() > top_k) else {
            continue;
        };
        let keys: Vec<Tensor<2>> = (seen.parts.iter())
            .map(|part| {
                let keys = part.keys.clone().narrow(0, row, 1).narrow(2, 0, part.len);
                keys.narrow(3, first, head_dim).reshape([part.len, head_dim])
            })
            .collect();
        let columns: Vec<usize> = (seen.parts.iter())
            .flat_map(|part| (0..part.len).map(|place| part.column(place)))
            .collect();
        let step = (PRODUCTS_AT_ONCE / (heads * columns.len())).max(1);
        for start in (from..tokens).step_by(step) {
            let count = step.min(tokens - start);
            let queries = queries.clone().narrow(0, row, 1).narrow(1, start, count);
            let queries = queries.reshape([count * heads, head_dim]);
            let products = keys.iter().map(|keys| {
                let queries = queries.clone().to_device(&keys.device());
                fetched(linear_with(ActivationDtype::F32, queries, keys.clone()))
            });
            let products: Vec<TensorData> = products.collect();
            for token in start..start + count {
                let weights = &weights[(row * tokens + token) * heads..][..heads];
                let mut scores = Vec::with_capacity(columns.len());
                for products in products.iter().map(values) {
                    let width = products.len() / (count * heads);
                    let products = &products[(token - start) * heads * width..];
                    scores.extend(weighted(weights, products, width));
                }
                let visible = sees(row, token);
                let scores = columns.iter().zip(scores);
                let scores = scores.filter(|(column, _)| visible.contains(column));
                let scores = scores.map(|(column, score)| (*column as u32, score));
                chosen.set(row, token, best(scores.collect(), top_k));
            }
        }
    }
    chosen
}

pub(super) fn fetched<const D: usize>(x: Tensor<D>) -> TensorData {
    x.cast(DType::F32).into_data()
}

/// What was fetched, where it is.
pub(super) fn values(data: &TensorData) -> &[f32] {
    data.as_slice().expect("they are f32")
}

/// Of `width` columns, the sums over heads: `products` has a row for each head.
fn weighted(weights: &[f32], products: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0; width];
    for (weight, products) in weights.iter().zip(products.chunks_exact(width.max(1))) {
        for (sum, product) in sums.iter_mut().zip(products) {
            *sum += weight * product.max(0.0);
        }
    }
    sums
}

/// The columns of the greatest scores, in ascending order; of equals the first.
fn best(mut scores: Vec<(u32, f32)>, count: usize) -> Box<[u32]> {
    let order =
        |one: &(u32, f32), other: &(u32, f32)| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0));
    if count < scores.len() {
        scores.select_nth_unstable_by(count, order);
        scores.truncate(count);
    }
    scores.sort_unstable_by_key(|(column, _)| *column);
    // In memory of their own: that of all scores is larger.
    scores.iter().map(|(column, _)| *column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_scores_are_chosen_and_of_equals_the_first() {
        let scores = |values: &[f32]| (0..).zip(values.iter().copied()).collect::<Vec<_>>();
        let values = [0.5, 0.0, 2.0, 0.0, -1.0, 2.0, 0.0];
        assert_eq!(best(scores(&values), 2)[..], [2, 5]);
        assert_eq!(best(scores(&values), 4)[..], [0, 1, 2, 5]);
        assert_eq!(best(scores(&values), 6)[..], [0, 1, 2, 3, 5, 6]);
        assert_eq!(best(scores(&values), 7)[..], [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(best(scores(&values), 9)[..], [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn heads_add_what_is_above_zero() {
        let products = [1.0, -2.0, 3.0, 4.0, 5.0, -6.0];
        assert_eq!(weighted(&[2.0, -1.0], &products, 3), [2.0 - 4.0, -5.0, 6.0]);
        assert_eq!(weighted(&[2.0], &[], 0), [0.0; 0]);
    }
}
