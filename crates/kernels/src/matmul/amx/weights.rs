//! Weights as tiles, where they lie in memory, or copied.
//!
//! No instruction fetches what comes next: the processor does so by itself, row by row of a tile or
//! two, and instructions that do it fill its queues. It does so when tiles are copied one after the
//! other, not when rows are, nor when lines are copied between products, which then wait for them.

use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_storeu_si512};

use half::bf16;

use super::super::Operands;
use super::blocking::Panel;
use super::tiles::{Aligned, ROW_BYTES, ROWS, STEP, TILE};

/// A tile of weights that are not all there, with zeros where they are not.
pub(super) type Edge = Aligned<[bf16; TILE]>;

impl Edge {
    pub(super) const fn new() -> Self {
        Self([bf16::ZERO; _])
    }
}

/// Where a tile of `rows` weights from `row` on lies, and how many bytes there are from one row to
/// the next: in the matrix, or in `edge` if the matrix ends before the tile does.
///
/// # Safety
///
/// The weight has these rows, of which there are at most [`ROWS`], and the step begins within them.
#[inline(always)]
pub(super) unsafe fn weights(
    operands: &Operands<bf16, bf16>,
    row: usize,
    rows: usize,
    step: usize,
    edge: &mut Edge,
) -> (*const bf16, usize) {
    let (k, at) = (operands.size.k, step * STEP);
    // SAFETY: the first element is one of the weight's.
    let from = unsafe { operands.weight.add(row * k + at) };
    if rows == ROWS && at + STEP <= k {
        return (from, k * size_of::<bf16>());
    }
    // Zeros, not what stands beyond: it may be no number, which no zero would make one.
    edge.0.fill(bf16::ZERO);
    let count = STEP.min(k - at);
    for (index, to) in edge.0.chunks_exact_mut(STEP).take(rows).enumerate() {
        // SAFETY: each row has `count` elements from here.
        unsafe { from.add(index * k).copy_to_nonoverlapping(to.as_mut_ptr(), count) };
    }
    (edge.0.as_ptr(), ROW_BYTES)
}

/// Copies a panel: two tiles for each pair and step.
///
/// # Safety
///
/// The processor has AVX-512; the weight has this panel, and `tiles` room for it.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn copy(operands: &Operands<bf16, bf16>, panel: &Panel, tiles: *mut bf16) {
    let mut edge = Edge::new();
    for (at, row) in panel.columns.clone().step_by(ROWS).enumerate() {
        let rows = ROWS.min(panel.columns.end - row);
        let mut to = tiles.wrapping_add((at / 2 * panel.steps.len() * 2 + at % 2) * TILE);
        for step in panel.steps.clone() {
            // SAFETY: the caller's promises; sixteen rows of 64 bytes lie where `weights` says.
            unsafe {
                let (from, stride) = weights(operands, row, rows, step, &mut edge);
                for row in 0..ROWS {
                    let line: *const __m512i = from.wrapping_byte_add(row * stride).cast();
                    let to = to.wrapping_add(row * STEP).cast();
                    _mm512_storeu_si512(to, _mm512_loadu_si512(line));
                }
            }
            to = to.wrapping_add(2 * TILE);
        }
    }
}
