//! The backward pass of root-mean-square norm and layer norm.

use crate::Isa;
use crate::loops::share;
use crate::norm::{NormKind, NormParameters};
use crate::simd::for_each_isa;

/// Rows whose share of a weight's gradient is summed in order before it is added to that of others.
const ROWS: usize = 64;

/// Writes the gradients of `x` and of the weight to `dx` and `dw`, given the gradient `dy` of the
/// [norm](crate::norm::norm_into) of the rows of `x`. That of the weight is a sum over all rows;
/// that of a bias would be the sum of the rows of `dy`.
///
/// # Panics
///
/// If sizes do not fit each other, or if this processor does not have `isa`.
pub fn norm_gradients_into(
    isa: Isa,
    x: &[f32],
    dy: &[f32],
    parameters: NormParameters<'_>,
    (dx, dw): (&mut [f32], &mut [f32]),
) {
    let NormParameters { kind, weight, epsilon, .. } = parameters;
    let (weight, width) = (weight.widened(), weight.len());
    assert!(x.len() == dy.len() && x.len() == dx.len(), "a norm's gradients are as large");
    assert!(x.is_empty() || x.len().is_multiple_of(width.max(1)), "rows of {width}: {}", x.len());
    assert_eq!(dw.len(), width, "a weight's gradient is as large");
    dw.fill(0.0);
    if x.is_empty() {
        return;
    }
    let size = ROWS * width;
    // Of each piece, what it adds to the gradient of the weight.
    let mut sums = vec![0.0; x.len().div_ceil(size) * width];
    let pieces = x.chunks(size).zip(dy.chunks(size)).zip(dx.chunks_mut(size));
    share(pieces.zip(sums.chunks_mut(width)), |(((x, dy), dx), sums)| {
        piece(isa, x, dy, (kind, &weight, epsilon), dx, sums);
    });
    for sums in sums.chunks(width) {
        dw.iter_mut().zip(sums).for_each(|(sum, more)| *sum += more);
    }
}

for_each_isa! {
    fn piece(
        x: &[f32],
        dy: &[f32],
        parameters: (NormKind, &[f32], f64),
        dx: &mut [f32],
        sums: &mut [f32],
    ) {
        let (kind, weight, epsilon) = parameters;
        let width = weight.len();
        let rows = x.chunks_exact(width).zip(dy.chunks_exact(width));
        for ((x, dy), dx) in rows.zip(dx.chunks_exact_mut(width)) {
            let mean = match kind {
                NormKind::Rms => 0.0,
                NormKind::Layer => (sum(x, x, |x, _| x) / width as f64) as f32,
            };
            let variance = sum(x, x, |x, _| (x - mean) * (x - mean)) / width as f64;
            let scale = (variance + epsilon).sqrt().recip() as f32;
            // In place of dx, for now, the gradient of the norm before its weight.
            let elements = dx.iter_mut().zip(dy).zip(weight).zip(x).zip(sums.iter_mut());
            for ((((dx, dy), weight), x), sum) in elements {
                *sum += dy * ((x - mean) * scale);
                *dx = dy * weight;
            }
            let along = sum(dx, x, |d, x| d * (x - mean)) / width as f64;
            let along = (along as f32) * scale * scale;
            let shift = match kind {
                NormKind::Rms => 0.0,
                NormKind::Layer => (sum(dx, x, |d, _| d) / width as f64) as f32,
            };
            for (dx, x) in dx.iter_mut().zip(x) {
                *dx = scale * (*dx - shift - along * (x - mean));
            }
        }
    }
}

/// The sum of a function of the elements of two rows, in sixteen lanes and a fixed order.
#[inline(always)]
fn sum(a: &[f32], b: &[f32], of: impl Fn(f32, f32) -> f32) -> f64 {
    const LANES: usize = 16;
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += of(*a, *b);
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(a_rest).zip(b_rest) {
        *sum += of(*a, *b);
    }
    sums.into_iter().map(f64::from).sum()
}
