//! Weights of 16 bits widened to f32 a panel at a time, for many rows of activations.
//!
//! Loops of eight lanes or fewer spend a quarter of their time on widening if each row block of
//! activations widens all weights anew. Widened once, into memory that stays in the second-level
//! cache, weights are loaded as they are multiplied. The values are the same, and so are the bits
//! of results.

use std::cell::Cell;
use std::ops::Range;

use super::pack::Scratch;
use super::tile::{self, RowMajor};
use super::{Element, Operands, panels};
use crate::Isa;
use crate::simd::Vector;

thread_local! {
    static PANEL: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Rows of a panel of a weight with `k` columns.
#[inline(always)]
fn height(k: usize) -> usize {
    panels::width(k, size_of::<f32>())
}

/// An upper bound on the bytes that a thread keeps for panels of weights of up to so many columns.
pub(super) fn panel_bytes(isa: Isa, columns: u64) -> u64 {
    // Those of fewer than sixteen lanes.
    if !matches!(isa, Isa::Portable | Isa::Avx2) {
        return 0;
    }
    let rows = height(usize::try_from(columns).unwrap_or(usize::MAX)) as u64;
    columns.saturating_mul(4 * rows).saturating_add(64)
}

/// As [`tile::region`], for row-major activations; by way of panels where that pays.
///
/// # Safety
///
/// As there, with the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn region<V: Vector, E: Element>(
    operands: &Operands<f32, E>,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    if <V as Vector>::LANES == 16 || size_of::<E>() == size_of::<f32>() {
        // SAFETY: the caller's promises.
        return unsafe { tile::region::<V, E, _>(operands, RowMajor, rows, columns) };
    }
    let k = operands.size.k;
    let height = height(k);
    let mut panel = Scratch::new(height.min(columns.len()) * k, &PANEL);
    for start in columns.clone().step_by(height) {
        let some = height.min(columns.end - start);
        let weight = operands.weight.wrapping_add(start * k);
        // What comes next has half as many bytes as this panel.
        let eighths = if start + some < columns.end { 4 } else { 0 };
        let next = (weight.wrapping_add(some * k).cast(), eighths);
        // SAFETY: the caller's promises: the weight has these rows, and `y` is where the first of
        // them goes. The panel holds as many.
        unsafe {
            widen::<V, E>(weight, &mut panel[..some * k]);
            let (weight, y) = (panel.as_ptr(), operands.y.add(start));
            let operands = Operands { x: operands.x, weight, y, size: operands.size };
            tile::panel::<V, f32, _>(&operands, RowMajor, rows.clone(), 0..some, 0, next);
        }
    }
}

/// Widens as many elements as there is room for.
///
/// # Safety
///
/// The processor has the instructions of `V`, and `from` points to that many.
#[inline(always)]
unsafe fn widen<V: Vector, E: Element>(from: *const E, to: &mut [f32]) {
    let (mut chunks, mut from) = (to.chunks_exact_mut(<V as Vector>::LANES), from);
    // SAFETY: the caller's promises: each vector is loaded from as many elements as it has lanes or
    // as are left, and stored where there is room for all lanes.
    unsafe {
        for chunk in &mut chunks {
            E::load::<V>(from).store(chunk.as_mut_ptr());
            from = from.add(<V as Vector>::LANES);
        }
        let rest = chunks.into_remainder();
        if !rest.is_empty() {
            let mut last = [0.0; 16];
            E::load_part::<V>(from, rest.len()).store(last.as_mut_ptr());
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}
