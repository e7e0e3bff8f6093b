//! Few row blocks: weights where they lie in memory, one tile at a time.
//!
//! A tile of weights meets up to four of activations, which are in the second-level cache: so
//! products take less time than memory, and weights come as fast as it gives them. That is so only
//! one tile at a time: the processor fetches ahead for some thirty-two rows at most, and what is
//! fetched far ahead by instructions fills its queues. A few lines ahead they help, most of all
//! where products take about as long as memory. Further row blocks find the rows of a tile in the
//! second-level cache.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::ops::Range;

use half::bf16;

use super::super::Operands;
use super::block::PanelMemory;
use super::blocking::Panel;
use super::pack::ROW_BLOCK;
use super::tiles::{self, COLUMNS, ROW_BYTES, ROWS};
use super::weights::{Edge, weights};
use super::{Amx, SUMS};

/// Tiles of activations that one of weights meets at once.
const WIDTH: usize = 4;

/// How many steps ahead weights are fetched.
const AHEAD: usize = 3;

impl Amx<'_> {
    /// Multiplies all row blocks by a panel, which has all steps.
    ///
    /// # Safety
    ///
    /// That of [`Amx::walk`]; tiles are configured for the columns of the layout, and `PARTS` are
    /// its parts.
    #[inline(always)]
    pub(super) unsafe fn in_place<const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        panel: &Panel,
        memory: &mut PanelMemory,
    ) {
        let mut edge = Edge::new();
        let tiles = panel.columns.clone().step_by(ROWS).enumerate();
        let sides = self.each_side(operands).enumerate();
        let all = sides.flat_map(|side| tiles.clone().map(move |tile| (side, tile)));
        for ((side, operands), (at, first)) in all {
            let columns = first..panel.columns.end.min(first + ROWS);
            let pair = side * panel.pairs() + at / 2;
            for (group, first) in panel.rows.clone().step_by(WIDTH * COLUMNS).enumerate() {
                let rows = first..panel.rows.end.min(first + WIDTH * COLUMNS);
                let sums = [0, 1].map(|right| {
                    let row_block = group * WIDTH * COLUMNS / ROW_BLOCK + right;
                    memory.sums(panel.sums(row_block, pair)).wrapping_add(at % 2 * 2 * SUMS)
                });
                let weights = (&columns, &mut edge);
                // SAFETY: the caller's promises.
                unsafe {
                    match rows.len().div_ceil(COLUMNS) {
                        1 => self.tile_in_place::<1, PARTS>(&operands, rows, weights, sums),
                        2 => self.tile_in_place::<2, PARTS>(&operands, rows, weights, sums),
                        3 => self.tile_in_place::<3, PARTS>(&operands, rows, weights, sums),
                        _ => self.tile_in_place::<4, PARTS>(&operands, rows, weights, sums),
                    }
                }
            }
        }
        for row_block in 0..panel.row_blocks() {
            // SAFETY: the caller's promises.
            unsafe { self.end_row_block::<PARTS>(operands, panel, row_block, memory) };
        }
    }

    /// Multiplies `WIDTH` tiles of activations by one of weights, step after step; leaves two tiles
    /// of sums in each place.
    ///
    /// # Safety
    ///
    /// As for [`Amx::in_place`]; there are so many tiles of these rows, at most sixteen columns,
    /// and places for sums.
    // Inlined beside the other loops, this one keeps its addresses in memory.
    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    unsafe fn tile_in_place<const WIDTH: usize, const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        rows: Range<usize>,
        (columns, edge): (&Range<usize>, &mut Edge),
        [near, far]: [*mut f32; 2],
    ) {
        let layout = &self.layout;
        let (x_tile, x_stride) = (layout.tile(), 4 * layout.columns);
        // Two row blocks are apart, each with its tiles of a step side by side.
        let (first, second) = (WIDTH.min(2), WIDTH.saturating_sub(2));
        let mut x = operands.x.wrapping_add(layout.start(rows.start));
        let mut other_x = operands.x.wrapping_add(layout.start(rows.start + ROW_BLOCK));
        // SAFETY: tiles are configured for the columns of the layout. Weights lie where `weights`
        // says; activations were packed for these steps, one after the other; sums have rows of 64
        // bytes.
        unsafe {
            tiles::zero!(0);
            if WIDTH > 1 {
                tiles::zero!(1);
            }
            if WIDTH > 2 {
                tiles::zero!(2);
            }
            if WIDTH > 3 {
                tiles::zero!(3);
            }
            for step in 0..layout.steps() {
                let (from, stride) = weights(operands, columns.start, columns.len(), step, edge);
                for row in 0..ROWS {
                    let ahead = row * stride + AHEAD * ROW_BYTES;
                    _mm_prefetch::<_MM_HINT_T0>(from.cast::<i8>().wrapping_add(ahead));
                }
                tiles::load!(4, from, stride);
                for _ in 0..PARTS {
                    tiles::load!(6, x, x_stride);
                    tiles::multiply!(0, 4, 6);
                    if WIDTH > 1 {
                        tiles::load!(7, x.wrapping_add(x_tile), x_stride);
                        tiles::multiply!(1, 4, 7);
                    }
                    if WIDTH > 2 {
                        tiles::load!(6, other_x, x_stride);
                        tiles::multiply!(2, 4, 6);
                    }
                    if WIDTH > 3 {
                        tiles::load!(7, other_x.wrapping_add(x_tile), x_stride);
                        tiles::multiply!(3, 4, 7);
                    }
                    x = x.wrapping_add(first * x_tile);
                    other_x = other_x.wrapping_add(second * x_tile);
                }
            }
            tiles::store!(0, near, ROW_BYTES);
            if WIDTH > 1 {
                tiles::store!(1, near.wrapping_add(SUMS), ROW_BYTES);
            }
            if WIDTH > 2 {
                tiles::store!(2, far, ROW_BYTES);
            }
            if WIDTH > 3 {
                tiles::store!(3, far.wrapping_add(SUMS), ROW_BYTES);
            }
        }
    }
}
