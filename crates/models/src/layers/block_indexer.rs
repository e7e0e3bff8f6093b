//! The layer that chooses the blocks of tokens which attention sees.

use std::ops::Range;

use burn::module::Module;
use burn::tensor::{DType, Tensor, TensorData};
use outsize_kernels::{ActivationDtype, linear_with};

use super::attention::query_positions::QueryPositions;
use super::attention::scores::Scores;
use super::attention::seen::attend_seen;
use super::chosen_attention::gathered;
use super::indexer::{PRODUCTS_AT_ONCE, fetched, values};
use super::{Linear, RmsNorm, Rotation, rotated};
use crate::kv_cache::{Part, Seen};
use crate::{Activations, Init, PassShape};

/// The sizes of a [`BlockIndexer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockIndexerConfig {
    /// Heads of queries, as many as attention has of keys; all share one of keys.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens of a block.
    pub block: usize,
    /// Blocks that a token sees at most.
    pub top_k: usize,
    /// Blocks of these that are the last ones, the token's own included.
    pub local: usize,
}

/// What chooses the blocks of tokens that the heads of each head of keys see, in MiniMax-M3: those
/// with the greatest products of a query and a key. Its products are of f32 activations, as an
/// [`Indexer`](super::Indexer)'s.
#[derive(Module, Debug)]
pub struct BlockIndexer {
    /// `[heads · head_dim, hidden]`.
    pub q_proj: Linear,
    /// `[head_dim, hidden]`.
    pub k_proj: Linear,
    /// `[head_dim]`.
    pub q_norm: RmsNorm,
    /// `[head_dim]`.
    pub k_norm: RmsNorm,
    #[module(skip)]
    config: BlockIndexerConfig,
}

impl BlockIndexer {
    /// A layer without storage.
    pub fn new(
        hidden: usize,
        config: BlockIndexerConfig,
        [q_norm, k_norm]: [RmsNorm; 2],
        init: &Init,
    ) -> Self {
        let BlockIndexerConfig { heads, head_dim, .. } = config;
        let init = &Init { compute: ActivationDtype::F32, ..init.clone() };
        let linear = |outputs| Linear::new(hidden, outputs, false, init);
        Self { q_proj: linear(heads * head_dim), k_proj: linear(head_dim), q_norm, k_norm, config }
    }

    /// Keys and values `[batch, tokens, key_value_heads, width]` with one more head, which is its
    /// own: as wide as the others, and without values.
    pub(super) fn beside(
        &self,
        x: Tensor<3>,
        rotation: Option<&Rotation>,
        [keys, values]: [Tensor<4>; 2],
    ) -> [Tensor<4>; 2] {
        let [batch, tokens, _, width] = keys.dims();
        let head_dim = self.config.head_dim;
        let own = self.k_proj.forward(x).reshape([batch, tokens, 1, head_dim]);
        let own = rotated(rotation, self.k_norm.forward(own)).detach();
        let zeros = |count| Tensor::zeros([batch, tokens, 1, count], (&own.device(), DType::F32));
        let filled = match width - head_dim {
            0 => own.clone(),
            missing => Tensor::cat(vec![own.clone(), zeros(missing)], 3),
        };
        [Tensor::cat(vec![keys, filled], 2), Tensor::cat(vec![values, zeros(width)], 2)]
    }

    /// Attention of queries `[batch, tokens, heads, width]` over the chosen blocks of what is seen,
    /// whose last head is the indexer's: `[batch, tokens, heads · width]`. `x` is what the layer
    /// takes.
    pub(super) fn attend(
        &self,
        (x, queries): (Tensor<3>, Tensor<4>),
        rotation: Option<&Rotation>,
        seen: &Seen,
        positions: &QueryPositions<'_>,
        scores: Scores<'_>,
    ) -> Tensor<3> {
        let BlockIndexerConfig { heads, head_dim, .. } = self.config;
        let [batch, tokens, ..] = queries.dims();
        let visible = seen.of_heads(0..heads);
        if !(0..batch).any(|row| self.first_choice(row, 0..tokens, seen, positions).is_some()) {
            return attend_seen(queries, &visible, positions, scores);
        }
        let own = self.q_proj.forward(x).reshape([batch, tokens, heads, head_dim]);
        let own = rotated(rotation, self.q_norm.forward(own)).detach();
        let rows = (0..batch).map(|row| {
            let of_row = |x: &Tensor<4>| x.clone().narrow(0, row, 1);
            let (queries, own) = (of_row(&queries), of_row(&own));
            let of_batch = visible.of_rows(row..row + 1);
            let mut mixed = Vec::new();
            let mut token = 0;
            while token < tokens {
                let end = self.first_choice(row, token..tokens, seen, positions);
                let end = end.unwrap_or(tokens);
                if end > token {
                    let padding = &positions.padding[row..row + 1];
                    let start = positions.start + token;
                    let positions = QueryPositions { start, padding, ..*positions };
                    let queries = queries.clone().narrow(1, token, end - token);
                    mixed.push(attend_seen(queries, &of_batch, &positions, scores));
                }
                token = end;
                let choosing = (token..tokens)
                    .take_while(|token| self.chooses(row, *token, seen, positions))
                    .count();
                let choosing = token..token + choosing;
                token = choosing.end;
                self.attend_chosen(
                    row,
                    choosing,
                    (&own, &queries),
                    seen,
                    positions,
                    scores,
                    &mut mixed,
                );
            }
            Tensor::cat(mixed, 1)
        });
        Tensor::cat(rows.collect(), 0)
    }

    /// Adds what some consecutive tokens of a sequence see, each of which sees less than it might.
    #[allow(clippy::too_many_arguments, reason = "what attention takes")]
    fn attend_chosen(
        &self,
        row: usize,
        tokens: Range<usize>,
        (own, queries): (&Tensor<4>, &Tensor<4>),
        seen: &Seen,
        positions: &QueryPositions<'_>,
        scores: Scores<'_>,
        mixed: &mut Vec<Tensor<3>>,
    ) {
        let BlockIndexerConfig { heads, head_dim, .. } = self.config;
        let [_, _, all, width] = queries.dims();
        let keys: Vec<Tensor<2>> = (seen.parts.iter())
            .map(|part| {
                let keys = part.keys.clone().narrow(0, row, 1).narrow(1, heads, 1);
                keys.narrow(2, 0, part.len).narrow(3, 0, head_dim).reshape([part.len, head_dim])
            })
            .collect();
        let columns: Vec<usize> = (seen.parts.iter())
            .flat_map(|part| (0..part.len).map(|place| part.column(place)))
            .collect();
        let step = (PRODUCTS_AT_ONCE / (heads * columns.len()).max(1)).max(1);
        for start in tokens.clone().step_by(step) {
            let count = step.min(tokens.end - start);
            let own = own.clone().narrow(1, start, count).reshape([count * heads, head_dim]);
            let products = keys.iter().map(|keys| {
                let own = own.clone().to_device(&keys.device());
                fetched(linear_with(ActivationDtype::F32, own, keys.clone()))
            });
            let products: Vec<TensorData> = products.collect();
            for token in start..start + count {
                let of_heads = (0..heads).map(|head| {
                    let mut of_columns = Vec::with_capacity(columns.len());
                    for products in products.iter().map(values) {
                        let width = products.len() / (count * heads);
                        let first = ((token - start) * heads + head) * width;
                        of_columns.extend(&products[first..first + width]);
                    }
                    let visible = positions.columns(row, token, seen.window);
                    let padding = positions.padding[row];
                    let chosen = self.choose(&columns, &of_columns, visible, padding);
                    let kept =
                        |of: fn(&Part) -> &Tensor<4>| gathered(seen, [row, head], of, &chosen);
                    let seen =
                        Seen::whole(Part::of(kept(|part| &part.keys), kept(|part| &part.values)));
                    let positions = QueryPositions { padding: &[0], ..Default::default() };
                    let share = all / heads;
                    let query = queries.clone().narrow(1, token, 1).narrow(2, head * share, share);
                    debug_assert_eq!(query.dims()[3], width);
                    attend_seen(query, &seen, &positions, scores)
                });
                mixed.push(Tensor::cat(of_heads.collect(), 2));
            }
        }
    }

    /// The visible columns of the best blocks, in ascending order, of columns and their products.
    fn choose(
        &self,
        columns: &[usize],
        products: &[f32],
        visible: Range<usize>,
        padding: usize,
    ) -> Vec<u32> {
        let blocks = self.blocks(&visible, padding);
        let mut best = vec![f32::NEG_INFINITY; blocks.len()];
        let block_of = |column: usize| (column - padding) / self.config.block - blocks.start;
        for (column, product) in columns.iter().zip(products) {
            if visible.contains(column) {
                let best = &mut best[block_of(*column)];
                *best = best.max(*product);
            }
        }
        let local = best.len().saturating_sub(self.config.local);
        best[local..].fill(f32::INFINITY);
        let mut order: Vec<usize> = (0..best.len()).collect();
        order.sort_by(|one, other| best[*other].total_cmp(&best[*one]));
        let mut is_chosen = vec![false; best.len()];
        order.iter().take(self.config.top_k).for_each(|block| is_chosen[*block] = true);
        visible.filter(|column| is_chosen[block_of(*column)]).map(|column| column as u32).collect()
    }

    /// The blocks that visible columns are in, counted from the first token of the sequence.
    fn blocks(&self, visible: &Range<usize>, padding: usize) -> Range<usize> {
        match visible.is_empty() {
            true => 0..0,
            false => {
                let block = |column: usize| (column - padding) / self.config.block;
                block(visible.start)..block(visible.end - 1) + 1
            }
        }
    }

    /// Whether a token sees less than it might.
    fn chooses(
        &self,
        row: usize,
        token: usize,
        seen: &Seen,
        positions: &QueryPositions<'_>,
    ) -> bool {
        let visible = positions.columns(row, token, seen.window);
        self.blocks(&visible, positions.padding[row]).len() > self.config.top_k
    }

    /// The first of some tokens that does.
    fn first_choice(
        &self,
        row: usize,
        mut tokens: Range<usize>,
        seen: &Seen,
        positions: &QueryPositions<'_>,
    ) -> Option<usize> {
        tokens.find(|token| self.chooses(row, *token, seen, positions))
    }

    /// What attention with it holds more than without, if queries have so many values of a token,
    /// in heads of `width`.
    pub(super) fn activations(
        &self,
        pass: &PassShape,
        queries: usize,
        width: usize,
    ) -> Activations {
        let BlockIndexerConfig { heads, head_dim, block, top_k, .. } = self.config;
        let hidden = self.q_proj.widths()[1];
        // What the layer takes waits; keys and values are copied with one more head.
        let kept = pass.rows() * (hidden + 2 * (heads + 1) * width) as u64;
        let columns = pass.visible();
        if columns <= block * top_k.saturating_sub(1) {
            return Activations::values(kept);
        }
        let step = (PRODUCTS_AT_ONCE / (heads * columns)).clamp(1, pass.tokens() as usize);
        // Its queries and their copy; keys, products, columns and what is made of them; what is
        // gathered for a head; and what comes of all tokens, with its copy.
        let of_rows = pass.rows() * (2 * heads * head_dim + 2 * queries) as u64;
        let of_columns = columns * (head_dim + step * heads + 2 + 2);
        let gathered = 4 * block * top_k * width;
        Activations::values(kept + of_rows + (of_columns + gathered) as u64)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn indexer(top_k: usize, local: usize) -> BlockIndexer {
        let init = &Init::new(&Device::default());
        let config = BlockIndexerConfig { heads: 1, head_dim: 2, block: 3, top_k, local };
        let norm = || RmsNorm::new(2, 1e-6, init);
        BlockIndexer::new(4, config, [norm(), norm()], init)
    }

    #[test]
    fn the_best_blocks_and_the_last_ones_are_chosen() {
        // Of a sequence that begins at column 1; the last column is not seen.
        let columns: Vec<usize> = (0..12).collect();
        let products = [9.0, 0.0, 0.0, 0.0, 1.0, 7.0, 0.0, 3.0, 3.0, 3.0, -1.0, 99.0];
        let chosen = |top_k, local| indexer(top_k, local).choose(&columns, &products, 1..11, 1);
        assert_eq!(chosen(2, 1), [4, 5, 6, 10]);
        assert_eq!(chosen(2, 2), [7, 8, 9, 10]);
        assert_eq!(chosen(2, 0), [4, 5, 6, 7, 8, 9]);
        assert_eq!(chosen(9, 1), (1..11).collect::<Vec<u32>>());
    }
}
