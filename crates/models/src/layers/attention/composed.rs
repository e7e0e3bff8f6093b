//! Attention composed of Burn's own operations, for devices other than Flex and for training
//! through a cache.

use std::ops::Range;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, activation::softmax};

use outsize_kernels::{attend_tokens, is_gpu};

use super::query_positions::QueryPositions;
use super::scores::Scores;
use crate::kv_cache::{Part, Seen};
use crate::layers::tanh;

/// Bound on a tensor of attention scores, in bytes, where attention is composed of a device's own
/// operations: queries are processed in chunks that stay below it. A single query whose scores
/// alone are larger (`batch · heads · context · 4` bytes) makes a chunk of its own. On the CPU
/// there is no such tensor.
pub const SCORE_BYTES: usize = 8 << 20;

/// Bound on the keys, and on the values, that are widened to f32 at once where the cache holds a
/// narrower type, in bytes.
const WIDEN_BYTES: usize = 1 << 20;

/// As [`attend_seen`](super::attend_seen), on any device.
pub(super) fn attend(
    queries: Tensor<4>,
    seen: &Seen,
    positions: &QueryPositions<'_>,
    scores: Scores<'_>,
) -> Tensor<3> {
    let [batch, tokens, heads, width] = queries.dims();
    let length = seen.parts.iter().map(|part| part.len).sum();
    let chunk = chunk_tokens(batch * heads, length);
    if tokens <= chunk {
        return attend_chunk(queries, seen, positions, scores);
    }
    let width = heads * width;
    let mut mixed = Tensor::zeros([batch, tokens, width], (&queries.device(), DType::F32));
    for first in (0..tokens).step_by(chunk) {
        let count = chunk.min(tokens - first);
        let positions = QueryPositions { start: positions.start + first, ..*positions };
        let part = attend_chunk(queries.clone().narrow(1, first, count), seen, &positions, scores);
        mixed = mixed.slice_assign([0..batch, first..first + count, 0..width], part);
    }
    mixed
}

/// The same with all scores at once.
fn attend_chunk(
    queries: Tensor<4>,
    seen: &Seen,
    positions: &QueryPositions<'_>,
    Scores { scale, softcap, bias: added, sinks, .. }: Scores<'_>,
) -> Tensor<3> {
    let [batch, tokens, heads, width] = queries.dims();
    let scale = scale.unwrap_or_else(|| (width as f64).powf(-0.5));
    let key_heads = seen.parts[0].keys.dims()[1];
    let pieces = pieces(seen, positions, tokens);
    let columns: Vec<usize> = (pieces.iter())
        .flat_map(|(part, places)| places.clone().map(|place| part.column(place)))
        .collect();
    let device = queries.device();
    let added = added.map(|bias| bias.tensor(positions.start, tokens, &columns, &device));
    let masked = bias(&columns, seen, positions, tokens, (heads, scale as f32), &device);
    if is_gpu(&device)
        && let [(part, places)] = &pieces[..]
    {
        let parts = [&part.keys, &part.values]
            .map(|stored| stored.clone().narrow(2, places.start, places.len()));
        let bias = match (&added, &masked) {
            (Some(added), Some(masked)) => Some(added.clone() + masked.clone()),
            (one, other) => one.clone().or_else(|| other.clone()),
        };
        let how = (scale as f32, softcap.map(|cap| cap as f32));
        let sinks = sinks.map(|sinks| sinks.clone().to_device(&device));
        let mixed = attend_tokens(&queries, parts.each_ref(), bias.as_ref(), sinks.as_ref(), how);
        if let Some(mixed) = mixed {
            return mixed;
        }
    }
    // The queries that share a key head lie one behind the other: one product per key head, no
    // copies of keys.
    let rows = heads / key_heads * tokens;
    let grouped = queries.swap_dims(1, 2).reshape([batch, key_heads, rows, width]) * scale;
    let mut scores: Vec<_> = pieces
        .iter()
        .map(|(part, places)| {
            let keys = widened(&part.keys, places);
            grouped.clone().matmul(keys.swap_dims(2, 3))
        })
        .collect();
    drop(grouped);
    let mut scores = match scores.len() {
        1 => scores.remove(0),
        _ => Tensor::cat(scores, 3),
    };
    if let Some(cap) = softcap {
        scores = tanh(scores * (1.0 / cap)) * cap;
    }
    for bias in [added, masked].into_iter().flatten() {
        let dims = scores.dims();
        scores = (scores.reshape([batch, heads, tokens, dims[3]]) + bias).reshape(dims);
    }
    let weights = match sinks {
        Some(sinks) => softmax_with(scores, sinks, [batch, heads, tokens]),
        None => softmax(scores, 3),
    };
    let mut from = 0;
    let mixed = pieces.iter().map(|(part, places)| {
        let weights = weights.clone().narrow(3, from, places.len());
        from += places.len();
        weights.matmul(widened(&part.values, places))
    });
    // A token sees itself, so there is at least one piece.
    let mixed = mixed.reduce(|sum, mixed| sum + mixed).expect("a pass has tokens");
    mixed.reshape([batch, heads, tokens, width]).swap_dims(1, 2).reshape([
        batch,
        tokens,
        heads * width,
    ])
}

/// The softmax of scores `[batch, key_heads, rows, columns]`, of which the sink of each head takes
/// a share.
fn softmax_with(
    scores: Tensor<4>,
    sinks: &Tensor<1>,
    [batch, heads, tokens]: [usize; 3],
) -> Tensor<4> {
    let dims = scores.dims();
    let sinks = sinks.clone().to_device(&scores.device()).reshape([1, heads, 1, 1]);
    let all =
        [scores.reshape([batch, heads, tokens, dims[3]]), sinks.expand([batch, heads, tokens, 1])];
    softmax(Tensor::cat(all.into(), 3), 3).narrow(3, 0, dims[3]).reshape(dims)
}

/// What `tokens` tokens may see, in pieces of which the f32 values are of a bounded size.
fn pieces<'a>(
    seen: &'a Seen,
    positions: &QueryPositions<'_>,
    tokens: usize,
) -> Vec<(&'a Part, Range<usize>)> {
    let (oldest, newest) = match seen.all {
        true => (0, usize::MAX - 1),
        false => ((positions.start + 1).saturating_sub(seen.window), positions.start + tokens - 1),
    };
    let near = |group: &&Range<usize>| (group.start..group.end).contains(&newest);
    let newest = positions.groups.iter().find(near).map_or(newest, |group| group.end - 1);
    let mut pieces = Vec::with_capacity(seen.parts.len());
    for part in &seen.parts {
        let Range { start, end } = part.places(oldest, newest);
        let [batch, heads, _, width] = part.keys.dims();
        let step = match part.keys.dtype() {
            DType::F32 => usize::MAX,
            _ => (WIDEN_BYTES / (batch * heads * width * size_of::<f32>())).max(1),
        };
        let mut at = start;
        while at < end {
            let next = end.min(at.saturating_add(step));
            pieces.push((part, at..next));
            at = next;
        }
    }
    pieces
}

/// Keys or values at some places, in f32: `[batch, heads, capacity, width]` to
/// `[batch, heads, places, width]`.
fn widened(stored: &Tensor<4>, places: &Range<usize>) -> Tensor<4> {
    if stored.dtype() == DType::F32 {
        return stored.clone().narrow(2, places.start, places.len());
    }
    if is_gpu(&stored.device()) {
        return stored.clone().narrow(2, places.start, places.len()).cast(DType::F32);
    }
    // Rows of a table are widened in one step by vector instructions; a cast of a view would copy
    // it first.
    let [batch, heads, capacity, width] = stored.dims();
    let rows = (0..batch * heads)
        .flat_map(|head| places.clone().map(move |place| (head * capacity + place) as i64));
    let ids = TensorData::new(rows.collect(), [batch * heads * places.len()]);
    let ids = Tensor::<1, Int>::from_data(ids, (&stored.device(), DType::I64));
    let table = stored.clone().reshape([batch * heads * capacity, width]);
    outsize_kernels::embedding(table, ids).reshape([batch, heads, places.len(), width])
}

/// How many queries are scored at once against `length` keys; `heads` counts those of all texts.
pub(super) fn chunk_tokens(heads: usize, length: usize) -> usize {
    (SCORE_BYTES / (heads * length * size_of::<f32>())).max(1)
}

/// `[1 or batch, 1 or heads, tokens, length]`: what is added where a token may look, minus infinity
/// elsewhere; `None` if all may look anywhere and nothing is added.
fn bias(
    columns: &[usize],
    seen: &Seen,
    positions: &QueryPositions<'_>,
    tokens: usize,
    (heads, scale): (usize, f32),
    device: &Device,
) -> Option<Tensor<4>> {
    let heads = if positions.alibi.is_some() { heads } else { 1 };
    // Texts without padding see the same.
    let differ =
        positions.padding.iter().any(|&padding| padding > 0) || !positions.lengths.is_empty();
    let rows = match differ {
        true => positions.padding,
        false => &positions.padding[..1],
    };
    let lengths = positions.lengths.iter().copied().chain(std::iter::repeat(usize::MAX));
    let rows_and_lengths = rows.iter().zip(lengths);
    let mut bias = Vec::with_capacity(rows.len() * heads * tokens * columns.len());
    for ((&padding, length), head) in
        rows_and_lengths.flat_map(|row| (0..heads).map(move |head| (row, head)))
    {
        for query in positions.start..positions.start + tokens {
            // Padding looks at padding: what it computes is not used, but must be finite.
            let padding = if query < padding && !seen.all { 0 } else { padding };
            bias.extend(columns.iter().map(|&key| {
                let same_chunk = || {
                    let first = |column: usize| column.saturating_sub(padding);
                    seen.chunk.is_none_or(|chunk| first(key) / chunk == first(query) / chunk)
                };
                let together = || {
                    let both =
                        |group: &Range<usize>| group.contains(&query) && group.contains(&key);
                    positions.groups.iter().any(both)
                };
                let before = || key <= query || together();
                let within = seen.all
                    || (before() && query.saturating_sub(key) < seen.window && same_chunk());
                match positions.alibi {
                    _ if !within || key < padding || key >= length => f32::NEG_INFINITY,
                    Some(alibi) => {
                        alibi.bias(head, query.saturating_sub(padding), key - padding, scale)
                    }
                    None => 0.0,
                }
            }));
        }
    }
    if bias.iter().all(|&bias| bias == 0.0) {
        return None;
    }
    let shape = [rows.len(), heads, tokens, columns.len()];
    Some(Tensor::from_data(TensorData::new(bias, shape), (device, DType::F32)))
}
