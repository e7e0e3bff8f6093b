//! Attention over what the tokens of a pass may see.

use burn::tensor::{DType, Tensor};
use outsize_kernels::attention::AttentionMask;
use outsize_kernels::{has_kernels, is_flex};

use super::composed;
use super::position_bias::PositionBias;
use super::query_positions::QueryPositions;
use super::scores::Scores;
use crate::kv_cache::{Part, Seen};

/// Queries `[batch, tokens, heads, head_dim]` over what they may see; gives
/// `[batch, tokens, heads · head_dim]`.
pub(in crate::layers) fn attend_seen(
    queries: Tensor<4>,
    seen: &Seen,
    positions: &QueryPositions<'_>,
    scores: Scores<'_>,
) -> Tensor<3> {
    // Attention is computed where the keys are.
    let queries = match seen.parts.first() {
        Some(part) => queries.to_device(&part.keys.device()),
        None => queries,
    };
    match seen.parts.as_slice() {
        [older @ .., newest]
            if has_kernel(&queries, older, newest, scores)
                && (positions.groups.is_empty() || is_flex(&queries.device())) =>
        {
            let [batch, tokens, heads, width] = queries.dims();
            let mask = AttentionMask {
                start: positions.start,
                end: seen.all.then_some(newest.len),
                window: seen.window,
                chunk: seen.chunk,
                padding: positions.padding.to_vec(),
                lengths: positions.lengths.to_vec(),
                groups: positions.groups.to_vec(),
                softcap: scores.softcap.map(|cap| cap as f32),
                alibi: positions.alibi.cloned(),
                relative_bias: scores.bias.map(PositionBias::values),
                sinks: scores.sinks.map(|sinks| sinks.to_data().iter::<f32>().collect()),
            };
            let older = older.first().map(Part::cached);
            outsize_kernels::attend(
                scores.compute,
                queries,
                older,
                newest.cached(),
                mask,
                scores.scale.map(|scale| scale as f32),
            )
            .reshape([batch, tokens, heads * width])
        }
        _ => composed::attend(queries, seen, positions, scores),
    }
}

/// Whether there is a kernel for it: with autodiff, for what a pass without a cache sees.
fn has_kernel(queries: &Tensor<4>, older: &[Part], newest: &Part, scores: Scores<'_>) -> bool {
    let device = queries.device();
    let alone = || {
        let ring = newest.cached().ring;
        let stored = newest.keys.dtype();
        older.is_empty() && (ring.first, ring.origin) == (0, 0) && stored == DType::F32
    };
    match is_flex(&device) {
        true => older.len() < 2,
        false => {
            let Scores { softcap, bias, sinks, .. } = scores;
            let is_plain = softcap.is_none() && bias.is_none() && sinks.is_none();
            has_kernels(&device) && is_plain && alone()
        }
    }
}
