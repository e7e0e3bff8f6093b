//! Root-mean-square norm and layer norm, over slices.

use std::borrow::Cow;

use crate::loops::{share, share_size};
use crate::simd::for_each_isa;
use crate::{Isa, Weight};

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `x / √(mean(x²) + epsilon) · weight`.
    Rms,
    /// `(x - mean(x)) / √(mean((x - mean(x))²) + epsilon) · weight`.
    Layer,
}

/// What a norm is made with.
#[derive(Clone, Copy, Debug)]
pub struct NormParameters<'a> {
    /// Its formula.
    pub kind: NormKind,
    /// `[width]`.
    pub weight: Weight<'a>,
    /// `[width]`; nothing is added if there is none.
    pub bias: Option<Weight<'a>>,
    /// What is added to the variance, or to the mean square.
    pub epsilon: f64,
}

/// Writes the norm of each row of `x` to `y`, with a chosen set of instructions; `x` and `y` are
/// `[rows, width]` with the width of the weight.
///
/// Each row is summed in sixteen lanes in a fixed order, so that all instruction sets, and any
/// number of threads and of rows, give the same bits. The error of an element of a root-mean-square
/// norm is at most `(width / 32 + 8) · 2⁻²³` of it. With `a` the greatest magnitude in a row and
/// `s` its standard deviation, an element of a layer norm is off by at most
/// `(width / 16 + 8) · 2⁻²³ · (a / s · |weight| · (1 + |norm|) + |y|)`, `norm` being the element
/// before weight and bias.
///
/// # Panics
///
/// If sizes do not fit each other, or if this processor does not have `isa`.
pub fn norm_into(isa: Isa, x: &[f32], parameters: NormParameters<'_>, y: &mut [f32]) {
    let (weight, bias) = weight_and_bias(x, parameters, y);
    let NormParameters { kind, epsilon, .. } = parameters;
    let size = share_size(x.len(), weight.len());
    share(x.chunks(size).zip(y.chunks_mut(size)), |(x, y)| {
        norm(isa, x, kind, &weight, bias.as_deref(), epsilon, y)
    });
}

/// Adds `add`, of the size of `x`, to `x`, and writes the norm of the sums to `y`, as [`norm_into`]
/// does.
///
/// # Panics
///
/// As [`norm_into`].
pub fn add_norm_into(
    isa: Isa,
    x: &mut [f32],
    add: &[f32],
    parameters: NormParameters<'_>,
    y: &mut [f32],
) {
    assert_eq!(x.len(), add.len(), "what is added must have the size of what it is added to");
    let (weight, bias) = weight_and_bias(x, parameters, y);
    let NormParameters { kind, epsilon, .. } = parameters;
    let size = share_size(x.len(), weight.len());
    let pieces = x.chunks_mut(size).zip(add.chunks(size)).zip(y.chunks_mut(size));
    share(pieces, |((x, add), y)| {
        sum(isa, x, add);
        norm(isa, x, kind, &weight, bias.as_deref(), epsilon, y)
    });
}

/// Weight and bias in f32, of a norm of `x` that goes to `y`.
fn weight_and_bias<'a>(
    x: &[f32],
    NormParameters { weight, bias, .. }: NormParameters<'a>,
    y: &[f32],
) -> (Cow<'a, [f32]>, Option<Cow<'a, [f32]>>) {
    assert_eq!(x.len(), y.len(), "a norm has the size of what it is of");
    assert!(
        x.is_empty() || (!weight.is_empty() && x.len().is_multiple_of(weight.len())),
        "rows of the weight's {} elements must fill {}",
        weight.len(),
        x.len()
    );
    if let Some(bias) = bias {
        assert_eq!(weight.len(), bias.len(), "weight and bias of a norm have the same size");
    }
    (weight.widened(), bias.map(Weight::widened))
}

for_each_isa! {
    fn sum(x: &mut [f32], add: &[f32]) {
        for (x, add) in x.iter_mut().zip(add) {
            *x += add;
        }
    }
}

for_each_isa! {
    fn norm(
        x: &[f32],
        kind: NormKind,
        weight: &[f32],
        bias: Option<&[f32]>,
        epsilon: f64,
        y: &mut [f32],
    ) {
        let width = weight.len();
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            // Less zero, a number is itself.
            let mean = match kind {
                NormKind::Rms => 0.0,
                NormKind::Layer => (lanes_sum(x, |x| x) / width as f64) as f32,
            };
            let variance = lanes_sum(x, |x| (x - mean) * (x - mean)) / width as f64;
            let scale = (variance + epsilon).sqrt().recip() as f32;
            let elements = y.iter_mut().zip(x).zip(weight);
            match bias {
                None => {
                    for ((y, x), weight) in elements {
                        *y = (x - mean) * scale * weight;
                    }
                }
                Some(bias) => {
                    for (((y, x), weight), bias) in elements.zip(bias) {
                        *y = (x - mean) * scale * weight + bias;
                    }
                }
            }
        }
    }
}

/// Lanes that a row is summed in.
const LANES: usize = 16;

/// The sum of a function of a row's elements, in sixteen lanes and a fixed order.
#[inline(always)]
pub(crate) fn lanes_sum(x: &[f32], of: impl Fn(f32) -> f32) -> f64 {
    let (vectors, rest) = x.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for vector in vectors {
        for (sum, x) in sums.iter_mut().zip(vector) {
            *sum += of(*x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += of(*x);
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    f64::from(sums[0])
}
