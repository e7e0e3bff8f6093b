//! Root-mean-square norm, over slices.

use std::borrow::Cow;

use crate::loops::{for_each_isa, rows_per_share, share};
use crate::{Isa, Weight};

/// Lanes that a row is summed in.
pub(crate) const LANES: usize = 16;

/// Writes `x / √(mean(x²) + epsilon) · weight` of each row to `y`; `x` and `y` are `[rows, width]`
/// with the width of `weight`.
///
/// Each row is summed in sixteen lanes in a fixed order, so that all instruction sets, and any
/// number of threads and of rows, give the same bits. The error of an element is at most `(width /
/// 32 + 8) · 2⁻²³` of it.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn rms_norm_into(x: &[f32], weight: Weight<'_>, epsilon: f64, y: &mut [f32]) {
    rms_norm_into_with(Isa::detected(), x, weight, epsilon, y);
}

/// [`rms_norm_into`] with a chosen set of instructions.
///
/// # Panics
///
/// If this processor does not have `isa`, or as [`rms_norm_into`] does.
pub fn rms_norm_into_with(isa: Isa, x: &[f32], weight: Weight<'_>, epsilon: f64, y: &mut [f32]) {
    let weight = checked(x, weight, y);
    share_rows(x, weight.len(), y, |x, y| norm(isa, x, &weight, epsilon, y));
}

/// Adds `add`, of the size of `x`, to `x`, and writes the norm of the sums to `y`, as
/// [`rms_norm_into`] does.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn add_rms_norm_into(
    x: &mut [f32],
    add: &[f32],
    weight: Weight<'_>,
    epsilon: f64,
    y: &mut [f32],
) {
    add_rms_norm_into_with(Isa::detected(), x, add, weight, epsilon, y);
}

/// [`add_rms_norm_into`] with a chosen set of instructions.
///
/// # Panics
///
/// If this processor does not have `isa`, or as [`add_rms_norm_into`] does.
pub fn add_rms_norm_into_with(
    isa: Isa,
    x: &mut [f32],
    add: &[f32],
    weight: Weight<'_>,
    epsilon: f64,
    y: &mut [f32],
) {
    let weight = checked(x, weight, y);
    share_sums(isa, x, add, weight.len(), y, |x, y| norm(isa, x, &weight, epsilon, y));
}

/// Calls `norm` with rows of `x` and the same of `y`, on several threads if there are many.
pub(crate) fn share_rows(
    x: &[f32],
    width: usize,
    y: &mut [f32],
    norm: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    match rows_per_share(x.len() / width.max(1), width) {
        None => norm(x, y),
        Some(rows) => {
            let pieces = y.chunks_mut(rows * width).zip(x.chunks(rows * width));
            share(pieces, |(y, x)| norm(x, y));
        }
    }
}

/// As [`share_rows`], after `add` is added to `x`.
///
/// # Panics
///
/// If `x` and `add` differ in length.
pub(crate) fn share_sums(
    isa: Isa,
    x: &mut [f32],
    add: &[f32],
    width: usize,
    y: &mut [f32],
    norm: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    assert_eq!(x.len(), add.len(), "what is added must have the size of what it is added to");
    let both = |x: &mut [f32], add: &[f32], y: &mut [f32]| {
        sum(isa, x, add);
        norm(x, y);
    };
    match rows_per_share(x.len() / width.max(1), width) {
        None => both(x, add, y),
        Some(rows) => {
            let size = rows * width;
            let x = x.chunks_mut(size).zip(add.chunks(size));
            share(x.zip(y.chunks_mut(size)), |((x, add), y)| both(x, add, y));
        }
    }
}

/// The weight in f32.
pub(crate) fn checked<'a>(x: &[f32], weight: Weight<'a>, y: &[f32]) -> Cow<'a, [f32]> {
    assert_eq!(x.len(), y.len(), "a norm has the size of what it is of");
    assert!(
        x.is_empty() || (!weight.is_empty() && x.len().is_multiple_of(weight.len())),
        "rows of the weight's {} elements must fill {}",
        weight.len(),
        x.len()
    );
    widened(weight)
}

pub(crate) fn widened(weight: Weight<'_>) -> Cow<'_, [f32]> {
    if let Weight::F32(weight) = weight {
        return Cow::Borrowed(weight);
    }
    let mut wide = vec![0.0; weight.len()];
    weight.widen(&mut wide);
    Cow::Owned(wide)
}

for_each_isa!(
    fn sum = sum_each(x: &mut [f32], add: &[f32])
);

#[inline(always)]
fn sum_each(x: &mut [f32], add: &[f32]) {
    for (x, add) in x.iter_mut().zip(add) {
        *x += add;
    }
}

for_each_isa!(
    fn norm = norm_rows(x: &[f32], weight: &[f32], epsilon: f64, y: &mut [f32])
);

#[inline(always)]
fn norm_rows(x: &[f32], weight: &[f32], epsilon: f64, y: &mut [f32]) {
    let width = weight.len();
    if width == 0 {
        return;
    }
    for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
        let mean = lanes_sum(x, |x| x * x) / width as f64;
        let scale = (mean + epsilon).sqrt().recip() as f32;
        for ((y, x), weight) in y.iter_mut().zip(x).zip(weight) {
            *y = x * scale * weight;
        }
    }
}

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
