//! The activation function of a feed-forward block, alone or as a gate, over slices.

use crate::Isa;
use crate::exp::exp;
use crate::loops::{share, share_size};
use crate::simd::for_each_isa;

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationFunction {
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · Φ(x)`, Φ being the normal distribution's cumulative function.
    Gelu,
    /// `x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
    GeluTanh,
    /// `x · sigmoid(1.702 x)`.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    Relu2,
}

impl ActivationFunction {
    /// All of them.
    pub const ALL: [ActivationFunction; 6] = [
        ActivationFunction::Silu,
        ActivationFunction::Gelu,
        ActivationFunction::GeluTanh,
        ActivationFunction::QuickGelu,
        ActivationFunction::Relu,
        ActivationFunction::Relu2,
    ];
}

/// Writes `function(x)`, element by element, to `x`, with a chosen set of instructions. All of
/// these give the same bits, off by at most `2⁻¹⁹` of the greater of `|x|` and the result.
///
/// # Panics
///
/// If this processor does not have `isa`.
pub fn activate_in_place(isa: Isa, function: ActivationFunction, x: &mut [f32]) {
    share(x.chunks_mut(share_size(x.len(), 1)), |x| activate_each(isa, function, x));
}

/// Writes `function(x) · up`, element by element, to `x`, with a chosen set of instructions. All of
/// these give the same bits, off by at most `2⁻¹⁹` of the greater of `|x · up|` and the result.
///
/// # Panics
///
/// If the slices differ in length, or if this processor does not have `isa`.
pub fn gate_in_place(isa: Isa, function: ActivationFunction, x: &mut [f32], up: &[f32]) {
    assert_eq!(x.len(), up.len(), "a gate has the size of what goes through");
    let size = share_size(x.len(), 1);
    share(x.chunks_mut(size).zip(up.chunks(size)), |(x, up)| gate_each(isa, function, x, up));
}

/// The same of some columns of `x`: its rows, but for the last, are `stride` apart, and those of
/// `up` have `n` elements.
pub(crate) fn gate_columns(
    isa: Isa,
    function: ActivationFunction,
    (x, stride): (&mut [f32], usize),
    (up, n): (&[f32], usize),
) {
    let rows = x.chunks_mut(stride).zip(up.chunks_exact(n));
    share(rows, |(x, up)| gate_each(isa, function, &mut x[..n], up));
}

/// Writes `(x[.., ..n] + bias[..n]) · function(x[.., n..] +
/// bias[n..])` to `y`: rows of `x` are twice as wide as those of `y`, whose width is `n`, and the
/// bias is as wide or empty. The same bits as adding and [gating](gate_in_place) one after the
/// other.
///
/// # Panics
///
/// If sizes do not fit each other, or if this processor does not have `isa`.
pub fn gate_halves_into(
    isa: Isa,
    function: ActivationFunction,
    x: &[f32],
    (y, n): (&mut [f32], usize),
) {
    assert_eq!(x.len(), 2 * y.len(), "rows must be twice as wide as what comes of them");
    assert!(y.len().is_multiple_of(n.max(1)), "rows of {n} must fill {}", y.len());
    let size = share_size(y.len(), n);
    share(x.chunks(2 * size).zip(y.chunks_mut(size)), |(x, y)| {
        gate_halves(isa, function, x, y, n);
    });
}

for_each_isa! {
    fn gate_halves(
        function: ActivationFunction,
        x: &[f32],
        y: &mut [f32],
        n: usize,
    ) {
        for (x, y) in x.chunks_exact(2 * n).zip(y.chunks_exact_mut(n)) {
            let (up, gate) = x.split_at(n);
            y.copy_from_slice(gate);
            times(function, y, up.iter().copied());
        }
    }
}

for_each_isa! {
    fn activate_each(function: ActivationFunction, x: &mut [f32]) {
        // Times one changes no bit.
        times(function, x, std::iter::repeat(1.0));
    }
}

for_each_isa! {
    pub(crate) fn gate_each(function: ActivationFunction, x: &mut [f32], up: &[f32]) {
        times(function, x, up.iter().copied());
    }
}

/// √(2/π), twice: a hyperbolic tangent is a sigmoid of twice its argument, stretched.
pub(crate) const SLOPE: f32 = 1.595_769;

#[inline(always)]
fn times(function: ActivationFunction, x: &mut [f32], up: impl Iterator<Item = f32>) {
    match function {
        ActivationFunction::Silu => each(x, up, |x| swish(x, x)),
        ActivationFunction::Gelu => each(x, up, gelu),
        ActivationFunction::GeluTanh => {
            each(x, up, |x| swish(x, SLOPE * (x + 0.044_715 * (x * x * x))))
        }
        ActivationFunction::QuickGelu => each(x, up, |x| swish(x, 1.702 * x)),
        ActivationFunction::Relu => each(x, up, relu),
        ActivationFunction::Relu2 => each(x, up, |x| relu(x) * relu(x)),
    }
}

#[inline(always)]
fn each(x: &mut [f32], up: impl Iterator<Item = f32>, function: impl Fn(f32) -> f32) {
    for (x, up) in x.iter_mut().zip(up) {
        *x = function(*x) * up;
    }
}

/// `x · sigmoid(by)`.
#[inline(always)]
pub(crate) fn swish(x: f32, by: f32) -> f32 {
    x / (1.0 + exp(-by))
}

/// `x · Φ(x)`, off by at most 2⁻²² of `x`.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    x * normal(x).0
}

/// `Φ(x)` and `e^(-x²/2)`: the error function is Hastings' approximation (Abramowitz and Stegun,
/// 7.1.26).
#[inline(always)]
#[allow(clippy::excessive_precision, reason = "the constants as they are published")]
pub(crate) fn normal(x: f32) -> (f32, f32) {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let mut p = 1.061_405_429;
    p = p * t - 1.453_152_027;
    p = p * t + 1.421_413_741;
    p = p * t - 0.284_496_736;
    p = p * t + 0.254_829_592;
    // The share of the distribution beyond `|x|`.
    let bell = exp(-z * z);
    let beyond = 0.5 * p * t * bell;
    (if x < 0.0 { beyond } else { 1.0 - beyond }, bell)
}

/// Zero below zero; a NaN stays one.
#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}
