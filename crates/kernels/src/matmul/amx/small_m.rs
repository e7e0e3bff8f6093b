//! Small-M gemm: up to sixteen rows of activations, one tile of them for each step.
//!
//! Nothing is read again but activations, and sums stay in registers from the first step to the last.
//! Weights come from memory as fast as it gives them only one tile at a time: the processor fetches ahead
//! for some thirty-two rows at most, and what is fetched far ahead by instructions fills its queues. In
//! three parts, which take as long as memory does, a few lines ahead they help.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ops::Range;

use half::bf16;

use super::super::Operands;
use super::tiles::{self, Aligned, COLUMNS, ROW_BYTES, ROWS, Tiles};
use super::weights::{Edge, weights};
use super::{Amx, SUMS};

/// How many steps ahead weights are fetched for products in three parts.
const AHEAD: usize = 3;

impl Amx<'_> {
    /// Computes `y[rows, columns]` of at most [`COLUMNS`] rows, a tile of weights at a time.
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
        let mut sums = Aligned([0.0f32; SUMS]);
        let mut edge = Edge::new();
        let (x_tile, x_stride) = (self.layout.tile(), 4 * self.layout.columns);
        // SAFETY: the processor has AMX, and there is one such loop on a thread at a time.
        let _tiles = unsafe { Tiles::configure(self.layout.columns) };
        for first in columns.clone().step_by(ROWS) {
            let columns = first..columns.end.min(first + ROWS);
            let mut x = operands.x.wrapping_add(self.layout.start(rows.start));
            // SAFETY: tiles are configured for the columns of the layout. Sums have their place, rows of
            // 64 bytes; weights lie where `weights` says, and activations in `x`, which was packed for
            // these steps, one after the other. The rest is the caller's promise.
            unsafe {
                tiles::zero!(0);
                for step in 0..self.layout.steps() {
                    let (from, stride) = weights(operands, first, columns.len(), step, &mut edge);
                    if PARTS > 1 {
                        for row in 0..ROWS {
                            let ahead = row * stride + AHEAD * ROW_BYTES;
                            _mm_prefetch::<_MM_HINT_T0>(from.cast::<i8>().wrapping_add(ahead));
                        }
                    }
                    tiles::load!(4, from, stride);
                    for _ in 0..PARTS {
                        tiles::load!(6, x, x_stride);
                        tiles::multiply!(0, 4, 6);
                        x = x.wrapping_add(x_tile);
                    }
                }
                tiles::store!(0, sums.0.as_mut_ptr(), ROW_BYTES);
                self.write_tile(operands, rows.clone(), columns, &sums.0);
            }
        }
    }
}
