//! Attention of few tokens, one launch: what composed of a backend's own operations takes ten, and
//! reads keys and values at a small part of the memory's speed.
//!
//! A cube takes one query. Its units score a column each, and share the softmax, whose sum is
//! carried from one round of columns to the next; then each adds up four elements of the values.
//! The bits depend on what the query sees alone.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Cube, Dispatch, backend_extension};
use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::extension::cubes;

/// Units of a cube, and columns of a round: a power of two.
const UNITS: u32 = 128;

/// More tokens than this are scored by matmuls, which read keys once for many.
const TOKENS: usize = 8;

/// Below every score: what is not above it is not seen.
const UNSEEN: f32 = -3.0e38;

type Quad = Vector<f32, Const<4>>;

/// How queries attend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenAttention {
    /// What scores are multiplied by.
    pub scale: f32,
    /// What scores stay below in magnitude, if anything.
    pub softcap: Option<f32>,
    /// Whether there is a bias, and whether there are sinks.
    pub has: [bool; 2],
}

/// Attention of few tokens.
#[backend_extension(Cube)]
pub trait TokenAttentionOps: Backend {
    /// Of queries `[batch, tokens, heads, width]` over keys and values
    /// `[batch, key_heads, columns, width]`, which may be views of a larger tensor; with a bias
    /// `[1 or batch, 1 or heads, tokens, columns]` and sinks `[heads]`, or anything in their place.
    /// All f32. To `[batch, tokens, heads · width]`.
    fn token_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        sinks: FloatTensor<Self>,
        how: TokenAttention,
    ) -> FloatTensor<Self>;
}

impl TokenAttentionOps for Cube {
    fn token_attention(
        queries: CubeTensor,
        keys: CubeTensor,
        values: CubeTensor,
        bias: CubeTensor,
        sinks: CubeTensor,
        how: TokenAttention,
    ) -> CubeTensor {
        let [queries, bias, sinks] = [queries, bias, sinks].map(into_contiguous);
        // Views of a cache are read where they are.
        let [keys, values] = [keys, values].map(|tensor| {
            let strides = tensor.meta.strides();
            match strides[3] == 1 && (0..3).all(|dim| strides[dim].is_multiple_of(4)) {
                true => tensor,
                false => into_contiguous(tensor),
            }
        });
        let [batch, tokens, heads, width] = queries.meta.shape().dims();
        let [_, key_heads, columns, _] = keys.meta.shape().dims();
        let [biased, biased_heads] = match how.has[0] {
            true => [bias.meta.shape()[0], bias.meta.shape()[1]],
            false => [1, 1],
        };
        let shape = Shape::new([batch, tokens, heads * width]);
        let y = empty_device_contiguous_dtype(
            queries.client.clone(),
            queries.device.clone(),
            shape,
            DType::F32,
        );
        let quads =
            |tensor: &CubeTensor| [0, 1, 2].map(|dim| (tensor.meta.strides()[dim] / 4) as u32);
        let ([k0, k1, k2], [v0, v1, v2]) = (quads(&keys), quads(&values));
        attention::launch(
            &queries.client.clone(),
            cubes(batch * tokens * heads),
            CubeDim::new_1d(UNITS),
            queries.binding().into_buffer_arg(),
            keys.binding().into_buffer_arg(),
            values.binding().into_buffer_arg(),
            bias.binding().into_buffer_arg(),
            sinks.binding().into_buffer_arg(),
            y.clone().binding().into_buffer_arg(),
            (batch * tokens * heads) as u32,
            tokens as u32,
            heads as u32,
            (heads / key_heads) as u32,
            columns as u32,
            k0,
            k1,
            k2,
            v0,
            v1,
            v2,
            biased as u32,
            biased_heads as u32,
            how.scale,
            how.softcap.unwrap_or(1.0),
            width,
            how.softcap.is_some(),
            how.has[0],
            how.has[1],
        );
        y
    }
}

#[allow(clippy::manual_clamp, reason = "least and largest are what every backend has")]
#[cube(launch)]
fn attention(
    queries: &[Quad],
    keys: &[Quad],
    values: &[Quad],
    bias: &[f32],
    sinks: &[f32],
    y: &mut [Quad],
    count: u32,
    tokens: u32,
    heads: u32,
    group: u32,
    columns: u32,
    key_batch: u32,
    key_head: u32,
    key_column: u32,
    value_batch: u32,
    value_head: u32,
    value_column: u32,
    biased: u32,
    biased_heads: u32,
    scale: f32,
    cap: f32,
    #[comptime] width: usize,
    #[comptime] is_capped: bool,
    #[comptime] has_bias: bool,
    #[comptime] has_sinks: bool,
) {
    let quads = comptime!(width / 4);
    // Units that add up values: so many columns at a time.
    let abreast = comptime!(UNITS as usize / quads);
    let unit = UNIT_POS_X as usize;
    // All cubes meet the same barriers: one beyond the last query does that again.
    let query = u32::min(CUBE_POS as u32, count - 1);
    let (head, token, text) = (query % heads, query / heads % tokens, query / heads / tokens);
    let key_start = text * key_batch + head / group * key_head;
    let value_start = text * value_batch + head / group * value_head;
    let bias_start =
        ((text % biased * biased_heads + head % biased_heads) * tokens + token) * columns;

    let mut own_query = Shared::<[Quad]>::new_slice(quads);
    let mut weights = Shared::<[f32]>::new_slice(UNITS as usize);
    let mut shared = Shared::<[f32]>::new_slice(UNITS as usize);
    for quad in range_stepped(UNIT_POS_X, quads as u32, UNITS) {
        own_query[quad as usize] = queries[query as usize * quads + quad as usize];
    }
    let mut largest = f32::new(UNSEEN);
    let mut sum = 0.0f32;
    if has_sinks {
        largest = sinks[head as usize];
        sum = 1.0f32;
    }
    let mut mixed = Quad::new(0.0f32);
    sync_cube();
    for round in 0..columns.div_ceil(UNITS) {
        let column = round * UNITS + UNIT_POS_X;
        let mut score = f32::new(UNSEEN);
        if column < columns {
            let key = (key_start + column * key_column) as usize;
            let mut product = 0.0f32;
            for quad in 0..quads {
                let (a, b) = (own_query[quad], keys[key + quad]);
                #[unroll]
                for element in 0..4usize {
                    product = fma(a.extract(element), b.extract(element), product);
                }
            }
            score = product * scale;
            if is_capped {
                // Beyond 20 it is 1; some devices make no number of large ones.
                let share = f32::min(f32::max(score / cap, -20.0f32), 20.0f32);
                score = f32::tanh(share) * cap;
            }
            if has_bias {
                score += bias[(bias_start + column) as usize];
            }
        }
        let before = largest;
        largest = f32::max(before, combined(score, &mut shared, unit, true));
        let mut weight = 0.0f32;
        if score > UNSEEN {
            weight = f32::exp(score - largest);
        }
        weights[unit] = weight;
        let mut kept = 0.0f32;
        if before > UNSEEN {
            kept = f32::exp(before - largest);
        }
        sum = sum * kept + combined(weight, &mut shared, unit, false);
        mixed *= Quad::new(kept);
        if unit < abreast * quads {
            let there = u32::min(UNITS, columns - round * UNITS);
            for at in range_stepped((unit / quads) as u32, there, abreast as u32) {
                let value = value_start + (round * UNITS + at) * value_column;
                let value = values[value as usize + unit % quads];
                mixed = fma(value, Quad::new(weights[at as usize]), mixed);
            }
        }
        // Weights are read before those of the next round are written.
        sync_cube();
    }
    let mut parts = Shared::<[Quad]>::new_slice(UNITS as usize);
    parts[unit] = mixed;
    sync_cube();
    if unit < quads {
        let mut all = Quad::new(0.0f32);
        for part in 0..abreast {
            all += parts[part * quads + unit];
        }
        // Who sees nothing gets zeros.
        let mut share = 0.0f32;
        if sum > 0.0f32 {
            share = 1.0f32 / sum;
        }
        y[query as usize * quads + unit] = all * Quad::new(share);
    }
}

/// The largest or the sum of what all units of a cube have, in a fixed tree.
#[cube]
fn combined(own: f32, shared: &mut Shared<[f32]>, unit: usize, #[comptime] largest: bool) -> f32 {
    // What was combined before is read by now.
    sync_cube();
    shared[unit] = own;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(UNITS.ilog2()) {
        let reach = comptime!((UNITS >> (step + 1)) as usize);
        if unit < reach {
            let (one, other) = (shared[unit], shared[unit + reach]);
            if largest {
                shared[unit] = f32::max(one, other);
            } else {
                shared[unit] = one + other;
            }
        }
        sync_cube();
    }
    shared[0]
}

/// See [`attend_tokens`](crate::attend_tokens).
pub(crate) fn attend_tokens(
    queries: &Tensor<4>,
    [keys, values]: [&Tensor<4>; 2],
    bias: Option<&Tensor<4>>,
    sinks: Option<&Tensor<1>>,
    (scale, softcap): (f32, Option<f32>),
) -> Option<Tensor<3>> {
    let [_, tokens, _, width] = queries.dims();
    let is_taken = (1..=TOKENS).contains(&tokens)
        && width.is_multiple_of(4)
        && width / 4 <= UNITS as usize
        && [queries, keys, values].iter().all(|tensor| tensor.dtype() == DType::F32)
        && values.dims()[3] == width;
    if !is_taken {
        return None;
    }
    let [keys, values] = [keys, values].map(|tensor| tensor.clone().into_dispatch());
    let nothing = || queries.clone().into_dispatch();
    Some(Tensor::from_dispatch(Dispatch::token_attention(
        queries.clone().into_dispatch(),
        keys,
        values,
        bias.map_or_else(nothing, |bias| bias.clone().into_dispatch()),
        sinks.map_or_else(nothing, |sinks| sinks.clone().into_dispatch()),
        TokenAttention { scale, softcap, has: [bias.is_some(), sinks.is_some()] },
    )))
}
