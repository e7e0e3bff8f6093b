//! Row blocks of activations by panels of weights: two by two tiles of sums in registers.
//!
//! The sums of a block stay there until the first step of the next one, which stores each tile right
//! before it takes its register: so the processor multiplies meanwhile. Outputs are written from memory
//! in the steps behind that.
//!
//! Activations of all row blocks and sums that wait do not fit in the second-level cache beside a panel, and
//! tiles are loaded too few at a time to hide that. So what comes next of both is fetched by instructions.

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::cell::Cell;
use std::ops::Range;

use half::bf16;

use super::super::Operands;
use super::super::pack::Scratch;
use super::blocking::{Blocking, Panel, pieces};
use super::output::Finished;
use super::pack::ROW_BLOCK;
use super::tiles::{self, COLUMNS, ROW_BYTES, ROWS, TILE};
use super::weights::{Edge, weights};
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
    /// Whose sums are in registers.
    held: Option<usize>,
    /// What is to be written to `y`.
    finished: Option<Finished>,
}

impl PanelMemory {
    pub(super) fn new(blocking: &Blocking) -> Self {
        Self {
            tiles: Scratch::new(blocking.panel_len(), &TILES),
            sums: Scratch::new(blocking.sums_len(), &WAITING),
            edges: [Edge::new(), Edge::new()],
            held: None,
            finished: None,
        }
    }

    /// The four tiles of sums of so many before.
    fn sums(&mut self, index: usize) -> *mut f32 {
        self.sums.as_chunks_mut::<{ 4 * SUMS }>().0[index].as_mut_ptr()
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
    /// Whether no other tile has a part of the same cache lines.
    once: bool,
    /// Their tiles in the panel.
    tiles: *mut bf16,
    /// Which sums they are added to.
    sums: usize,
    ahead: Option<Ahead>,
}

/// A pair's share of the activations that the panel meets next.
struct Ahead {
    x: *const bf16,
    /// Cache lines to fetch in each step.
    lines: usize,
}

impl Amx<'_> {
    /// Multiplies one row block by a panel.
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
        let place = match (row_block, panel.is_kept()) {
            (_, false) => Place::Matrix,
            (0, true) => Place::MatrixThenPanel,
            _ => Place::Panel,
        };
        let x = operands.x.wrapping_add(self.layout.start(row));
        let (all_steps, pairs) = (self.layout.steps(), panel.columns.len().div_ceil(PAIR));
        // Rows of weights that come from memory do so fastest if they are read on and on.
        let group_steps = if row_block == 0 { panel.steps.len() } else { panel.group_steps };
        for steps in pieces(&panel.steps, group_steps) {
            let len = self.layout.step(rows.len());
            let next = match steps.end < panel.steps.end {
                true => x.wrapping_add(steps.end * len),
                false => operands
                    .x
                    .wrapping_add(self.layout.start(row + ROW_BLOCK) + panel.steps.start * len),
            };
            let is_last = rows.end == panel.rows.end && steps.end == panel.steps.end;
            let lines = (2 * len / ROW_BYTES).div_ceil(pairs);
            for (pair, columns) in pieces(&panel.columns, PAIR).enumerate() {
                let step = pair * panel.steps.len() + steps.start - panel.steps.start;
                let sums = row_block * panel.sums_apart + pair;
                let two = columns.len() > ROWS;
                let block = Block {
                    columns: columns.clone(),
                    steps: steps.clone(),
                    x: x.wrapping_add(steps.start * len),
                    place,
                    once: panel.aligned || place == Place::Panel,
                    tiles: memory.tiles.as_mut_ptr().wrapping_add(step * 2 * TILE),
                    sums,
                    ahead: (!is_last).then(|| Ahead {
                        x: next.wrapping_add(pair * steps.len() * len / pairs),
                        lines,
                    }),
                };
                // SAFETY: the caller's promises; the panel has these pairs and steps.
                unsafe {
                    match (two, rows.len() > COLUMNS) {
                        (true, true) => self.block::<2, 2, PARTS>(operands, block, memory),
                        (true, false) => self.block::<2, 1, PARTS>(operands, block, memory),
                        (false, true) => self.block::<1, 2, PARTS>(operands, block, memory),
                        (false, false) => self.block::<1, 1, PARTS>(operands, block, memory),
                    }
                }
                if steps.end >= all_steps {
                    memory.finished = Some(Finished::new(rows.clone(), columns, sums));
                }
            }
        }
    }

    /// Stores and writes what the last block left.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_block`].
    #[inline(always)]
    pub(super) unsafe fn finish(&self, operands: &Operands<bf16, bf16>, memory: &mut PanelMemory) {
        // SAFETY: tiles are configured, as the callers promise; sums have their places.
        unsafe {
            if let Some(held) = memory.held.take() {
                let held = memory.sums(held);
                tiles::store!(0, held, ROW_BYTES);
                tiles::store!(1, held.add(SUMS), ROW_BYTES);
                tiles::store!(2, held.add(2 * SUMS), ROW_BYTES);
                tiles::store!(3, held.add(3 * SUMS), ROW_BYTES);
            }
            self.write_finished(operands, memory);
        }
    }

    /// Writes what is left of outputs whose sums are stored.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_block`].
    #[inline(always)]
    unsafe fn write_finished(&self, operands: &Operands<bf16, bf16>, memory: &mut PanelMemory) {
        while memory.finished.is_some() {
            // SAFETY: the caller's promises.
            unsafe { self.write_tile_of_finished(operands, memory) };
        }
    }

    /// Writes one of their tiles, if there is any.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_block`].
    #[inline(always)]
    unsafe fn write_tile_of_finished(
        &self,
        operands: &Operands<bf16, bf16>,
        memory: &mut PanelMemory,
    ) {
        let Some(finished) = memory.finished.take() else { return };
        let (sums, _) = memory.sums.as_chunks::<{ 4 * SUMS }>();
        // SAFETY: the caller's promises.
        memory.finished = unsafe { self.write_next(operands, finished, sums) };
    }

    /// Adds the products of some steps to the sums of `HEIGHT` by `WIDTH` tiles, which stay in
    /// registers; begins with zero if the steps begin with the first. Meanwhile stores the sums that were
    /// there before, and writes outputs.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_block`]; `HEIGHT` tiles hold the rows of the block, and `WIDTH` the rows
    /// of `x`.
    #[inline(always)]
    unsafe fn block<const HEIGHT: usize, const WIDTH: usize, const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        Block { columns, steps, mut x, place, once, mut tiles, sums, ahead }: Block,
        memory: &mut PanelMemory,
    ) {
        let (tile, x_stride) = (self.layout.tile(), 4 * self.layout.columns);
        let (upper, lower) = (ROWS.min(columns.len()), columns.len().saturating_sub(ROWS));
        let held = memory.held.replace(sums).map(|held| memory.sums(held));
        let (own, first) = (memory.sums(sums), steps.start);
        let next_sums = own.wrapping_add(4 * SUMS).cast::<i8>();
        let sum_lines = (4 * SUMS * 4 / ROW_BYTES).div_ceil(steps.len());
        // SAFETY: tiles are configured, as the callers promise. Tiles of sums have their places in
        // `sums`, rows of 64 bytes; those of weights lie where `weights` says, or in the panel, whole
        // ones, where the first row block left them; and those of activations in `operands.x`, which
        // was packed for these steps, one after the other.
        unsafe {
            macro_rules! switch {
                ($tile:literal) => {
                    if let Some(held) = held {
                        tiles::store!($tile, held.add($tile * SUMS), ROW_BYTES);
                    }
                    if first == 0 {
                        tiles::zero!($tile);
                    } else {
                        tiles::load!($tile, own.add($tile * SUMS), ROW_BYTES);
                    }
                };
            }
            macro_rules! load_weights {
                ($tile:literal, $from:expr, $stride:expr) => {
                    match once {
                        true => tiles::load_once!($tile, $from, $stride),
                        false => tiles::load!($tile, $from, $stride),
                    }
                };
            }
            for (at, step) in steps.enumerate() {
                if at > 0 {
                    self.write_tile_of_finished(operands, memory);
                }
                if let Some(Ahead { x, lines }) = ahead {
                    for line in at * lines..(at + 1) * lines {
                        let x = x.cast::<i8>().wrapping_add(line * ROW_BYTES);
                        _mm_prefetch::<_MM_HINT_T1>(x);
                    }
                    for line in at * sum_lines..(at + 1) * sum_lines {
                        _mm_prefetch::<_MM_HINT_T0>(next_sums.wrapping_add(line * ROW_BYTES));
                    }
                }
                let [edge, other_edge] = &mut memory.edges;
                let (from, stride) = match place {
                    Place::Panel => (tiles.cast_const(), ROW_BYTES),
                    _ => weights(operands, columns.start, upper, step, edge),
                };
                load_weights!(4, from, stride);
                if HEIGHT == 2 {
                    let (from, stride) = match place {
                        Place::Panel => (tiles.wrapping_add(TILE).cast_const(), ROW_BYTES),
                        _ => weights(operands, columns.start + ROWS, lower, step, other_edge),
                    };
                    load_weights!(5, from, stride);
                }
                if place == Place::MatrixThenPanel {
                    tiles::store!(4, tiles, ROW_BYTES);
                    if HEIGHT == 2 {
                        tiles::store!(5, tiles.wrapping_add(TILE), ROW_BYTES);
                    }
                }
                tiles = tiles.wrapping_add(2 * TILE);
                for part in 0..PARTS {
                    let switches = at == 0 && part == 0;
                    tiles::load!(6, x, x_stride);
                    if WIDTH == 2 {
                        tiles::load!(7, x.wrapping_add(tile), x_stride);
                    }
                    if switches {
                        switch!(0);
                    }
                    tiles::multiply!(0, 4, 6);
                    if switches {
                        switch!(2);
                    }
                    if HEIGHT == 2 {
                        tiles::multiply!(2, 5, 6);
                    }
                    if switches {
                        switch!(1);
                    }
                    if WIDTH == 2 {
                        tiles::multiply!(1, 4, 7);
                    }
                    if switches {
                        switch!(3);
                    }
                    if HEIGHT == 2 && WIDTH == 2 {
                        tiles::multiply!(3, 5, 7);
                    }
                    x = x.wrapping_add(WIDTH * tile);
                }
            }
            self.write_finished(operands, memory);
        }
    }
}
