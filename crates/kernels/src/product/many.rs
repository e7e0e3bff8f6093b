//! Products of many rows of activations, shared among threads panel by panel.

use super::pack::Strips;
use super::panels::Panels;
use super::skinny::Claims;
use super::{F32x4, Job, Loops, Size, Vector, Widened};
#[cfg(target_arch = "x86_64")]
use super::{F32x8, F32x16};
use crate::{Isa, Weight, team};

/// The product with weights widened to f32.
pub(super) fn widened(isa: Isa, x: &[f32], weight: Weight<'_>, size: Size, y: &mut [f32]) {
    let tallest = match isa {
        Isa::Portable => <F32x4 as Vector>::TALLEST,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => <F32x8 as Vector>::TALLEST,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 => <F32x16 as Vector>::TALLEST,
        #[cfg(not(target_arch = "x86_64"))]
        _ => <F32x4 as Vector>::TALLEST,
    };
    let strips = Strips::of_many(size.m, tallest);
    match weight {
        Weight::Bf16(weight) => share(Widened(isa), strips, x, weight, size, y),
        Weight::F16(weight) => share(Widened(isa), strips, x, weight, size, y),
        Weight::F32(weight) => share(Widened(isa), strips, x, weight, size, y),
    }
}

/// Computes a product of many rows, panel by panel, on as many threads as it is worth. `x` is as the loops read it, which cut it
/// into these strips.
pub(super) fn share<X: Sync + 'static, E: Sync>(
    loops: impl Loops<X, E>,
    strips: Strips,
    x: &[X],
    weight: &[E],
    size: Size,
    y: &mut [f32],
) {
    let job = Job {
        x: x.as_ptr(),
        weight: weight.as_ptr(),
        y: y.as_mut_ptr(),
        size,
    };
    let panels = Panels::new(size, size_of::<E>(), strips);
    let compute = |run| {
        for (rows, columns) in panels.regions(run) {
            // SAFETY: `linear_into_with` checked that `isa`, which chose these loops, is available, and that the slices have the
            // lengths that `size` asks for; `x` was packed for these strips, or needs none. All are borrowed until
            // `share` returns. Regions lie within the output, begin and end with strips and do not overlap, so
            // that no element of `y` is written by two calls; nothing reads `y`.
            unsafe { loops.region(&job, rows, columns) };
        }
    };
    let threads = rayon::current_num_threads();
    let claims = Claims::of(panels.blocks(), threads);
    if !claims.are_many() {
        return compute(0..panels.blocks());
    }
    team::share(threads, || {
        while let Some(run) = claims.claim() {
            compute(run);
        }
    });
}
