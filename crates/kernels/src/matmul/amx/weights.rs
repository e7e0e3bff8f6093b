//! Weights as tiles, where they lie in memory, and those that will be read next.

use std::ops::Range;

use half::bf16;

use super::super::Operands;
use super::tiles::{Aligned, ROW_BYTES, ROWS, STEP, TILE};
use crate::simd::{F32x16, Vector};

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

/// Which weights are fetched into the second-level cache ahead of need: those of the next panel, row
/// after row, while this one meets its last row blocks.
pub(super) struct PanelPrefetch {
    next: *const u8,
    /// Lines of a row, and how many of them are left in this one.
    row_lines: usize,
    left: usize,
    /// Bytes from the end of a row's lines to those of the next.
    skip: usize,
    /// What a step fetches.
    lines: usize,
}

impl PanelPrefetch {
    const LINE: usize = 64;

    /// The most row blocks that share the fetching: the last ones, as what is fetched sooner may be gone
    /// again.
    const SHARES: usize = 4;

    /// For a row block of so many, of which a step takes `height` rows of weights side by side; the next
    /// panel has so many rows, and these steps.
    pub(super) fn new(
        operands: &Operands<bf16, bf16>,
        rows: Range<usize>,
        steps: &Range<usize>,
        height: usize,
        (row_block, row_blocks): (usize, usize),
    ) -> Self {
        let shares = row_blocks.min(Self::SHARES);
        let share = row_block.checked_sub(row_blocks - shares);
        let row_bytes = operands.size.k * size_of::<bf16>();
        // A step is a line, but for a part of the last one.
        let row_lines = steps.len().max(1);
        let first = rows.len() * row_lines / shares * share.unwrap_or(0);
        let (row, line) = (rows.start + first / row_lines, first % row_lines);
        Self {
            next: operands
                .weight
                .cast::<u8>()
                .wrapping_add(row * row_bytes + (steps.start + line) * Self::LINE),
            row_lines,
            left: match row_bytes == row_lines * Self::LINE {
                // Rows are whole: the next one follows.
                true => usize::MAX,
                false => row_lines - line,
            },
            skip: row_bytes.wrapping_sub(row_lines * Self::LINE),
            lines: share.map_or(0, |_| height / shares),
        }
    }

    /// Fetches as much as a step reads, or a share of that.
    #[inline(always)]
    pub(super) fn fetch(&mut self) {
        let mut lines = self.lines;
        while lines > 0 {
            let some = lines.min(self.left);
            for line in 0..some {
                F32x16::prefetch(self.next.wrapping_add(line * Self::LINE));
            }
            self.next = self.next.wrapping_add(some * Self::LINE);
            self.left -= some;
            lines -= some;
            if self.left == 0 {
                self.left = self.row_lines;
                self.next = self.next.wrapping_add(self.skip);
            }
        }
    }
}

const _: () = assert!(STEP * size_of::<bf16>() == PanelPrefetch::LINE);
