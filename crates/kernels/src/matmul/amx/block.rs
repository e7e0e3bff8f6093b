//! Row blocks of activations by panels of weights: two by two tiles of sums in registers.
//!
//! The sums of a block stay there until the first step of the next one, which stores each tile
//! right before it takes its register: so the processor multiplies meanwhile.
//!
//! Activations of all row blocks and sums that wait do not fit in the second-level cache beside a
//! panel, and tiles are loaded too few at a time to hide that. So the activations that come next
//! are fetched by instructions.

use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
use std::cell::Cell;

use half::bf16;

use super::super::Operands;
use super::super::pack::Scratch;
use super::blocking::{Blocking, Panel, TURNED, pieces};
use super::pack::ROW_BLOCK;
use super::tiles::{self, COLUMNS, ROW_BYTES, ROWS, TILE};
use super::weights::copy;
use super::{Amx, PAIR, SUMS};

// Kept from one matmul to the next: fresh pages would cost more than what is saved.
thread_local! {
    static TILES: Cell<Vec<bf16>> = const { Cell::new(Vec::new()) };
    static WAITING: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    static OUTPUTS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// What panels work with besides tile registers.
pub(super) struct PanelMemory {
    /// Weights of a panel, two tiles for each pair and step.
    tiles: Scratch<bf16>,
    /// Four tiles of sums for each pair and row block.
    sums: Scratch<f32>,
    /// Outputs on their way to `y`.
    pub(super) turned: Scratch<f32>,
}

impl PanelMemory {
    pub(super) fn new(blocking: &Blocking) -> Self {
        Self {
            tiles: Scratch::new(blocking.panel_len(), &TILES),
            sums: Scratch::new(blocking.sums_len(), &WAITING),
            turned: Scratch::new(TURNED, &OUTPUTS),
        }
    }

    pub(super) fn panel(&mut self) -> *mut bf16 {
        self.tiles.as_mut_ptr()
    }

    /// The four tiles of sums of so many before.
    pub(super) fn sums(&mut self, index: usize) -> *mut f32 {
        self.sums.as_chunks_mut::<{ 4 * SUMS }>().0[index].as_mut_ptr()
    }
}

/// Some steps of a pair.
struct Block {
    /// Their tiles in the panel.
    tiles: *const bf16,
    /// Activations of the same steps.
    x: *const bf16,
    steps: usize,
    /// Whether sums begin with them.
    first: bool,
    /// Where sums are kept.
    sums: *mut f32,
    /// A pair's share of the activations that the panel meets next.
    ahead: *const i8,
    /// Cache lines to fetch of them in each step.
    lines: usize,
}

impl Amx<'_> {
    /// Copies a panel, and multiplies all row blocks by it.
    ///
    /// # Safety
    ///
    /// That of [`Amx::walk`]; tiles are configured for the columns of the layout, and `PARTS` are
    /// its parts.
    #[inline(always)]
    pub(super) unsafe fn row_blocks<const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        panel: &Panel,
        memory: &mut PanelMemory,
    ) {
        // SAFETY: the caller's promises; the memory has room for the panel.
        unsafe {
            let tiles = panel.pairs() * panel.steps.len() * 2 * TILE;
            for (side, operands) in self.each_side(operands).enumerate() {
                copy(&operands, panel, memory.panel().wrapping_add(side * tiles));
            }
            for row_block in 0..panel.row_blocks() {
                self.row_block::<PARTS>(operands, panel, row_block, memory);
                if panel.steps.end == self.layout.steps() {
                    self.end_row_block::<PARTS>(operands, panel, row_block, memory);
                }
            }
        }
    }

    /// Multiplies one row block by a panel that is copied.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_blocks`].
    #[inline(always)]
    unsafe fn row_block<const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        panel: &Panel,
        row_block: usize,
        memory: &mut PanelMemory,
    ) {
        let rows = panel.row_block(row_block);
        let x = operands.x.wrapping_add(self.layout.start(rows.start));
        let pairs = panel.sides * panel.pairs();
        let len = self.layout.step(rows.len());
        let mut held = None;
        for steps in pieces(&panel.steps, panel.group_steps) {
            let next = match steps.end < panel.steps.end {
                true => x.wrapping_add(steps.end * len),
                false => operands.x.wrapping_add(
                    self.layout.start(rows.start + ROW_BLOCK) + panel.steps.start * len,
                ),
            };
            let is_last = rows.end == panel.rows.end && steps.end == panel.steps.end;
            let lines = if is_last { 0 } else { (2 * len / ROW_BYTES).div_ceil(pairs) };
            let sides = (0..panel.sides).flat_map(|_| pieces(&panel.columns, PAIR));
            for (pair, columns) in sides.enumerate() {
                let step = pair * panel.steps.len() + steps.start - panel.steps.start;
                let sums = memory.sums(panel.sums(row_block, pair));
                let block = Block {
                    tiles: memory.panel().wrapping_add(step * 2 * TILE),
                    x: x.wrapping_add(steps.start * len),
                    steps: steps.len(),
                    first: steps.start == 0,
                    sums,
                    ahead: next.wrapping_add(pair * steps.len() * len / pairs).cast(),
                    lines,
                };
                // SAFETY: the caller's promises; the panel has these pairs and steps.
                unsafe {
                    match (columns.len() > ROWS, rows.len() > COLUMNS) {
                        (true, true) => self.block::<2, 2, PARTS>(block, held),
                        (true, false) => self.block::<2, 1, PARTS>(block, held),
                        (false, true) => self.block::<1, 2, PARTS>(block, held),
                        (false, false) => self.block::<1, 1, PARTS>(block, held),
                    }
                }
                held = Some(sums);
            }
        }
        if let Some(held) = held {
            // SAFETY: tiles are configured, as the callers promise; sums have their places.
            unsafe {
                tiles::store!(0, held, ROW_BYTES);
                tiles::store!(1, held.add(SUMS), ROW_BYTES);
                tiles::store!(2, held.add(2 * SUMS), ROW_BYTES);
                tiles::store!(3, held.add(3 * SUMS), ROW_BYTES);
            }
        }
    }

    /// Adds the products of some steps to the sums of `HEIGHT` by `WIDTH` tiles, which stay in
    /// registers. Stores the sums that were held there before.
    ///
    /// # Safety
    ///
    /// As for [`Amx::row_block`]; `HEIGHT` tiles hold the rows of the block, and `WIDTH` the rows
    /// of `x`.
    #[inline(always)]
    unsafe fn block<const HEIGHT: usize, const WIDTH: usize, const PARTS: usize>(
        &self,
        block: Block,
        held: Option<*mut f32>,
    ) {
        let Block { mut tiles, mut x, steps, first, sums, mut ahead, lines } = block;
        let (tile, x_stride) = (self.layout.tile(), 4 * self.layout.columns);
        // SAFETY: tiles are configured, as the callers promise. Tiles of sums have their places,
        // rows of 64 bytes; those of weights lie in the panel, whole ones; and those of activations
        // in `x`, which was packed for these steps, one after the other.
        unsafe {
            macro_rules! switch {
                ($tile:literal) => {
                    if let Some(held) = held {
                        tiles::store!($tile, held.add($tile * SUMS), ROW_BYTES);
                    }
                    if first {
                        tiles::zero!($tile);
                    } else {
                        tiles::load!($tile, sums.add($tile * SUMS), ROW_BYTES);
                    }
                };
            }
            // The first step apart from the others keeps their loop short.
            macro_rules! step {
                ($switches:literal) => {
                    for _ in 0..lines {
                        _mm_prefetch::<_MM_HINT_T1>(ahead);
                        ahead = ahead.wrapping_add(ROW_BYTES);
                    }
                    tiles::load_once!(4, tiles, ROW_BYTES);
                    if HEIGHT == 2 {
                        tiles::load_once!(5, tiles.wrapping_add(TILE), ROW_BYTES);
                    }
                    tiles = tiles.wrapping_add(2 * TILE);
                    for part in 0..PARTS {
                        let switches = $switches && part == 0;
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
                };
            }
            step!(true);
            for _ in 1..steps {
                step!(false);
            }
        }
    }
}
