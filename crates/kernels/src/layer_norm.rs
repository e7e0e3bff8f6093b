//! Layer norm, over slices.

use std::borrow::Cow;

use crate::loops::for_each_isa;
use crate::norm::{checked, lanes_sum, share_rows, share_sums, widened};
use crate::{Isa, Weight};

/// Weight, bias and epsilon of a layer norm.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormParameters<'a> {
    /// `[width]`.
    pub weight: Weight<'a>,
    /// `[width]`; zero if there is none.
    pub bias: Option<Weight<'a>>,
    /// What is added to the variance.
    pub epsilon: f64,
}

/// Writes `(x - mean(x)) / √(mean((x - mean(x))²) + epsilon) · weight + bias` of each row to `y`;
/// `x` and `y` are `[rows, width]` with the width of the weight.
///
/// Each row is summed in sixteen lanes in a fixed order, so that all instruction sets, and any
/// number of threads and of rows, give the same bits. With `a` the greatest magnitude in a row and
/// `s` its standard deviation, an element is off by at most
/// `(width / 16 + 8) · 2⁻²³ · (a / s · |weight| · (1 + |norm|) + |y|)`, `norm` being the element
/// before weight and bias.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn layer_norm_into(x: &[f32], parameters: LayerNormParameters<'_>, y: &mut [f32]) {
    layer_norm_into_with(Isa::detected(), x, parameters, y);
}

/// [`layer_norm_into`] with a chosen set of instructions.
///
/// # Panics
///
/// If this processor does not have `isa`, or as [`layer_norm_into`] does.
pub fn layer_norm_into_with(
    isa: Isa,
    x: &[f32],
    parameters: LayerNormParameters<'_>,
    y: &mut [f32],
) {
    let (weight, bias) = weight_and_bias(x, parameters, y);
    share_rows(x, weight.len(), y, |x, y| norm(isa, x, &weight, &bias, parameters.epsilon, y));
}

/// Adds `add`, of the size of `x`, to `x`, and writes the norm of the sums to `y`, as
/// [`layer_norm_into`] does.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn add_layer_norm_into(
    x: &mut [f32],
    add: &[f32],
    parameters: LayerNormParameters<'_>,
    y: &mut [f32],
) {
    add_layer_norm_into_with(Isa::detected(), x, add, parameters, y);
}

/// [`add_layer_norm_into`] with a chosen set of instructions.
///
/// # Panics
///
/// If this processor does not have `isa`, or as [`add_layer_norm_into`] does.
pub fn add_layer_norm_into_with(
    isa: Isa,
    x: &mut [f32],
    add: &[f32],
    parameters: LayerNormParameters<'_>,
    y: &mut [f32],
) {
    let (weight, bias) = weight_and_bias(x, parameters, y);
    share_sums(isa, x, add, weight.len(), y, |x, y| {
        norm(isa, x, &weight, &bias, parameters.epsilon, y)
    });
}

/// Both in f32.
fn weight_and_bias<'a>(
    x: &[f32],
    parameters: LayerNormParameters<'a>,
    y: &[f32],
) -> (Cow<'a, [f32]>, Cow<'a, [f32]>) {
    let weight = checked(x, parameters.weight, y);
    let bias = match parameters.bias {
        Some(bias) => widened(bias),
        None => Cow::Owned(vec![0.0; weight.len()]),
    };
    assert_eq!(weight.len(), bias.len(), "weight and bias of a norm have the same size");
    (weight, bias)
}

for_each_isa!(
    fn norm = norm_rows(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f64, y: &mut [f32])
);

#[inline(always)]
fn norm_rows(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f64, y: &mut [f32]) {
    let width = weight.len();
    if width == 0 {
        return;
    }
    for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
        let mean = (lanes_sum(x, |x| x) / width as f64) as f32;
        let variance = lanes_sum(x, |x| (x - mean) * (x - mean)) / width as f64;
        let scale = (variance + epsilon).sqrt().recip() as f32;
        let affine = weight.iter().zip(bias);
        for ((y, x), (weight, bias)) in y.iter_mut().zip(x).zip(affine) {
            *y = (x - mean) * scale * weight + bias;
        }
    }
}
