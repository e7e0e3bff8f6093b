//! Row blocks of activations by panels of weights: two by two tiles of sums in registers.

use std::cell::Cell;
use std::ops::Range;

use half::bf16;

use super::super::Operands;
use super::super::pack::Scratch;
use super::blocking::{Blocking, Panel, pieces};
use super::pack::ROW_BLOCK;
use super::tiles::{self, COLUMNS, ROW_BYTES, ROWS, TILE};
use super::weights::{Edge, PanelPrefetch, weights};
use super::{Amx, PAIR, SUMS};

// Kept from one matmul to the next: fresh pages would cost more than what is saved.
thread_local! {
    static TILES: Cell<Vec<bf16>> = const { Cell::new(Vec::new()) };
    static WAITING: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// What panels work with besides tile registers.
pub(super) struct PanelMemory {
    /// Weights of a panel, two tiles for each pair and step.
    tiles: Scratch<bf16>,
    /// Four tiles of sums for each pair and row block.
    sums: Scratch<f32>,
    edges: [Edge; 2],
}

impl PanelMemory {
    pub(super) fn new(blocking: &Blocking) -> Self {
        Self {
            tiles: Scratch::new(blocking.panel_len(), &TILES),
            sums: Scratch::new(blocking.sums_len(), &WAITING),
            edges: [Edge::new(), Edge::new()],
        }
    }
}

/// Where tiles of weights are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Matrix,
    /// In the matrix, and left in the panel.
    MatrixThenPanel,
    Panel,
}

/// Some steps of a pair.
struct Block {
    /// Rows of the weight, at most [`PAIR`].
    columns: Range<usize>,
    steps: Range<usize>,
    /// Activations from the first of these steps on.
    x: *const bf16,
    place: Place,
    /// Their tiles in the panel.
    tiles: *mut bf16,
}

impl Amx<'_> {
    /// Multiplies one row block by a panel, and writes what is done.
    ///
    /// # Safety
    ///
    /// That of [`Amx::walk`]; tiles are configured for the columns of the layout, `PARTS` are its
    /// parts, and the panel's row blocks come in order.
    #[inline(always)]
    pub(super) unsafe fn row_block<const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        panel: &Panel,
        row_block: usize,
        memory: &mut PanelMemory,
    ) {
        let row = panel.rows.start + row_block * ROW_BLOCK;
        let rows = row..panel.rows.end.min(row + ROW_BLOCK);
        let row_blocks = panel.rows.len().div_ceil(ROW_BLOCK);
        let place = match (row_block, panel.is_kept()) {
            (_, false) => Place::Matrix,
            (0, true) => Place::MatrixThenPanel,
            _ => Place::Panel,
        };
        let PanelMemory { tiles, sums, edges } = memory;
        let (tiles, sums) = (tiles.as_mut_ptr(), sums.as_chunks_mut().0);
        let sums = &mut sums[row_block * panel.sums_apart..];
        let (next, ref next_steps) = panel.next;
        let next = next..next + panel.columns.len();
        let share = (row_block, row_blocks);
        let mut prefetch = PanelPrefetch::new(operands, next, next_steps, PAIR, share);
        let x = operands.x.wrapping_add(self.layout.start(row));
        let x = x.wrapping_add(panel.steps.start * self.layout.step(rows.len()));
        let is_last = panel.steps.end >= self.layout.steps();
        if is_last {
            self.fetch_outputs(operands, &rows, &panel.columns);
        }
        for (pair, columns) in pieces(&panel.columns, PAIR).enumerate() {
            let two = columns.len() > ROWS;
            let tiles = tiles.wrapping_add(pair * panel.steps.len() * 2 * TILE);
            let steps = panel.steps.clone();
            let block = Block { columns: columns.clone(), steps, x, place, tiles };
            let sums = &mut sums[pair];
            let fetch = &mut prefetch;
            // SAFETY: the caller's promises; the panel has these pairs and steps.
            unsafe {
                match (two, rows.len() > COLUMNS) {
                    (true, true) => self.block::<2, 2, PARTS>(operands, block, fetch, sums, edges),
                    (true, false) => self.block::<2, 1, PARTS>(operands, block, fetch, sums, edges),
                    (false, true) => self.block::<1, 2, PARTS>(operands, block, fetch, sums, edges),
                    (false, false) => {
                        self.block::<1, 1, PARTS>(operands, block, fetch, sums, edges)
                    }
                }
                if is_last {
                    self.write(operands, &rows, columns, sums);
                }
            }
        }
    }

    /// Adds the products of some steps to the sums of `HEIGHT` by `WIDTH` tiles; begins with zero
    /// if the steps begin with the first.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_block`]; `HEIGHT` tiles hold the rows of the block, and `WIDTH` the rows
    /// of `x`.
    #[inline(always)]
    unsafe fn block<const HEIGHT: usize, const WIDTH: usize, const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        Block { columns, steps, mut x, place, mut tiles }: Block,
        prefetch: &mut PanelPrefetch,
        sums: &mut [f32; 4 * SUMS],
        [edge, other_edge]: &mut [Edge; 2],
    ) {
        let (tile, x_stride) = (self.layout.tile(), 4 * self.layout.columns);
        let (upper, lower) = (ROWS.min(columns.len()), columns.len().saturating_sub(ROWS));
        let sums = sums.as_mut_ptr();
        // SAFETY: tiles are configured, as the callers promise. Tiles of sums have their places in
        // `sums`, rows of 64 bytes; those of weights lie where `weights` says, or in the panel, whole
        // ones, where the first row block left them; and those of activations in `operands.x`, which
        // was packed for these steps, one after the other.
        unsafe {
            if steps.start == 0 {
                tiles::zero!(0);
                tiles::zero!(1);
                tiles::zero!(2);
                tiles::zero!(3);
            } else {
                tiles::load!(0, sums, ROW_BYTES);
                if WIDTH == 2 {
                    tiles::load!(1, sums.add(SUMS), ROW_BYTES);
                }
                if HEIGHT == 2 {
                    tiles::load!(2, sums.add(2 * SUMS), ROW_BYTES);
                }
                if HEIGHT == 2 && WIDTH == 2 {
                    tiles::load!(3, sums.add(3 * SUMS), ROW_BYTES);
                }
            }
            for step in steps {
                prefetch.fetch();
                let (from, stride) = match place {
                    Place::Panel => (tiles.cast_const(), ROW_BYTES),
                    _ => weights(operands, columns.start, upper, step, edge),
                };
                tiles::load!(4, from, stride);
                if HEIGHT == 2 {
                    let (from, stride) = match place {
                        Place::Panel => (tiles.wrapping_add(TILE).cast_const(), ROW_BYTES),
                        _ => weights(operands, columns.start + ROWS, lower, step, other_edge),
                    };
                    tiles::load!(5, from, stride);
                }
                if place == Place::MatrixThenPanel {
                    tiles::store!(4, tiles, ROW_BYTES);
                    if HEIGHT == 2 {
                        tiles::store!(5, tiles.wrapping_add(TILE), ROW_BYTES);
                    }
                }
                tiles = tiles.wrapping_add(2 * TILE);
                for _ in 0..PARTS {
                    tiles::load!(6, x, x_stride);
                    tiles::multiply!(0, 4, 6);
                    if HEIGHT == 2 {
                        tiles::multiply!(2, 5, 6);
                    }
                    if WIDTH == 2 {
                        tiles::load!(7, x.wrapping_add(tile), x_stride);
                        tiles::multiply!(1, 4, 7);
                    }
                    if HEIGHT == 2 && WIDTH == 2 {
                        tiles::multiply!(3, 5, 7);
                    }
                    x = x.wrapping_add(WIDTH * tile);
                }
            }
            tiles::store!(0, sums, ROW_BYTES);
            if WIDTH == 2 {
                tiles::store!(1, sums.add(SUMS), ROW_BYTES);
            }
            if HEIGHT == 2 {
                tiles::store!(2, sums.add(2 * SUMS), ROW_BYTES);
            }
            if HEIGHT == 2 && WIDTH == 2 {
                tiles::store!(3, sums.add(3 * SUMS), ROW_BYTES);
            }
        }
    }
}
