//! `y = x · Wᵀ` over slices.
//!
//! [`linear_into`] shares the product among the threads of the current rayon pool and runs each share with the widest
//! instructions at hand. The loops are written once, in `tile`, over a vector type that `portable`, `avx2` and
//! `avx512` each supply.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod element;
mod grid;
mod portable;
mod tile;

use std::ops::Range;

use rayon::prelude::*;

use crate::{Isa, Weight};
use element::Element;
use grid::Grid;

/// The sizes of one product: `x [m, k]`, `W [n, k]`, `y [m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows of `x` and of `y`: tokens.
    pub m: usize,
    /// Rows of `W`, columns of `y`: output features.
    pub n: usize,
    /// Columns of `x` and of `W`: input features.
    pub k: usize,
}

/// Writes `x · Wᵀ` to `y`: `x [m, k]`, `weight [n, k]`, `y [m, n]`, all row-major without gaps.
///
/// Runs on the current rayon pool when the product is large enough to share. The
/// [contract](crate#the-contract) says what a result depends on.
///
/// # Panics
///
/// If a slice does not have the length that `size` asks for.
pub fn linear_into(x: &[f32], weight: Weight<'_>, size: Size, y: &mut [f32]) {
    linear_into_with(Isa::detected(), x, weight, size, y);
}

/// [`linear_into`] with a chosen set of instructions, to compare one with another.
///
/// # Panics
///
/// If this processor does not have `isa`, or as [`linear_into`] does.
pub fn linear_into_with(isa: Isa, x: &[f32], weight: Weight<'_>, size: Size, y: &mut [f32]) {
    let Size { m, n, k } = size;
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    assert_eq!(
        Some(x.len()),
        m.checked_mul(k),
        "x must hold m * k elements, for {size:?}"
    );
    assert_eq!(
        Some(weight.len()),
        n.checked_mul(k),
        "weight must hold n * k elements, for {size:?}"
    );
    assert_eq!(
        Some(y.len()),
        m.checked_mul(n),
        "y must hold m * n elements, for {size:?}"
    );
    match weight {
        Weight::Bf16(elements) => share(isa, x, elements, size, y),
        Weight::F16(elements) => share(isa, x, elements, size, y),
        Weight::F32(elements) => share(isa, x, elements, size, y),
    }
}

/// Cuts the output into regions and computes each on some thread.
fn share<E: Element>(isa: Isa, x: &[f32], weight: &[E], size: Size, y: &mut [f32]) {
    let grid = Grid::new(size, size_of::<E>(), rayon::current_num_threads());
    let job = Job {
        x: x.as_ptr(),
        weight: weight.as_ptr(),
        y: y.as_mut_ptr(),
        size,
    };
    if grid.regions() == 1 {
        // SAFETY: as below, with one region.
        unsafe { job.region(isa, 0..size.m, 0..size.n) };
        return;
    }
    (0..grid.regions())
        .into_par_iter()
        .with_max_len(1)
        .for_each(|index| {
            let (rows, columns) = grid.region(index);
            // SAFETY: `linear_into_with` checked that `isa` is available and that the three slices have the lengths
            // that `size` asks for. They are borrowed until `for_each` returns. The regions of a grid lie within the
            // output and do not overlap, so that no element of `y` is written by two calls; nothing reads `y`.
            unsafe { job.region(isa, rows, columns) };
        });
}

/// One product as the loops see it: three matrices, row-major without gaps.
#[derive(Clone, Copy)]
struct Job<E> {
    x: *const f32,
    weight: *const E,
    y: *mut f32,
    size: Size,
}

// SAFETY: a job is three addresses and three sizes. What threads may do with the addresses is the contract of
// `region`.
unsafe impl<E: Sync> Sync for Job<E> {}

impl<E: Element> Job<E> {
    /// Computes `y[rows, columns]`.
    ///
    /// # Safety
    ///
    /// - This processor has `isa`.
    /// - `x`, `weight` and `y` point to `m * k`, `n * k` and `m * n` elements, valid to read (`x`, `weight`) or write
    ///   (`y`) for the whole call.
    /// - `rows` lies within `0..m` and `columns` within `0..n`, and during the call nothing else reads or writes
    ///   `y[rows, columns]`.
    unsafe fn region(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>) {
        // SAFETY: the caller's promises are those that each of these asks for.
        unsafe {
            match isa {
                Isa::Portable => portable::region(self, rows, columns),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::region(self, rows, columns),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => avx512::region(self, rows, columns),
                #[cfg(not(target_arch = "x86_64"))]
                Isa::Avx2 | Isa::Avx512 => portable::region(self, rows, columns),
            }
        }
    }
}
