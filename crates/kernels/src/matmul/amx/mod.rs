//! The product of bf16 weights in AMX: sixteen by sixteen outputs a tile, thirty-two products of
//! each in one instruction.
//!
//! What is computed is `yᵀ = W · xᵀ`. Weights are the first operand, which the tile registers take
//! row by row as they lie in memory; activations are the second, which wants pairs of elements of a
//! row side by side: they are few, and packed that way (see `pack`). Sums stay in tile registers,
//! two by two, and are turned over as they are written to `y`.
//!
//! # In which order
//!
//! An output takes `k` in steps of 32, zeros beyond its end. In a step each part of the activations
//! is multiplied, the smallest first: the processor adds the sixteen even products in order, and
//! the sixteen odd ones, then both, then what it had; subnormal numbers, given or made, are zero.
//! So the bits of an output depend on its two rows alone: a single row of activations, which [`few`]
//! multiplies, comes to what it does as a column among others.
//!
//! # Exactness
//!
//! Three parts of eight bits make up an activation exactly, products of two bf16 are exact in f32,
//! and the parts have one sign, so that an output's error is at most that of `16 + 3 · ⌈k / 32⌉`
//! roundings: within what the [crate](crate#accuracy) promises for all. Two parts would keep
//! sixteen bits of an activation's twenty-four.
//!
//! A part of zero times an infinite weight is not a number, where the activation times the weight
//! is infinite. What comes out as NaN is therefore computed again with fused multiply-adds: so what
//! is not finite comes out as there.

mod broadcast;
mod caches;
mod few;
mod grid;
mod output;
mod pack;
mod product;
mod rounds;
mod tiles;
mod weights;

use std::ops::Range;

use half::bf16;

use super::pack::Scratch;
use super::{Element, Matmul, MatmulLoops, Operands, Size, small_m};
use crate::ActivationDtype;
pub(super) use broadcast::rows;
use caches::Caches;
use few::TRIPLE;
use grid::Grid;
pub(crate) use pack::cut;
use pack::{Layout, ROW_BLOCK};
pub(crate) use product::{TileProducts, TileRows, TileSums};
pub(crate) use rounds::rounds;
use tiles::{COLUMNS, ROW_BYTES, ROWS, Tiles};
use weights::{Edge, PanelPrefetch, weights};

/// Rows of weights in two tiles.
const PAIR: usize = 2 * ROWS;

/// A panel of weights has at most so many pairs of tiles, whose sums are read again for each block of
/// steps.
const PAIRS: usize = 8;

/// From this many activation rows on, a region has at least [`BROAD`] weight rows: all activations
/// are read for each panel, and a narrow one would wait for them.
const MANY: usize = 64;

/// See [`MANY`].
const BROAD: usize = 4 * PAIR;

/// Elements of a tile of sums.
const SUMS: usize = ROWS * COLUMNS;

/// Computes matmuls of `x [m, k]` with weights in bf16; all slices have the lengths that the sizes
/// ask for. `packed` is what this keeps of `x` from one call to the next.
///
/// # Safety
///
/// [`Isa::AmxBf16`](crate::Isa::AmxBf16) is available.
pub(super) unsafe fn matmuls(
    compute: ActivationDtype,
    x: &[f32],
    [m, k]: [usize; 2],
    packed: &mut Option<Scratch<bf16>>,
    matmuls: &mut [Matmul],
) {
    let layout = Layout::new(compute, [m, k]);
    let loops = Amx { layout, x };
    if m < small_m::ROWS {
        return small_m::share::<_, bf16>(loops, x, [m, k], matmuls);
    }
    let unit = match m {
        MANY.. => BROAD,
        m if m > COLUMNS => PAIR,
        _ => TRIPLE,
    };
    let threads = rayon::current_num_threads();
    // SAFETY: the caller's promise.
    let x = packed.get_or_insert_with(|| unsafe { pack::packed(&layout, x) });
    for Matmul { weight, n, y, stride } in matmuls {
        let size = Size { m, n: *n, k };
        let grid = Grid::in_units(size, size_of::<bf16>(), threads, [ROW_BLOCK, unit]);
        let weight = bf16::of(*weight).expect("a weight in bf16");
        grid::share(loops, &grid, x, weight, (y, *stride));
    }
}

/// Loops over tiles.
#[derive(Clone, Copy)]
struct Amx<'a> {
    layout: Layout,
    /// Activations as they came.
    x: &'a [f32],
}

impl MatmulLoops<bf16, bf16> for Amx<'_> {
    unsafe fn region(
        self,
        operands: &Operands<bf16, bf16>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        // SAFETY: the caller's promises.
        unsafe { self.walk(operands, rows, columns) }
    }

    unsafe fn small_m(self, operands: &Operands<bf16, bf16>, columns: Range<usize>) {
        // SAFETY: the caller's promises.
        unsafe { self.walk(operands, 0..operands.size.m, columns) }
    }

    fn pack_small_m(self, x: &[f32], _: [usize; 2]) -> Scratch<bf16> {
        // SAFETY: only `matmul` makes these loops, whose caller promises that the processor has
        // the instructions.
        unsafe { pack::packed(&self.layout, x) }
    }

    fn small_m_unit(self, _: usize) -> usize {
        TRIPLE
    }
}

impl Amx<'_> {
    /// Computes `y[rows, columns]`: panel by panel of weights, in each row block by row block of
    /// activations.
    ///
    /// # Safety
    ///
    /// That of [`MatmulLoops::region`], on a processor that has
    /// [`Isa::AmxBf16`](crate::Isa::AmxBf16); and `rows` begin with a row block.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    unsafe fn walk(
        self,
        operands: &Operands<bf16, bf16>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        if rows.is_empty() || columns.is_empty() {
            return;
        }
        if rows.len() <= COLUMNS {
            // SAFETY: the caller's promises.
            return unsafe {
                match self.layout.parts {
                    1 => self.few::<1>(operands, rows, columns),
                    _ => self.few::<3>(operands, rows, columns),
                }
            };
        }
        let row_bytes = operands.size.k.saturating_mul(size_of::<bf16>());
        let row_blocks = rows.len().div_ceil(ROW_BLOCK);
        let caches = Caches::of_thread();
        // A panel that is read for several row blocks, the next one, which is fetched meanwhile, and
        // the activations of a row block fit into the second-level cache.
        let panel_bytes = caches.second / 8 * 3;
        let pairs = match row_blocks {
            1 => 1,
            _ => (panel_bytes / row_bytes.max(1) / PAIR).clamp(1, PAIRS),
        };
        // Activations are read again for each pair of a panel, so many steps at a time that they
        // stay in two thirds of the first-level cache. With one pair nothing is read again, and sums
        // stay in registers from the first step to the last.
        let depth = match pairs {
            1 => self.layout.steps().max(1),
            _ => (caches.first / 3 * 2 / size_of::<bf16>() / self.layout.step(ROW_BLOCK)).max(1),
        };
        // Memory is cleared before use: 32 KiB of it, some 500 cycles, for all pairs. A short run
        // of weights for a few rows, 64 KiB, takes 3000 and needs no more than one pair's.
        let (mut one, mut all);
        let sums: &mut [[f32; 4 * SUMS]] = match pairs {
            1 => {
                one = Sums::<1>::new();
                &mut one.0
            }
            _ => {
                all = Sums::<PAIRS>::new();
                &mut all.0
            }
        };
        let mut edges = [Edge::new(), Edge::new()];
        // SAFETY: the processor has AMX, and there is one such loop on a thread at a time.
        let _tiles = unsafe { Tiles::configure(self.layout.columns, 4..=5) };
        for start in columns.clone().step_by(pairs * PAIR) {
            let panel = start..columns.end.min(start + pairs * PAIR);
            for (row_block, row) in rows.clone().step_by(ROW_BLOCK).enumerate() {
                let block = OutputBlock {
                    rows: row..rows.end.min(row + ROW_BLOCK),
                    columns: panel.clone(),
                };
                let prefetch = PanelPrefetch::new(operands, &panel, PAIR, (row_block, row_blocks));
                let mut memory = Memory { prefetch, sums: &mut *sums, edges: &mut edges };
                // SAFETY: the caller's promises, for rows and columns within its own.
                unsafe {
                    match self.layout.parts {
                        1 => self.row_block::<1>(operands, &block, depth, &mut memory),
                        _ => self.row_block::<3>(operands, &block, depth, &mut memory),
                    }
                    self.write(operands, &block, sums);
                }
            }
        }
    }

    /// Computes the sums of one row block and one panel, so many steps of all pairs at a time.
    ///
    /// # Safety
    ///
    /// That of [`Amx::walk`]; tiles are configured for the columns of the layout, `PARTS` are its
    /// parts, and `block` is a row block and at most [`PAIRS`] pairs.
    #[inline(always)]
    unsafe fn row_block<const PARTS: usize>(
        &self,
        operands: &Operands<bf16, bf16>,
        block: &OutputBlock,
        depth: usize,
        memory: &mut Memory,
    ) {
        let (steps, tokens) = (self.layout.steps(), block.rows.len());
        let x = operands.x.wrapping_add(self.layout.start(block.rows.start));
        let mut first = 0;
        loop {
            let steps = first..steps.min(first + depth);
            let x = x.wrapping_add(first * self.layout.step(tokens));
            let pairs = block.columns.clone().step_by(PAIR);
            for (pair, row) in pairs.enumerate() {
                let block = PairSteps {
                    pair,
                    row,
                    rows: PAIR.min(block.columns.end - row),
                    steps: steps.clone(),
                    x,
                };
                // SAFETY: the caller's promises; the rows of a block are those of its pair.
                unsafe {
                    match (block.rows > ROWS, tokens > COLUMNS) {
                        (true, true) => self.block::<2, 2, PARTS>(operands, &block, memory),
                        (true, false) => self.block::<2, 1, PARTS>(operands, &block, memory),
                        (false, true) => self.block::<1, 2, PARTS>(operands, &block, memory),
                        (false, false) => self.block::<1, 1, PARTS>(operands, &block, memory),
                    }
                }
            }
            first = steps.end;
            if first >= self.layout.steps() {
                return;
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
        block: &PairSteps,
        Memory { prefetch, sums, edges: [edge, other_edge] }: &mut Memory,
    ) {
        let (tile, x_stride) = (self.layout.tile(), 4 * self.layout.columns);
        let sums = sums[block.pair].as_mut_ptr();
        // SAFETY: tiles are configured, as the callers promise. Tiles of sums have their places in
        // `sums`, rows of 64 bytes; those of weights lie where `weights` says, and those of
        // activations in `operands.x`, which was packed for these steps, one after the other.
        unsafe {
            if block.steps.start == 0 {
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
            let mut x = block.x;
            for step in block.steps.clone() {
                prefetch.fetch();
                let upper = ROWS.min(block.rows);
                let (from, stride) = weights(operands, block.row, upper, step, edge);
                tiles::load!(4, from, stride);
                if HEIGHT == 2 {
                    let lower = block.rows - ROWS;
                    let (from, stride) =
                        weights(operands, block.row + ROWS, lower, step, other_edge);
                    tiles::load!(5, from, stride);
                }
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

/// A row block of activations and a panel of weights.
struct OutputBlock {
    /// Rows of `x`.
    rows: Range<usize>,
    /// Rows of the weight.
    columns: Range<usize>,
}

/// What a row block works with besides tile registers.
struct Memory<'a> {
    prefetch: PanelPrefetch,
    /// Four tiles of sums for each pair.
    sums: &'a mut [[f32; 4 * SUMS]],
    edges: &'a mut [Edge; 2],
}

/// Some steps of a pair.
struct PairSteps {
    /// Which of the panel's pairs.
    pair: usize,
    /// The first row of the weight.
    row: usize,
    /// How many, at most [`PAIR`].
    rows: usize,
    /// Which steps of `k`.
    steps: Range<usize>,
    /// Activations from the first of these steps on.
    x: *const bf16,
}

/// Memory that tiles of sums are stored to and loaded from: four tiles for each pair.
#[repr(align(64))]
struct Sums<const COUNT: usize>([[f32; 4 * SUMS]; COUNT]);

impl<const COUNT: usize> Sums<COUNT> {
    fn new() -> Self {
        Self([[0.0; _]; _])
    }
}
