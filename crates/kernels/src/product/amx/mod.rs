//! The product of bf16 weights in AMX: sixteen by sixteen outputs a tile, thirty-two products of each in one instruction.
//!
//! What is computed is `yᵀ = W · xᵀ`. Weights are the first operand, which the tile registers take row by row as they lie in
//! memory; activations are the second, which wants pairs of elements of a row side by side: they are few, and packed that way
//! (see `pack`). Sums stay in tile registers, two by two, and are turned over as they are written to `y`.
//!
//! # In which order
//!
//! An output takes `k` in steps of 32, zeros beyond its end. In a step each part of the activations is multiplied, the smallest first: the
//! processor adds the sixteen even products in order, and the sixteen odd ones, then both, then what it had; subnormal
//! numbers, given or made, are zero. So the bits of an output depend on its two rows alone, and it is a single row of activations
//! as it is a column among others: there is no other loop for few rows. (One row of activations keeps a core busy for about
//! 150 cycles for each 2 KiB of weights with three parts, and 90 with one, which is a third of the time that its share of memory
//! bandwidth asks for.)
//!
//! # Exactness
//!
//! Three parts of eight bits make up an activation exactly, products of two bf16 are exact in f32, and the parts have one
//! sign, so that an output's error is at most that of `16 + 3 · ⌈k / 32⌉` roundings: within what the
//! [crate](crate#accuracy) promises for all. Two parts would keep sixteen bits of an activation's twenty-four.
//!
//! A part of zero times an infinite weight is not a number, where the activation times the weight is infinite. What comes out
//! as NaN is therefore computed again with fused multiply-adds: so what is not finite comes out as there.

mod pack;
mod tiles;

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::grid::Grid;
use super::pack::Scratch;
use super::transpose::transposed;
use super::{Job, Loops, Product, Size, avx512, share, share_skinny, skinny};
use crate::{Compute, Weight};
use pack::{Layout, STRIP};
use tiles::{COLUMNS, ROW_BYTES, ROWS, STEP, Tiles};

/// Rows of weights in two tiles.
const PAIR: usize = 2 * ROWS;

/// A panel of weights that is read for several strips takes about this many bytes: half of the second-level cache of the
/// processors that have AMX …
const PANEL_BYTES: usize = 1 << 20;

/// … and has at most so many pairs of tiles, whose sums fit into the first-level cache beside the activations.
const PAIRS: usize = 8;

/// Tiles of activations that are read again from the first-level cache for each pair of a panel: 32 KiB.
const DEPTH: usize = 16;

/// From this many activation rows on, a region has at least [`BROAD`] weight rows: all activations are read for each
/// panel, and a narrow one would wait for them.
const MANY: usize = 64;

/// See [`MANY`].
const BROAD: usize = 4 * PAIR;

/// Elements of a tile of sums.
const SUMS: usize = ROWS * COLUMNS;

/// Writes `x · Wᵀ` to `y`, all of the lengths that `size` asks for.
///
/// # Safety
///
/// [`Isa::AmxBf16`](crate::Isa::AmxBf16) is available.
pub(super) unsafe fn product(
    compute: Compute,
    x: &[f32],
    weight: &[bf16],
    size: Size,
    y: &mut [f32],
) {
    let layout = Layout::new(compute, size);
    let loops = Amx { layout, x };
    if size.m < skinny::ROWS {
        let Size { m, n, k } = size;
        let weight = Weight::Bf16(weight);
        return share_skinny::<_, bf16>(loops, x, [m, k], &mut [Product { weight, n, y }]);
    }
    let unit = match size.m {
        0..MANY => PAIR,
        MANY.. => BROAD,
    };
    let threads = rayon::current_num_threads();
    let grid = Grid::in_units(size, size_of::<bf16>(), threads, [STRIP, unit]);
    // SAFETY: the caller's promise.
    let packed = unsafe { pack::packed(&layout, x) };
    share(loops, &grid, &packed, weight, y);
}

/// Multiply-adds of one instruction on full tiles.
const PRODUCTS: usize = ROWS * COLUMNS * STEP;

/// Adds up products of tiles of ones in four tiles of sums, `rounds` times each: how many operations these were, or nothing
/// if they came to a wrong sum. Sums are exact below 2²⁴.
///
/// # Safety
///
/// [`Isa::AmxBf16`](crate::Isa::AmxBf16) is available, and no product is under way on this thread.
pub(crate) unsafe fn rounds(rounds: usize) -> Option<u64> {
    let ones = [bf16::ONE; ROWS * STEP];
    let mut sums = [0.0f32; SUMS];
    // SAFETY: the caller's promise; the tiles are configured as full ones, and the memory holds one each.
    let right = unsafe {
        let _tiles = Tiles::configure(COLUMNS);
        tiles::load!(4, ones.as_ptr(), ROW_BYTES);
        tiles::load!(6, ones.as_ptr(), ROW_BYTES);
        for _ in 0..rounds {
            tiles::multiply!(0, 4, 6);
            tiles::multiply!(1, 4, 6);
            tiles::multiply!(2, 4, 6);
            tiles::multiply!(3, 4, 6);
        }
        let right = (rounds * STEP) as f32;
        let mut all = true;
        tiles::store!(0, sums.as_mut_ptr(), ROW_BYTES);
        all &= sums.iter().all(|sum| *sum == right);
        tiles::store!(3, sums.as_mut_ptr(), ROW_BYTES);
        all && sums.iter().all(|sum| *sum == right)
    };
    right.then_some((rounds * 4 * 2 * PRODUCTS) as u64)
}

/// Loops over tiles.
#[derive(Clone, Copy)]
struct Amx<'a> {
    layout: Layout,
    /// Activations as they came.
    x: &'a [f32],
}

impl Loops<bf16, bf16> for Amx<'_> {
    unsafe fn region(self, job: &Job<bf16, bf16>, rows: Range<usize>, columns: Range<usize>) {
        // SAFETY: the caller's promises.
        unsafe { self.walk(job, rows, columns) }
    }

    unsafe fn run(self, job: &Job<bf16, bf16>, columns: Range<usize>) {
        // SAFETY: the caller's promises.
        unsafe { self.walk(job, 0..job.size.m, columns) }
    }

    fn skinny(self, x: &[f32], _: Size) -> Scratch<bf16> {
        // SAFETY: only `product` makes these loops, whose caller promises that the processor has the instructions.
        unsafe { pack::packed(&self.layout, x) }
    }

    fn unit(self, _: usize) -> usize {
        PAIR
    }
}

impl Amx<'_> {
    /// Computes `y[rows, columns]`: panel by panel of weights, in each strip by strip of activations.
    ///
    /// # Safety
    ///
    /// That of [`Loops::region`], on a processor that has [`Isa::AmxBf16`](crate::Isa::AmxBf16); and `rows` begin with a strip.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
    unsafe fn walk(self, job: &Job<bf16, bf16>, rows: Range<usize>, columns: Range<usize>) {
        if rows.is_empty() || columns.is_empty() {
            return;
        }
        let row_bytes = job.size.k.saturating_mul(size_of::<bf16>());
        let strips = rows.len().div_ceil(STRIP);
        let pairs = match strips {
            1 => 1,
            _ => (PANEL_BYTES / row_bytes.max(1) / PAIR).clamp(1, PAIRS),
        };
        // With one pair nothing is read again, and sums stay in registers from the first step to the last.
        let depth = match pairs {
            1 => self.layout.steps().max(1),
            _ => (DEPTH / self.layout.parts).max(1),
        };
        let mut room = Room::new();
        // SAFETY: the processor has AMX, and there is one such loop on a thread at a time.
        let _tiles = unsafe { Tiles::configure(self.layout.columns) };
        for start in columns.clone().step_by(pairs * PAIR) {
            let panel = start..columns.end.min(start + pairs * PAIR);
            for (strip, row) in rows.clone().step_by(STRIP).enumerate() {
                let place = Place {
                    rows: row..rows.end.min(row + STRIP),
                    columns: panel.clone(),
                };
                let mut ahead = Ahead::new(job, &panel, strip, strips);
                // SAFETY: the caller's promises, for rows and columns within its own.
                unsafe {
                    match self.layout.parts {
                        1 => self.strip::<1>(job, &place, depth, &mut ahead, &mut room),
                        _ => self.strip::<3>(job, &place, depth, &mut ahead, &mut room),
                    }
                    self.write(job, &place, &room);
                }
            }
        }
    }

    /// Computes the sums of one strip and one panel, so many steps of all pairs at a time.
    ///
    /// # Safety
    ///
    /// That of [`Amx::walk`]; tiles are configured for the columns of the layout, `PARTS` are its parts, and `place` is a strip and at most
    /// [`PAIRS`] pairs.
    #[inline(always)]
    unsafe fn strip<const PARTS: usize>(
        &self,
        job: &Job<bf16, bf16>,
        place: &Place,
        depth: usize,
        ahead: &mut Ahead,
        room: &mut Room,
    ) {
        let (steps, tokens) = (self.layout.steps(), place.rows.len());
        let x = job.x.wrapping_add(self.layout.start(place.rows.start));
        let edges = &mut room.edges;
        let mut first = 0;
        loop {
            let steps = first..steps.min(first + depth);
            let x = x.wrapping_add(first * self.layout.step(tokens));
            let pairs = place.columns.clone().step_by(PAIR);
            for (row, sums) in pairs.zip(room.sums.as_chunks_mut::<{ 4 * SUMS }>().0) {
                let block = Block {
                    row,
                    rows: PAIR.min(place.columns.end - row),
                    steps: steps.clone(),
                    x,
                };
                // SAFETY: the caller's promises; the rows of a block are those of its pair.
                unsafe {
                    match (block.rows > ROWS, tokens > COLUMNS) {
                        (true, true) => self.block::<2, 2, PARTS>(job, &block, ahead, sums, edges),
                        (true, false) => self.block::<2, 1, PARTS>(job, &block, ahead, sums, edges),
                        (false, true) => self.block::<1, 2, PARTS>(job, &block, ahead, sums, edges),
                        (false, false) => {
                            self.block::<1, 1, PARTS>(job, &block, ahead, sums, edges)
                        }
                    }
                }
            }
            first = steps.end;
            if first >= self.layout.steps() {
                return;
            }
        }
    }

    /// Adds the products of some steps to the sums of `HEIGHT` by `WIDTH` tiles; begins with zero if the steps begin with the first.
    ///
    /// # Safety
    ///
    /// As for [`Amx::strip`]; `HEIGHT` tiles hold the rows of the block, and `WIDTH` the rows of `x`.
    #[inline(always)]
    unsafe fn block<const HEIGHT: usize, const WIDTH: usize, const PARTS: usize>(
        &self,
        job: &Job<bf16, bf16>,
        block: &Block,
        ahead: &mut Ahead,
        sums: &mut [f32; 4 * SUMS],
        [edge, other_edge]: &mut [Edge; 2],
    ) {
        let (tile, x_stride) = (self.layout.tile(), 4 * self.layout.columns);
        let sums = sums.as_mut_ptr();
        // SAFETY: tiles are configured, as the callers promise. Tiles of sums have their places in `sums`, rows of 64 bytes; those
        // of weights lie where `weights` says, and those of activations in `job.x`, which was packed for these steps, one after
        // the other.
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
                ahead.fetch();
                let upper = ROWS.min(block.rows);
                let (from, stride) = weights(job, block.row, upper, step, edge);
                tiles::load!(4, from, stride);
                if HEIGHT == 2 {
                    let lower = block.rows - ROWS;
                    let (from, stride) = weights(job, block.row + ROWS, lower, step, other_edge);
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

    /// Turns the sums of a strip and a panel over into `y`.
    ///
    /// # Safety
    ///
    /// As for [`Amx::strip`].
    #[inline(always)]
    unsafe fn write(&self, job: &Job<bf16, bf16>, place: &Place, room: &Room) {
        let pairs = place.columns.clone().step_by(PAIR);
        for (first, sums) in pairs.zip(room.sums.as_chunks::<{ 4 * SUMS }>().0) {
            for (index, sums) in sums.as_chunks::<SUMS>().0.iter().enumerate() {
                let column = first + index / 2 * ROWS;
                let row = place.rows.start + index % 2 * COLUMNS;
                if column >= place.columns.end || row >= place.rows.end {
                    continue;
                }
                let width = ROWS.min(place.columns.end - column);
                let height = COLUMNS.min(place.rows.end - row);
                // SAFETY: the caller's promises: `y` has these rows and columns.
                let is_nan = unsafe {
                    let y = job.y.add(row * job.size.n + column);
                    write(sums, [height, width], y, job.size.n)
                };
                if is_nan && self.layout.parts > 1 {
                    for row in row..row + height {
                        for column in column..column + width {
                            // SAFETY: as above.
                            unsafe { self.again(job, row, column) };
                        }
                    }
                }
            }
        }
    }

    /// Computes an output again if it is not a number, with fused multiply-adds.
    ///
    /// # Safety
    ///
    /// That of [`Loops::region`], for this one output.
    #[cold]
    unsafe fn again(&self, job: &Job<bf16, bf16>, row: usize, column: usize) {
        let Size { n, k, .. } = job.size;
        // SAFETY: the output is in `y`, this row in `x`, the other in the weight; all sets of instructions up to AMX are there.
        unsafe {
            let y = job.y.add(row * n + column);
            if y.read().is_nan() {
                let one = Job {
                    x: self.x.as_ptr().add(row * k),
                    weight: job.weight.add(column * k),
                    y,
                    size: Size { m: 1, n: 1, k },
                };
                avx512::region(&one, 0..1, 0..1);
            }
        }
    }
}

/// A strip of activations and a panel of weights.
struct Place {
    /// Rows of `x`.
    rows: Range<usize>,
    /// Rows of the weight.
    columns: Range<usize>,
}

/// Some steps of a pair.
struct Block {
    /// The first row of the weight.
    row: usize,
    /// How many, at most [`PAIR`].
    rows: usize,
    /// Which steps of `k`.
    steps: Range<usize>,
    /// Activations from the first of these steps on.
    x: *const bf16,
}

/// Memory that tiles are stored to and loaded from.
#[repr(align(64))]
struct Room {
    /// Sums of a panel: four tiles for each pair.
    sums: [f32; 4 * PAIRS * SUMS],
    /// Tiles of weights that are not all there, with zeros where they are not.
    edges: [Edge; 2],
}

impl Room {
    fn new() -> Self {
        Self {
            sums: [0.0; _],
            edges: [Edge([bf16::ZERO; _]), Edge([bf16::ZERO; _])],
        }
    }
}

/// One such tile.
#[repr(align(64))]
struct Edge([bf16; ROWS * STEP]);

/// Where a tile of `rows` weights from `row` on lies, and how many bytes there are from one row to the next: in the matrix,
/// or in `edge` if the matrix ends before the tile does.
///
/// # Safety
///
/// The weight has these rows, of which there are at most [`ROWS`], and the step begins within them.
#[inline(always)]
unsafe fn weights(
    job: &Job<bf16, bf16>,
    row: usize,
    rows: usize,
    step: usize,
    edge: &mut Edge,
) -> (*const bf16, usize) {
    let (k, at) = (job.size.k, step * STEP);
    // SAFETY: the first element is one of the weight's.
    let from = unsafe { job.weight.add(row * k + at) };
    if rows == ROWS && at + STEP <= k {
        return (from, k * size_of::<bf16>());
    }
    // Zeros, not what stands beyond: it may be no number, which no zero would make one.
    edge.0.fill(bf16::ZERO);
    let count = STEP.min(k - at);
    for (index, to) in edge.0.chunks_exact_mut(STEP).take(rows).enumerate() {
        // SAFETY: each row has `count` elements from here.
        unsafe {
            from.add(index * k)
                .copy_to_nonoverlapping(to.as_mut_ptr(), count)
        };
    }
    (edge.0.as_ptr(), ROW_BYTES)
}

/// Writes a tile of sums `[weights, activations]`, rows of sixteen, to `y [height activations, width weights]`, rows of `n`. Says whether any is
/// not a number.
///
/// # Safety
///
/// The processor has AVX-512; `y` has these rows, which nothing else reads or writes meanwhile; `height` and `width` are at
/// most 16.
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

/// Which weights are fetched into the second-level cache ahead of need: those of the next panel, in the order in which they lie in
/// memory, while this one is computed for its first strips.
struct Ahead {
    next: *const u8,
    lines: usize,
}

impl Ahead {
    const LINE: usize = 64;

    /// The most strips that share the fetching.
    const SHARES: usize = 4;

    /// For one of so many strips.
    fn new(job: &Job<bf16, bf16>, panel: &Range<usize>, strip: usize, strips: usize) -> Self {
        let shares = strips.min(Self::SHARES);
        let row_bytes = job.size.k * size_of::<bf16>();
        let share = panel.len() * row_bytes / shares;
        Self {
            next: job
                .weight
                .cast::<u8>()
                .wrapping_add(panel.end * row_bytes + strip * share),
            lines: match strip < shares {
                true => PAIR * STEP * size_of::<bf16>() / Self::LINE / shares,
                false => 0,
            },
        }
    }

    /// Fetches as much as a step of a pair reads, or a share of that.
    #[inline(always)]
    fn fetch(&mut self) {
        for line in 0..self.lines {
            super::avx2::prefetch(self.next.wrapping_add(line * Self::LINE));
        }
        self.next = self.next.wrapping_add(self.lines * Self::LINE);
    }
}
