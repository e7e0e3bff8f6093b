//! The backward pass of attention.
//!
//! Scores and their softmax are computed again, for some rows of queries at a time, so that no more
//! than [`SCORES`] of them exist for each thread.

use std::cell::Cell;
use std::ops::Range;

use crate::ActivationDtype::F32;
use crate::Isa;
use crate::attention::{AttentionMask, AttentionShape};
use crate::exp::exp;
use crate::loops::share;
use crate::matmul::{OutputPtr, Scratch, Size, Strided, add_product};
use crate::simd::for_each_isa;

/// Scores that exist at a time, about, of each thread: they stay in the second-level cache.
const SCORES: usize = 32 << 10;

/// Rows of queries that are taken together at least: keys and values are packed for each of them.
const LEAST: usize = 16;

thread_local! {
    static WEIGHTS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    static SLOPES: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Where the gradients of attention go.
#[derive(Debug)]
pub struct AttentionGradients<'a> {
    /// `[batch, tokens, heads, width]`.
    pub queries: &'a mut [f32],
    /// `[batch, columns, key_heads, width]`.
    pub keys: &'a mut [f32],
    /// As those of keys.
    pub values: &'a mut [f32],
}

/// What attention was of: its queries `[batch, tokens, heads, width]`, and keys and values
/// `[batch, columns, key_heads, width]`, column `c` being at place `c`.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOperands<'a> {
    /// Of each token.
    pub queries: &'a [f32],
    /// Of each column.
    pub keys: &'a [f32],
    /// As the keys.
    pub values: &'a [f32],
    /// Sizes.
    pub shape: AttentionShape,
    /// Places of keys and values of each sequence.
    pub columns: usize,
    /// What each token sees.
    pub mask: &'a AttentionMask,
    /// What scores are multiplied by; `1 / √width` if there is none.
    pub scale: Option<f32>,
}

/// Writes the gradients of queries, keys and values, given the gradient `dy [batch, tokens, heads,
/// width]` of what [`attend_into`](crate::attention::attend_into) makes of them.
///
/// # Panics
///
/// If sizes do not fit each other, if a column that a token sees is not held, if there are relative
/// biases, soft caps or sinks, or if this processor does not have `isa`.
pub fn attention_gradients_into(
    isa: Isa,
    operands: AttentionOperands<'_>,
    dy: &[f32],
    gradients: AttentionGradients<'_>,
) {
    let AttentionOperands { queries, keys, values, shape, columns, mask, .. } = operands;
    let AttentionShape { batch, tokens, heads, key_heads, width } = shape;
    let (of_queries, of_keys) =
        (batch * tokens * heads * width, batch * columns * key_heads * width);
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    assert!(
        [queries.len(), dy.len(), gradients.queries.len()] == [of_queries; 3],
        "queries must fill {shape:?}"
    );
    assert!(
        [keys.len(), values.len(), gradients.keys.len(), gradients.values.len()] == [of_keys; 4],
        "keys and values of {columns} columns must fill {shape:?}"
    );
    assert!(key_heads > 0 && heads.is_multiple_of(key_heads), "heads of {shape:?}");
    assert!(mask.padding.len() == batch, "each sequence has a padding");
    assert!(
        mask.softcap.is_none() && mask.relative_bias.is_none() && mask.sinks.is_none(),
        "soft caps, relative biases and sinks have no backward pass"
    );
    if of_queries == 0 {
        return;
    }
    let seen = |sequence| mask.columns(sequence, tokens - 1).end;
    assert!((0..batch).all(|sequence| seen(sequence) <= columns), "what is seen must be held");
    gradients.queries.fill(0.0);
    gradients.keys.fill(0.0);
    gradients.values.fill(0.0);
    let [queries, keys, values] = [gradients.queries, gradients.keys, gradients.values]
        .map(|gradient| OutputPtr(gradient.as_mut_ptr()));
    share(0..batch * key_heads, |index| {
        let (sequence, head) = (index / key_heads, index % key_heads);
        let heads = heads / key_heads;
        for query_head in head * heads..(head + 1) * heads {
            // SAFETY: the gradients have the sizes that were asserted, and are borrowed until
            // `share` returns. Those of a sequence and a head of keys, and of its heads of queries,
            // are written by this call alone.
            unsafe {
                let task = Task { operands, dy, sequence, query_head, head };
                task.add_to(isa, [&queries, &keys, &values]);
            }
        }
    });
}

/// A head of queries of a sequence, and their head of keys.
struct Task<'a> {
    operands: AttentionOperands<'a>,
    dy: &'a [f32],
    sequence: usize,
    query_head: usize,
    head: usize,
}

impl Task<'_> {
    /// Adds the gradients of a head.
    ///
    /// # Safety
    ///
    /// They point to as many elements as [`attention_gradients_into`] says, of which those of this
    /// sequence and of these heads are read and written by nobody else meanwhile.
    unsafe fn add_to(&self, isa: Isa, [dq, dk, dv]: [&OutputPtr; 3]) {
        let AttentionOperands { queries, keys, values, shape, columns, mask, scale } =
            self.operands;
        let AttentionShape { tokens, heads, key_heads, width, .. } = shape;
        let scale = scale.unwrap_or_else(|| (width as f32).sqrt().recip());
        let (q_row, k_row) = (heads * width, key_heads * width);
        let at_query =
            |token: usize| (self.sequence * tokens + token) * q_row + self.query_head * width;
        let at_key = |column: usize| (self.sequence * columns + column) * k_row + self.head * width;
        let step = (SCORES / columns.max(1)).clamp(LEAST, tokens.max(LEAST));
        for first in (0..tokens).step_by(step) {
            let some = first..tokens.min(first + step);
            let rows = some.len();
            let seen = mask.columns(self.sequence, first).start
                ..mask.columns(self.sequence, some.end - 1).end;
            if seen.is_empty() {
                continue;
            }
            let count = seen.len();
            let mut weights = Scratch::new(rows * count, &WEIGHTS);
            let mut slopes = Scratch::new(rows * count, &SLOPES);
            weights.fill(0.0);
            slopes.fill(0.0);
            let q = Strided::rows(&queries[at_query(first)..], q_row);
            let dy = Strided::rows(&self.dy[at_query(first)..], q_row);
            let k = Strided::rows(&keys[at_key(seen.start)..], k_row);
            let v = Strided::rows(&values[at_key(seen.start)..], k_row);
            let scored = Size { m: rows, n: count, k: width };
            let summed = Size { m: rows, n: width, k: count };
            let spread = Size { m: count, n: width, k: rows };
            // SAFETY: the scratch has as many elements; gradients as the caller promises.
            unsafe {
                add_product(isa, F32, q, k.transposed(), (weights.as_mut_ptr(), count), scored);
                add_product(isa, F32, dy, v.transposed(), (slopes.as_mut_ptr(), count), scored);
                for (row, token) in some.enumerate() {
                    let sees = mask.columns(self.sequence, token);
                    let sees = sees.start.max(seen.start)..sees.end.max(sees.start);
                    let range = row * count..(row + 1) * count;
                    let (weights, slopes) = (&mut weights[range.clone()], &mut slopes[range]);
                    self.bias(token, &seen, &sees, scale, weights);
                    let sees = sees.start - seen.start..sees.end.max(seen.start) - seen.start;
                    softmax_gradient(isa, weights, slopes, sees, scale);
                }
                let (p, ds) = (Strided::rows(&weights, count), Strided::rows(&slopes, count));
                let to = |gradient: &OutputPtr, at: usize| gradient.column(at);
                add_product(isa, F32, ds, k, (to(dq, at_query(first)), q_row), summed);
                add_product(
                    isa,
                    F32,
                    ds.transposed(),
                    q,
                    (to(dk, at_key(seen.start)), k_row),
                    spread,
                );
                add_product(
                    isa,
                    F32,
                    p.transposed(),
                    dy,
                    (to(dv, at_key(seen.start)), k_row),
                    spread,
                );
            }
        }
    }

    /// Scales the scores of a token, and adds its biases.
    fn bias(
        &self,
        token: usize,
        seen: &Range<usize>,
        sees: &Range<usize>,
        scale: f32,
        scores: &mut [f32],
    ) {
        let Some(alibi) = &self.operands.mask.alibi else {
            return scores.iter_mut().for_each(|score| *score *= scale);
        };
        let padding = self.operands.mask.padding[self.sequence];
        let query = (self.operands.mask.start + token).saturating_sub(padding);
        for (score, column) in scores.iter_mut().zip(seen.clone()) {
            if sees.contains(&column) {
                let bias = alibi.bias(self.query_head, query, column - padding, scale);
                *score = *score * scale + bias;
            }
        }
    }
}

for_each_isa! {
    /// Makes weights of a row's scores, and the gradients of the scores before they are scaled of
    /// those of the weights. What is not seen gets zero.
    fn softmax_gradient(weights: &mut [f32], slopes: &mut [f32], sees: Range<usize>, scale: f32) {
        const LANES: usize = 16;
        weights[..sees.start].fill(0.0);
        weights[sees.end..].fill(0.0);
        slopes[..sees.start].fill(0.0);
        slopes[sees.end..].fill(0.0);
        let (weights, slopes) = (&mut weights[sees.clone()], &mut slopes[sees]);
        let (vectors, rest) = weights.as_chunks::<LANES>();
        let mut largest = [f32::NEG_INFINITY; LANES];
        for vector in vectors {
            for (largest, x) in largest.iter_mut().zip(vector) {
                *largest = if *x > *largest { *x } else { *largest };
            }
        }
        let largest = largest.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        for weight in weights.iter_mut() {
            *weight = exp(*weight - largest);
        }
        // Both sums in lanes: of the weights, and of the weights times the gradients.
        let mut sums = [[0.0f32; LANES]; 2];
        for (weights, slopes) in weights.chunks(LANES).zip(slopes.chunks(LANES)) {
            for (lane, (weight, slope)) in weights.iter().zip(slopes).enumerate() {
                sums[0][lane] += weight;
                sums[1][lane] += weight * slope;
            }
        }
        let [sum, along] = sums.map(|sums| sums.iter().sum::<f32>());
        let by = 1.0 / sum;
        let along = along * by;
        for (weight, slope) in weights.iter_mut().zip(slopes) {
            *weight *= by;
            *slope = *weight * (*slope - along) * scale;
        }
    }
}
