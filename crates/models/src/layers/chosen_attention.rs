//! Attention that sees chosen tokens alone.

use std::ops::Range;

use burn::tensor::{Int, Tensor, TensorData};
use outsize_kernels::index_dtype;

use super::attention::query_positions::QueryPositions;
use super::attention::scores::Scores;
use super::attention::seen::attend_seen;
use crate::chosen_tokens::ChosenTokens;
use crate::kv_cache::{Part, Seen};
use crate::{Activations, PassShape};

/// Attention of queries `[batch, tokens, heads, width]` of tokens from `first` on over the keys and
/// values that they see, of which the first `width` elements count; gives
/// `[batch, tokens, heads · width]`.
pub(super) fn attend_chosen(
    chosen: &ChosenTokens,
    queries: Tensor<4>,
    first: usize,
    seen: &Seen,
    positions: &QueryPositions<'_>,
    scores: Scores<'_>,
) -> Tensor<3> {
    let [batch, tokens, _, width] = queries.dims();
    let rows = (0..batch).map(|row| {
        let queries = queries.clone().narrow(0, row, 1);
        let columns = chosen.of(row, first, tokens);
        // Those that see all come first.
        let all = columns.iter().take_while(|columns| columns.is_none()).count();
        let mut mixed = Vec::with_capacity(1 + tokens - all);
        if all > 0 {
            let padding = &positions.padding[row..row + 1];
            let start = positions.start + first;
            let positions = QueryPositions { start, padding, ..*positions };
            let queries = queries.clone().narrow(1, 0, all);
            mixed.push(attend_seen(
                queries,
                &seen.narrowed(row..row + 1, width),
                &positions,
                scores,
            ));
        }
        for (token, columns) in (all..).zip(columns[all..].iter().flatten()) {
            let kept = gathered(seen, [row, 0], |part| &part.keys, columns).narrow(3, 0, width);
            let seen = Seen::whole(Part::of(kept.clone(), kept));
            let positions = QueryPositions { padding: &[0], ..Default::default() };
            let query = queries.clone().narrow(1, token, 1);
            mixed.push(attend_seen(query, &seen, &positions, scores));
        }
        Tensor::cat(mixed, 1)
    });
    Tensor::cat(rows.collect(), 0)
}

/// What attention over chosen tokens holds more than over all, if the cache has `kept` values of a
/// token and so many queries of each sequence are made at a time.
pub(super) fn chosen_activations(
    pass: &PassShape,
    queries: usize,
    kept: usize,
    top_k: usize,
) -> Activations {
    let batch = pass.rows() / pass.tokens().max(1);
    // What is chosen; what is gathered, with its part; what comes of each token, beside all of
    // them.
    let chosen = pass.rows() * (top_k + 4) as u64;
    let gathered = (2 * top_k * kept) as u64;
    let mixed = batch * 2 * (queries * kept) as u64;
    Activations::values(chosen + gathered + mixed)
}

impl QueryPositions<'_> {
    /// The columns that a token may see in a window.
    pub(super) fn columns(&self, row: usize, token: usize, window: usize) -> Range<usize> {
        let end = self.start + token + 1;
        self.padding[row].max(end.saturating_sub(window)).min(end)..end
    }

    /// The most columns that a token of the pass may see.
    pub(super) fn most_columns(&self, tokens: usize, window: usize) -> usize {
        let rows = 0..self.padding.len();
        rows.map(|row| self.columns(row, tokens - 1, window).len()).max().unwrap_or(0)
    }
}

impl Seen {
    /// The same of some sequences, of keys and values of which the first `width` elements count.
    pub(super) fn narrowed(&self, rows: Range<usize>, width: usize) -> Self {
        self.of(|x| x.clone().narrow(0, rows.start, rows.len()).narrow(3, 0, width))
    }

    /// The same of some sequences.
    pub(super) fn of_rows(&self, rows: Range<usize>) -> Self {
        self.of(|x| x.clone().narrow(0, rows.start, rows.len()))
    }

    /// The same of some heads.
    pub(super) fn of_heads(&self, heads: Range<usize>) -> Self {
        self.of(|x| x.clone().narrow(1, heads.start, heads.len()))
    }

    fn of(&self, narrow: impl Fn(&Tensor<4>) -> Tensor<4>) -> Self {
        let part = |part: &Part| part.like(narrow(&part.keys), narrow(&part.values));
        Self { parts: self.parts.iter().map(part).collect(), held_back: None, ..*self }
    }
}

/// What is held, as keys or values, of some columns of a sequence for a head, in this order:
/// `[1, 1, columns, width]`.
pub(crate) fn gathered(
    seen: &Seen,
    [row, head]: [usize; 2],
    held: fn(&Part) -> &Tensor<4>,
    columns: &[u32],
) -> Tensor<4> {
    let parts = seen.parts.iter().filter_map(|part| {
        let held = held(part);
        let [batch, heads, capacity, width] = held.dims();
        let places: Vec<i64> = (columns.iter())
            .filter_map(|column| part.place(*column as usize))
            .map(|place| ((row * heads + head) * capacity + place) as i64)
            .collect();
        (!places.is_empty()).then(|| {
            let count = places.len();
            let places = TensorData::new(places, [count]);
            let device = held.device();
            let places: Tensor<1, Int> = Tensor::from_data(places, (&device, index_dtype(&device)));
            // As rows of one matrix, so that nothing but these is copied.
            let rows = held.clone().reshape([batch * heads * capacity, width]);
            rows.select(0, places).reshape([1, 1, count, width])
        })
    });
    let mut parts: Vec<_> = parts.collect();
    match parts.len() {
        1 => parts.remove(0),
        _ => Tensor::cat(parts, 2),
    }
}
