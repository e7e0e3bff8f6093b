//! Small-M gemm: up to sixteen rows of activations, one tile of them for each step.
//!
//! An instruction on tiles takes 16 cycles, but whatever needs its sums waits for 52 of them (Intel's
//! optimization manual). So three tiles of weights are multiplied side by side: the first one's sums
//! are there again when the others have begun. Nothing is read again, and sums stay in registers
//! from the first step to the last.

use std::ops::Range;

use half::bf16;

use super::super::Operands;
use super::tiles::{self, Aligned, COLUMNS, ROW_BYTES, ROWS, Tiles};
use super::weights::{Edge, PanelPrefetch, weights};
use super::{Amx, SUMS};

/// Tiles of weights side by side.
const TILES: usize = 3;

/// Rows of weights that are multiplied side by side.
pub(super) const TRIPLE: usize = TILES * ROWS;

impl Amx<'_> {
    /// Computes `y[rows, columns]` of at most [`COLUMNS`] rows, three tiles of weights at a time.
    ///
    /// # Safety
    ///
    /// As for [`Amx::walk`].
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn small_m_columns<const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        debug_assert!(rows.len() <= COLUMNS);
        let mut sums = Aligned([[0.0f32; SUMS]; TILES]);
        let mut edges = [const { Edge::new() }; TILES];
        let x = operands.x.wrapping_add(self.layout.start(rows.start));
        // SAFETY: the processor has AMX, and there is one such loop on a thread at a time.
        let _tiles = unsafe { Tiles::configure(self.layout.columns, 3..=5) };
        for first in columns.clone().step_by(TRIPLE) {
            let triple = first..columns.end.min(first + TRIPLE);
            let next = triple.end..triple.end + triple.len();
            let steps = 0..self.layout.steps();
            let prefetch = PanelPrefetch::new(operands, next, &steps, TRIPLE, (0, 1));
            let tiles = triple.len().div_ceil(ROWS);
            // SAFETY: the caller's promises, for weights and rows within its own; tiles are
            // configured for the columns of the layout and for weights in the last of the six.
            unsafe {
                let sums = &mut sums.0;
                match tiles {
                    1 => self.tiles::<1, PARTS>(operands, &triple, x, prefetch, sums, &mut edges),
                    2 => self.tiles::<2, PARTS>(operands, &triple, x, prefetch, sums, &mut edges),
                    _ => self.tiles::<3, PARTS>(operands, &triple, x, prefetch, sums, &mut edges),
                }
                for (column, sums) in triple.clone().step_by(ROWS).zip(sums) {
                    let columns = column..triple.end.min(column + ROWS);
                    self.write_tile(operands, rows.clone(), columns, sums);
                }
            }
        }
    }

    /// Computes the sums of so many tiles of weights, all steps.
    ///
    /// # Safety
    ///
    /// As for [`small_m_columns`](Self::small_m_columns); `HEIGHT` tiles hold these weights, and `x` has all steps.
    #[inline(always)]
    unsafe fn tiles<const HEIGHT: usize, const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        columns: &Range<usize>,
        mut x: *const bf16,
        mut prefetch: PanelPrefetch,
        sums: &mut [[f32; SUMS]; TILES],
        [first, second, third]: &mut [Edge; TILES],
    ) {
        let (x_tile, x_stride) = (self.layout.tile(), 4 * self.layout.columns);
        // SAFETY: tiles are configured, as the caller promises. Tiles of sums have their places in
        // `sums`, rows of 64 bytes; those of weights lie where `weights` says, and those of
        // activations in `x`, which was packed for these steps, one after the other.
        unsafe {
            tiles::zero!(0);
            tiles::zero!(1);
            tiles::zero!(2);
            for step in 0..self.layout.steps() {
                prefetch.fetch();
                let tile = |index: usize, edge| {
                    let row = columns.start + index * ROWS;
                    weights(operands, row, ROWS.min(columns.end - row), step, edge)
                };
                let (from, stride) = tile(0, &mut *first);
                tiles::load!(3, from, stride);
                if HEIGHT > 1 {
                    let (from, stride) = tile(1, &mut *second);
                    tiles::load!(4, from, stride);
                }
                if HEIGHT > 2 {
                    let (from, stride) = tile(2, &mut *third);
                    tiles::load!(5, from, stride);
                }
                for _ in 0..PARTS {
                    tiles::load!(6, x, x_stride);
                    tiles::multiply!(0, 3, 6);
                    if HEIGHT > 1 {
                        tiles::multiply!(1, 4, 6);
                    }
                    if HEIGHT > 2 {
                        tiles::multiply!(2, 5, 6);
                    }
                    x = x.wrapping_add(x_tile);
                }
            }
            tiles::store!(0, sums[0].as_mut_ptr(), ROW_BYTES);
            tiles::store!(1, sums[1].as_mut_ptr(), ROW_BYTES);
            tiles::store!(2, sums[2].as_mut_ptr(), ROW_BYTES);
        }
    }
}
