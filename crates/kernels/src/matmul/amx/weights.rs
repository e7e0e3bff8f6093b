//! Weights as tiles, where they lie in memory, and those that will be read next.

use std::ops::Range;

use half::bf16;

use super::super::Operands;
use super::tiles::{ROW_BYTES, ROWS, STEP};
use crate::simd::{F32x16, Vector};

/// A tile of weights that are not all there, with zeros where they are not.
#[repr(align(64))]
pub(super) struct Edge([bf16; ROWS * STEP]);

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

/// Which weights are fetched into the second-level cache ahead of need: those of the next panel, in
/// the order in which they lie in memory, while this one is computed for its first row blocks.
pub(super) struct PanelPrefetch {
    next: *const u8,
    lines: usize,
}

impl PanelPrefetch {
    const LINE: usize = 64;

    /// The most row blocks that share the fetching.
    const SHARES: usize = 4;

    /// For one of so many row blocks, of which a step takes `height` weights of a panel's side by side.
    pub(super) fn new(
        operands: &Operands<bf16, bf16>,
        panel: &Range<usize>,
        height: usize,
        (row_block, row_blocks): (usize, usize),
    ) -> Self {
        let shares = row_blocks.min(Self::SHARES);
        let row_bytes = operands.size.k * size_of::<bf16>();
        let share = panel.len() * row_bytes / shares;
        Self {
            next: operands
                .weight
                .cast::<u8>()
                .wrapping_add(panel.end * row_bytes + row_block * share),
            lines: match row_block < shares {
                true => height * STEP * size_of::<bf16>() / Self::LINE / shares,
                false => 0,
            },
        }
    }

    /// Fetches as much as a step reads, or a share of that.
    #[inline(always)]
    pub(super) fn fetch(&mut self) {
        for line in 0..self.lines {
            F32x16::prefetch(self.next.wrapping_add(line * Self::LINE));
        }
        self.next = self.next.wrapping_add(self.lines * Self::LINE);
    }
}
