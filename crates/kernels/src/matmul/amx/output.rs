//! From tiles of sums to `y`.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::{Operands, Size, region};
use super::tiles::{COLUMNS, ROWS};
use super::{Amx, SUMS};
use crate::Isa;
use crate::simd::transposed;

/// Sums of two by two tiles that are outputs.
pub(super) struct Finished {
    rows: Range<usize>,
    columns: Range<usize>,
    /// Which of all sums.
    sums: usize,
    /// The next of the four.
    tile: usize,
}

impl Finished {
    pub(super) fn new(rows: Range<usize>, columns: Range<usize>, sums: usize) -> Self {
        Self { rows, columns, sums, tile: 0 }
    }
}

impl Amx<'_> {
    /// Turns one more tile of sums over into `y`; gives what is left.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_block`].
    #[inline(always)]
    pub(super) unsafe fn write_next(
        &self,
        operands: &Operands<bf16, bf16>,
        finished: Finished,
        sums: &[[f32; 4 * SUMS]],
    ) -> Option<Finished> {
        let Finished { rows, columns, sums: index, tile } = &finished;
        let (column, row) = (columns.start + tile / 2 * ROWS, rows.start + tile % 2 * COLUMNS);
        if column < columns.end && row < rows.end {
            let rows = row..rows.end.min(row + COLUMNS);
            let columns = column..columns.end.min(column + ROWS);
            let sums = &sums[*index].as_chunks::<SUMS>().0[*tile];
            // SAFETY: the caller's promises: `y` has these rows and columns.
            unsafe { self.write_tile(operands, rows, columns, sums) };
        }
        (finished.tile < 3).then(|| Finished { tile: finished.tile + 1, ..finished })
    }

    /// Turns one tile of sums over into `y[rows, columns]`, at most sixteen of each.
    ///
    /// # Safety
    ///
    /// As for [`Amx::walk`].
    #[inline(always)]
    pub(super) unsafe fn write_tile(
        &self,
        operands: &Operands<bf16, bf16>,
        rows: Range<usize>,
        columns: Range<usize>,
        sums: &[f32; SUMS],
    ) {
        let n = operands.size.n;
        // SAFETY: the caller's promises: `y` has these rows and columns.
        unsafe {
            let y = operands.y.add(rows.start * n + columns.start);
            if write(sums, [rows.len(), columns.len()], y, n) && self.layout.parts > 1 {
                for row in rows {
                    for column in columns.clone() {
                        self.again(operands, row, column);
                    }
                }
            }
        }
    }

    /// Computes an output again if it is not a number, with fused multiply-adds.
    ///
    /// # Safety
    ///
    /// That of [`MatmulLoops::region`], for this one output.
    #[cold]
    unsafe fn again(&self, operands: &Operands<bf16, bf16>, row: usize, column: usize) {
        let Size { n, k, .. } = operands.size;
        // SAFETY: the output is in `y`, this row in `x`, the other in the weight; all sets of
        // instructions up to AMX are there.
        unsafe {
            let y = operands.y.add(row * n + column);
            if y.read().is_nan() {
                let one = Operands {
                    x: self.x.as_ptr().add(row * k),
                    weight: operands.weight.add(column * k),
                    y,
                    size: Size { m: 1, n: 1, k },
                };
                region(Isa::Avx512, &one, 0..1, 0..1);
            }
        }
    }
}

/// Writes a tile of sums `[weights, activations]`, rows of sixteen, to `y [height activations,
/// width weights]`, rows of `n`. Says whether any is not a number.
///
/// # Safety
///
/// The processor has AVX-512; `y` has these rows, which nothing else reads or writes meanwhile;
/// `height` and `width` are at most 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn write(sums: &[f32; SUMS], [height, width]: [usize; 2], y: *mut f32, n: usize) -> bool {
    let mut is_nan = false;
    // A row or two are gathered sooner than sixteen are turned over.
    if height <= 2 {
        for row in 0..height {
            for column in 0..width {
                let sum = sums[column * COLUMNS + row];
                is_nan |= sum.is_nan();
                // SAFETY: the caller's promise.
                unsafe { y.add(row * n + column).write(sum) };
            }
        }
        return is_nan;
    }
    // SAFETY: the array holds sixteen vectors.
    let columns = std::array::from_fn(|column| unsafe {
        _mm512_loadu_si512(sums.as_ptr().add(column * COLUMNS).cast())
    });
    // SAFETY: the processor has AVX-512.
    let rows = unsafe { transposed(columns) };
    let there = ((1u32 << width) - 1) as u16;
    for (row, values) in rows.into_iter().enumerate().take(height) {
        let values = _mm512_castsi512_ps(values);
        is_nan |= _mm512_mask_cmp_ps_mask::<_CMP_UNORD_Q>(there, values, values) != 0;
        // SAFETY: a masked store of `width` elements touches no others.
        unsafe { _mm512_mask_storeu_ps(y.add(row * n), there, values) };
    }
    is_nan
}
