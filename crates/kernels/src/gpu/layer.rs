//! What a decoder layer does between its products, one launch each: composed of a backend's own
//! operations it is some thirty for a token, each of which takes longer to launch than to compute.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Cube, Dispatch, DispatchTensor, backend_extension};
use burn::tensor::{DType, Device, Tensor};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::extension::{FREE_UNITS, cubes};
use crate::norm::NormKind;
use crate::rotary::RotaryPairs;

/// Units that add up one row: a power of two.
const NORM_UNITS: u32 = 256;

/// Operations of a layer on f32 tensors of one device. A norm's operands are a weight `[width]`,
/// and perhaps a bias as wide.
#[backend_extension(Cube)]
pub trait LayerGpuOps: Backend {
    /// The norm of the rows of `x [.., width]`.
    fn gpu_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        is_biased: bool,
        kind: NormKind,
        epsilon: f64,
    ) -> FloatTensor<Self>;

    /// `x + add`, and the norm of that; both `[.., width]`.
    fn gpu_add_norm(
        x: FloatTensor<Self>,
        add: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        is_biased: bool,
        kind: NormKind,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `x [.., heads, width]`, whose elements are rotated as [`rotate`](crate::rotate) says.
    fn gpu_rotary(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        pairs: RotaryPairs,
    ) -> FloatTensor<Self>;

    /// `x · sigmoid(x) · up`, element by element.
    fn gpu_silu_gate(x: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl LayerGpuOps for Cube {
    fn gpu_norm(
        x: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        is_biased: bool,
        kind: NormKind,
        epsilon: f64,
    ) -> CubeTensor {
        let [x, weight, bias] = [x, weight, bias].map(into_contiguous);
        let y = empty_like(&x);
        let width = weight.meta.num_elements();
        let rows = x.meta.num_elements() / width.max(1);
        norm::launch(
            &x.client.clone(),
            cubes(rows),
            CubeDim::new_1d(NORM_UNITS),
            x.binding().into_buffer_arg(),
            weight.binding().into_buffer_arg(),
            bias.binding().into_buffer_arg(),
            y.clone().binding().into_buffer_arg(),
            rows as u32,
            width as u32,
            epsilon as f32,
            kind == NormKind::Layer,
            is_biased,
        );
        y
    }

    fn gpu_add_norm(
        x: CubeTensor,
        add: CubeTensor,
        weight: CubeTensor,
        bias: CubeTensor,
        is_biased: bool,
        kind: NormKind,
        epsilon: f64,
    ) -> (CubeTensor, CubeTensor) {
        let [x, add, weight, bias] = [x, add, weight, bias].map(into_contiguous);
        let (sum, y) = (empty_like(&x), empty_like(&x));
        let width = weight.meta.num_elements();
        let rows = x.meta.num_elements() / width.max(1);
        add_norm::launch(
            &x.client.clone(),
            cubes(rows),
            CubeDim::new_1d(NORM_UNITS),
            x.binding().into_buffer_arg(),
            add.binding().into_buffer_arg(),
            weight.binding().into_buffer_arg(),
            bias.binding().into_buffer_arg(),
            sum.clone().binding().into_buffer_arg(),
            y.clone().binding().into_buffer_arg(),
            rows as u32,
            width as u32,
            epsilon as f32,
            kind == NormKind::Layer,
            is_biased,
        );
        (sum, y)
    }

    fn gpu_rotary(
        x: CubeTensor,
        cos: CubeTensor,
        sin: CubeTensor,
        pairs: RotaryPairs,
    ) -> CubeTensor {
        let [x, cos, sin] = [x, cos, sin].map(into_contiguous);
        let y = empty_like(&x);
        let [_, _, heads, width] = x.meta.shape().dims();
        let [batch, tokens, _, half] = cos.meta.shape().dims();
        let values = x.meta.num_elements();
        rotary::launch(
            &x.client.clone(),
            cubes(values.div_ceil(FREE_UNITS as usize)),
            CubeDim::new_1d(FREE_UNITS),
            x.binding().into_buffer_arg(),
            cos.binding().into_buffer_arg(),
            sin.binding().into_buffer_arg(),
            y.clone().binding().into_buffer_arg(),
            values as u32,
            heads as u32,
            width as u32,
            half as u32,
            (batch * tokens) as u32,
            pairs == RotaryPairs::Interleaved,
        );
        y
    }

    fn gpu_silu_gate(x: CubeTensor, up: CubeTensor) -> CubeTensor {
        let [x, up] = [x, up].map(into_contiguous);
        let y = empty_like(&x);
        let values = x.meta.num_elements();
        silu_gate::launch(
            &x.client.clone(),
            cubes(values.div_ceil(FREE_UNITS as usize)),
            CubeDim::new_1d(FREE_UNITS),
            x.binding().into_buffer_arg(),
            up.binding().into_buffer_arg(),
            y.clone().binding().into_buffer_arg(),
            values as u32,
        );
        y
    }
}

fn empty_like(x: &CubeTensor) -> CubeTensor {
    let shape = x.meta.shape().clone();
    empty_device_contiguous_dtype(x.client.clone(), x.device.clone(), shape, DType::F32)
}

/// Each row by a cube of its own.
#[cube(launch)]
fn norm(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    y: &mut [f32],
    rows: u32,
    width: u32,
    epsilon: f32,
    #[comptime] is_centred: bool,
    #[comptime] is_biased: bool,
) {
    // All cubes meet the same barriers: one beyond the last row does that again.
    let start = (u32::min(CUBE_POS as u32, rows - 1) * width) as usize;
    norm_row(x, x, weight, bias, y, start, width, epsilon, false, is_centred, is_biased);
}

/// The same of sums, which are kept.
#[cube(launch)]
fn add_norm(
    x: &[f32],
    add: &[f32],
    weight: &[f32],
    bias: &[f32],
    sum: &mut [f32],
    y: &mut [f32],
    rows: u32,
    width: u32,
    epsilon: f32,
    #[comptime] is_centred: bool,
    #[comptime] is_biased: bool,
) {
    let start = (u32::min(CUBE_POS as u32, rows - 1) * width) as usize;
    for at in range_stepped(UNIT_POS_X, width, NORM_UNITS) {
        let at = start + at as usize;
        sum[at] = x[at] + add[at];
    }
    norm_row(x, add, weight, bias, y, start, width, epsilon, true, is_centred, is_biased);
}

/// The norm of a row of `x`, or of `x + add`.
#[cube]
fn norm_row(
    x: &[f32],
    add: &[f32],
    weight: &[f32],
    bias: &[f32],
    y: &mut [f32],
    start: usize,
    width: u32,
    epsilon: f32,
    #[comptime] is_added: bool,
    #[comptime] is_centred: bool,
    #[comptime] is_biased: bool,
) {
    let unit = UNIT_POS_X;
    let mut shared = Shared::<[f32]>::new_slice(NORM_UNITS as usize);
    let mut mean = 0.0f32;
    if is_centred {
        let mut sum = 0.0f32;
        for at in range_stepped(unit, width, NORM_UNITS) {
            sum += summed(x, add, start + at as usize, is_added);
        }
        mean = total(sum, &mut shared, unit) / f32::cast_from(width);
    }
    let mut squares = 0.0f32;
    for at in range_stepped(unit, width, NORM_UNITS) {
        let value = summed(x, add, start + at as usize, is_added) - mean;
        squares += value * value;
    }
    let variance = total(squares, &mut shared, unit) / f32::cast_from(width);
    let scale = 1.0f32 / f32::sqrt(variance + epsilon);
    for at in range_stepped(unit, width, NORM_UNITS) {
        let at = at as usize;
        let value = summed(x, add, start + at, is_added);
        let mut value = (value - mean) * scale * weight[at];
        if is_biased {
            value += bias[at];
        }
        y[start + at] = value;
    }
}

#[cube]
fn summed(x: &[f32], add: &[f32], at: usize, #[comptime] is_added: bool) -> f32 {
    let mut value = x[at];
    if is_added {
        value += add[at];
    }
    value
}

/// The sum of what all units of a cube have, in a fixed tree.
#[cube]
fn total(own: f32, shared: &mut Shared<[f32]>, unit: u32) -> f32 {
    // Those of a sum before are read by now.
    sync_cube();
    shared[unit as usize] = own;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(NORM_UNITS.ilog2()) {
        let reach = comptime!(NORM_UNITS >> (step + 1));
        if unit < reach {
            shared[unit as usize] += shared[(unit + reach) as usize];
        }
        sync_cube();
    }
    shared[0]
}

#[cube(launch)]
fn rotary(
    x: &[f32],
    cos: &[f32],
    sin: &[f32],
    y: &mut [f32],
    values: u32,
    heads: u32,
    width: u32,
    half: u32,
    rotations: u32,
    #[comptime] is_interleaved: bool,
) {
    let at = ABSOLUTE_POS as u32;
    if at < values {
        let column = at % width;
        let token = at / width / heads % rotations;
        let mut value = x[at as usize];
        if column < 2u32 * half {
            let mut angle = column % half;
            let mut is_right = column >= half;
            let mut apart = half;
            if is_interleaved {
                angle = column / 2u32;
                is_right = column % 2u32 == 1u32;
                apart = 1u32;
            }
            let angle = (token * half + angle) as usize;
            if is_right {
                value = value * cos[angle] + x[(at - apart) as usize] * sin[angle];
            } else {
                value = value * cos[angle] - x[(at + apart) as usize] * sin[angle];
            }
        }
        y[at as usize] = value;
    }
}

#[cube(launch)]
fn silu_gate(x: &[f32], up: &[f32], y: &mut [f32], values: u32) {
    let at = ABSOLUTE_POS;
    if at < values as usize {
        let gate = x[at];
        y[at] = gate / (1.0f32 + f32::exp(-gate)) * up[at];
    }
}

/// The norm of `x [.., width]` f32; the weight and the bias are as wide.
pub(crate) fn norm_of<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    kind: NormKind,
    epsilon: f64,
) -> Tensor<D> {
    let (weight, bias, is_biased) = operands(weight, bias, &x.device());
    let x = x.into_dispatch();
    Tensor::from_dispatch(Dispatch::gpu_norm(x, weight, bias, is_biased, kind, epsilon))
}

/// `x + add`, both f32 on one device, and the [`norm_of`] that.
pub(crate) fn add_norm_of<const D: usize>(
    x: Tensor<D>,
    add: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    kind: NormKind,
    epsilon: f64,
) -> (Tensor<D>, Tensor<D>) {
    let (weight, bias, is_biased) = operands(weight, bias, &x.device());
    let [x, add] = [x, add].map(Tensor::into_dispatch);
    let (sum, norm) = Dispatch::gpu_add_norm(x, add, weight, bias, is_biased, kind, epsilon);
    (Tensor::from_dispatch(sum), Tensor::from_dispatch(norm))
}

/// A norm's weight and bias in f32 on a device, and whether there is a bias: a kernel is given the
/// weight in its place.
fn operands(
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    device: &Device,
) -> (DispatchTensor, DispatchTensor, bool) {
    let is_biased = bias.is_some();
    let here = |values: Tensor<1>| values.cast(DType::F32).to_device(device).into_dispatch();
    let weight = here(weight);
    let bias = bias.map_or_else(|| weight.clone(), here);
    (weight, bias, is_biased)
}

/// `x [batch, tokens, heads, width]` f32, rotated by angles on the same device.
pub(crate) fn rotated(
    x: Tensor<4>,
    pairs: RotaryPairs,
    cos: Tensor<4>,
    sin: Tensor<4>,
) -> Tensor<4> {
    let (x, cos, sin) = (x.into_dispatch(), cos.into_dispatch(), sin.into_dispatch());
    Tensor::from_dispatch(Dispatch::gpu_rotary(x, cos, sin, pairs))
}

/// `x · sigmoid(x) · up` of f32 on one device.
pub(crate) fn silu_gated<const D: usize>(x: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::gpu_silu_gate(x.into_dispatch(), up.into_dispatch()))
}
