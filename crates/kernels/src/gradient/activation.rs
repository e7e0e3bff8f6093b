//! The backward pass of activation functions and gates.

use crate::activation::{SLOPE, normal, relu};
use crate::exp::exp;
use crate::loops::{share, share_size};
use crate::simd::for_each_isa;
use crate::{ActivationFunction, Isa};

/// Writes the gradient of `x`, given that of `function(x)`, to `x`: `dy · function'(x)`.
///
/// # Panics
///
/// If the slices differ in length, or if this processor does not have `isa`.
pub fn activation_gradient_in_place(
    isa: Isa,
    function: ActivationFunction,
    x: &mut [f32],
    dy: &[f32],
) {
    assert_eq!(x.len(), dy.len(), "a gradient has the size of what it is of");
    let size = share_size(x.len(), 1);
    share(x.chunks_mut(size).zip(dy.chunks(size)), |(x, dy)| activation(isa, function, x, dy));
}

/// Writes the gradients of `x` and `up`, given that of `function(x) · up`, to `x` and `up`.
///
/// # Panics
///
/// If the slices differ in length, or if this processor does not have `isa`.
pub fn gate_gradients_in_place(
    isa: Isa,
    function: ActivationFunction,
    x: &mut [f32],
    up: &mut [f32],
    dy: &[f32],
) {
    assert!(x.len() == up.len() && x.len() == dy.len(), "a gate's gradients are as large");
    let size = share_size(x.len(), 1);
    let pieces = x.chunks_mut(size).zip(up.chunks_mut(size)).zip(dy.chunks(size));
    share(pieces, |((x, up), dy)| gate(isa, function, x, up, dy));
}

for_each_isa! {
    fn activation(function: ActivationFunction, x: &mut [f32], dy: &[f32]) {
        each(function, x, dy.iter(), |x, [_, slope], dy| *x = dy * slope);
    }
}

for_each_isa! {
    fn gate(function: ActivationFunction, x: &mut [f32], up: &mut [f32], dy: &[f32]) {
        each(function, x, up.iter_mut().zip(dy), |x, [value, slope], (up, dy)| {
            *x = dy * *up * slope;
            *up = dy * value;
        });
    }
}

/// Calls `then` with each element, what the function gives of it with its derivative, and what
/// comes beside it.
#[inline(always)]
fn each<T>(
    function: ActivationFunction,
    x: &mut [f32],
    beside: impl Iterator<Item = T>,
    then: impl Fn(&mut f32, [f32; 2], T),
) {
    /// What a cube adds to its side, under a hyperbolic tangent.
    const CUBE: f32 = 0.044_715;
    /// `1 / √(2π)`.
    const DENSITY: f32 = 0.398_942_3;
    match function {
        ActivationFunction::Silu => with(x, beside, |x| swish(x, x, 1.0), then),
        ActivationFunction::Gelu => {
            let both = |x| {
                let (share, bell) = normal(x);
                [x * share, share + DENSITY * x * bell]
            };
            with(x, beside, both, then);
        }
        ActivationFunction::GeluTanh => {
            let both = |x: f32| {
                let square = CUBE * (x * x);
                swish(x, SLOPE * x * (1.0 + square), SLOPE * (1.0 + 3.0 * square))
            };
            with(x, beside, both, then);
        }
        ActivationFunction::QuickGelu => with(x, beside, |x| swish(x, 1.702 * x, 1.702), then),
        ActivationFunction::Relu => {
            with(x, beside, |x| [relu(x), if x > 0.0 { 1.0 } else { 0.0 }], then);
        }
        ActivationFunction::Relu2 => with(x, beside, |x| [relu(x) * relu(x), 2.0 * relu(x)], then),
    }
}

#[inline(always)]
fn with<T>(
    x: &mut [f32],
    beside: impl Iterator<Item = T>,
    both: impl Fn(f32) -> [f32; 2],
    then: impl Fn(&mut f32, [f32; 2], T),
) {
    for (x, beside) in x.iter_mut().zip(beside) {
        let both = both(*x);
        then(x, both, beside);
    }
}

/// `x · sigmoid(by)` and its derivative, `slope` being that of `by`.
#[inline(always)]
fn swish(x: f32, by: f32, slope: f32) -> [f32; 2] {
    let sigmoid = 1.0 / (1.0 + exp(-by));
    let value = x * sigmoid;
    [value, sigmoid + value * (1.0 - sigmoid) * slope]
}
