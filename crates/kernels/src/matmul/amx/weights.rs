//! Weights as tiles, where they lie in memory.
//!
//! No instruction fetches the next panel: the processor does so by itself, row by row of a tile or two, and
//! instructions that do it fill its queues.

use half::bf16;

use super::super::Operands;
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
