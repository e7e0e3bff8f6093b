//! Attention over what a cache, a pass or a prompt holds.

use burn::tensor::Tensor;

use super::query_positions::QueryPositions;
use super::scores::Scores;
use super::seen::attend_seen;
use crate::kv_cache::{Part, Seen};
use crate::{ActivationDtype, Error, KvCache};

/// Attention of queries `[batch, tokens, heads, head_dim]` over what they may see: the keys and
/// values of layer `layer` of the cache, to which those of the tokens,
/// `[batch, tokens, key_value_heads, head_dim]`, are appended. Gives
/// `[batch, tokens, heads · head_dim]`, of the tokens that queries are
/// [wanted](QueryPositions::queries) of; all f32. Scores are multiplied by `scale`, else by
/// `1 / √head_dim`.
pub(crate) fn attend(
    all: [Tensor<4>; 3],
    compute: ActivationDtype,
    scale: Option<f64>,
    positions: &QueryPositions<'_>,
    cache: &mut KvCache,
    layer: usize,
) -> Result<Tensor<3>, Error> {
    let scores = Scores { compute, scale, softcap: None, bias: None, sinks: None };
    attend_with(all, scores, positions, cache, layer)
}

/// As [`attend`], with other scores.
pub(crate) fn attend_with(
    [queries, keys, values]: [Tensor<4>; 3],
    scores: Scores<'_>,
    positions: &QueryPositions<'_>,
    cache: &mut KvCache,
    layer: usize,
) -> Result<Tensor<3>, Error> {
    let queries = positions.needed(queries);
    let seen = cache.see(layer, keys.swap_dims(1, 2), values.swap_dims(1, 2))?;
    let mixed = attend_seen(queries, &seen, &positions.of_queries(), scores);
    cache.keep(layer, seen)?;
    Ok(mixed)
}

/// Attention without a cache in which tokens see those before them and themselves: queries, keys
/// and values `[batch, tokens, heads, head_dim]` to `[batch, tokens, heads · head_dim]`; all f32.
pub(crate) fn attend_causal(
    [queries, keys, values]: [Tensor<4>; 3],
    compute: ActivationDtype,
) -> Tensor<3> {
    let seen =
        Seen { all: false, ..Seen::whole(Part::of(keys.swap_dims(1, 2), values.swap_dims(1, 2))) };
    let padding = vec![0; queries.dims()[0]];
    let positions = QueryPositions { padding: &padding, ..Default::default() };
    let scores = Scores { compute, scale: None, softcap: None, bias: None, sinks: None };
    attend_seen(queries, &seen, &positions, scores)
}

/// Attention of an encoder, whose tokens see each other: queries `[batch, tokens, heads, head_dim]`
/// over keys and values, which may be of other tokens, to `[batch, tokens, heads · head_dim]`; all
/// f32.
pub(crate) fn attend_all(
    [queries, keys, values]: [Tensor<4>; 3],
    scores: Scores<'_>,
    positions: &QueryPositions<'_>,
) -> Tensor<3> {
    let seen = Seen::whole(Part::of(keys.swap_dims(1, 2), values.swap_dims(1, 2)));
    attend_seen(queries, &seen, positions, scores)
}

/// Cross-attention: queries `[batch, tokens, heads, head_dim]` over the prompt that the encoder
/// read, to `[batch, tokens, heads · head_dim]`; all f32.
pub(crate) fn attend_prompt(
    queries: Tensor<4>,
    scores: Scores<'_>,
    cache: &KvCache,
    layer: usize,
) -> Result<Tensor<3>, Error> {
    let (seen, padding) = cache.see_prompt(layer)?;
    Ok(attend_seen(queries, &seen, &QueryPositions { padding, ..Default::default() }, scores))
}
