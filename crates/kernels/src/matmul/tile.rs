//! The loops of a matmul, written once for every kind of vector.
//!
//! A region of the output is walked in three steps: [`region`] takes the weight's rows in panels
//! that stay in the second-level cache; for each, [`row_block`] takes a few rows of `x` over the
//! whole panel; [`tile`] computes a few outputs side by side, so that each vector it loads serves
//! several of them. Which outputs share a tile changes no result: see the
//! [contract](crate#the-contract).
//!
//! Everything here is inlined into the `region` of an instruction set, where its instructions are
//! enabled.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are counted, and each indexes several things"
)]

use std::mem::MaybeUninit;
use std::ops::Range;

use super::{Operands, element::Element, pack::RowBlocks, panels};
use crate::simd::Vector;

/// How vectors of weights of type `E` and of activations are loaded and multiplied.
///
/// # Safety
///
/// All functions ask that the processor has the instructions that the type is for. `fma` has the
/// same result for the same lanes wherever it is inlined (no reordering, no contraction).
pub(super) trait Kernel<E> {
    /// An activation as it is read.
    type X: Copy;

    /// `LANES` weights or activations.
    type Vector: Copy;

    /// The sums of products of one output.
    type Sum: Vector;

    /// Elements of a row that one step takes.
    const LANES: usize;

    /// The most rows of `x` in a row block: there are thirty-two registers of sixteen lanes, and
    /// sixteen of fewer.
    const MAX_ROWS: usize = if <Self::Sum as Vector>::LANES == 16 { 6 } else { 4 };

    /// A multiple of the rows of the weight that a row block of three rows or more takes side by
    /// side, if not more than four.
    const PANEL: usize = if <Self::Sum as Vector>::LANES == 16 { 6 } else { 12 };

    /// `sum` and the products of two vectors.
    unsafe fn fma(sum: Self::Sum, weight: Self::Vector, x: Self::Vector) -> Self::Sum;

    /// `LANES` activations from a pointer to as many.
    unsafe fn x(from: *const Self::X) -> Self::Vector;

    /// `count < LANES` activations from a pointer to as many; zero in the other lanes. Not asked
    /// for if they are packed.
    unsafe fn x_part(from: *const Self::X, count: usize) -> Self::Vector;

    /// `LANES` weights from a pointer to as many.
    unsafe fn weight(from: *const E) -> Self::Vector;

    /// `count < LANES` weights from a pointer to as many; zero in the other lanes.
    unsafe fn weight_part(from: *const E, count: usize) -> Self::Vector;
}

/// Any weights, widened to the vector's lanes.
impl<V: Vector, E: Element> Kernel<E> for V {
    type X = f32;
    type Vector = V;
    type Sum = V;
    const LANES: usize = V::LANES;

    #[inline(always)]
    unsafe fn fma(sum: V, weight: V, x: V) -> V {
        // SAFETY: the caller's promise, here and below.
        unsafe { sum.fma(weight, x) }
    }

    #[inline(always)]
    unsafe fn x(from: *const f32) -> V {
        // SAFETY: as above.
        unsafe { V::f32(from) }
    }

    #[inline(always)]
    unsafe fn x_part(from: *const f32, count: usize) -> V {
        // SAFETY: as above.
        unsafe { V::f32_part(from, count) }
    }

    #[inline(always)]
    unsafe fn weight(from: *const E) -> V {
        // SAFETY: as above.
        unsafe { E::load(from) }
    }

    #[inline(always)]
    unsafe fn weight_part(from: *const E, count: usize) -> V {
        // SAFETY: as above.
        unsafe { E::load_part(from, count) }
    }
}

/// How rows of activations lie in memory.
pub(super) trait RowLayout: Copy {
    /// Whether rows are filled with zeros up to a multiple of the lanes.
    const FILLED: bool = false;

    /// Where a row block of so many rows of `k` elements is, if a vector has so many lanes.
    fn steps(self, k: usize, lanes: usize, height: usize) -> RowSteps;
}

/// Distances, in elements.
pub(super) struct RowSteps {
    /// From the first row of all to the first of the row block, for each row between them.
    pub(super) start: usize,
    /// From one row to the next.
    pub(super) row: usize,
    /// From one vector of a row to the next.
    pub(super) vector: usize,
}

/// Row after row without gaps.
#[derive(Clone, Copy)]
pub(super) struct RowMajor;

impl RowLayout for RowMajor {
    #[inline(always)]
    fn steps(self, k: usize, lanes: usize, _height: usize) -> RowSteps {
        RowSteps { start: k, row: k, vector: lanes }
    }
}

/// Row block by row block (see `pack`), with zeros up to a multiple of the lanes.
#[derive(Clone, Copy)]
pub(super) struct Packed;

impl RowLayout for Packed {
    const FILLED: bool = true;

    #[inline(always)]
    fn steps(self, k: usize, lanes: usize, height: usize) -> RowSteps {
        RowSteps { start: k.next_multiple_of(lanes), row: lanes, vector: height * lanes }
    }
}

/// Where a row block lies.
pub(crate) struct RowBlock {
    /// The first row of `x`.
    pub(super) row: usize,
    /// How many rows of `x`.
    pub(super) height: usize,
    /// The rows of the weight.
    pub(super) columns: Range<usize>,
    /// How to fetch weights into the cache ahead of need.
    pub(super) prefetch: Prefetch,
}

/// How far ahead of need weights are fetched that are read once, in bytes: memory takes about 2 µs
/// to give as many to one core.
const FAR: usize = 64 << 10;

/// Which weights a row block fetches ahead of need. Weights are fetched in the order they lie in
/// memory, which memory likes best, though a tile reads several rows at once.
#[derive(Clone, Copy)]
pub(crate) enum Prefetch {
    /// As many as it reads, starting with those that its second tile will read, but none behind its
    /// last.
    NextTile,
    /// As many as it reads, at least [`FAR`] bytes ahead of it, but none behind its last.
    Far,
    /// So many eighths of what it reads, starting here: a few row blocks fetch the next panel while
    /// they compute from this one.
    Eighths(usize, *const u8),
    /// None: others have fetched them.
    None,
}

/// Computes `y[rows, columns]`.
///
/// # Safety
///
/// That of [`MatmulLoops::region`](super::MatmulLoops::region), with the instructions of `V`; and
/// row blocks of all rows begin and end with `rows`.
#[inline(always)]
pub(super) unsafe fn region<K: Kernel<E>, E, L: RowLayout>(
    operands: &Operands<K::X, E>,
    layout: L,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    let k = operands.size.k;
    let width = panels::width(k, size_of::<E>());
    let mut start = columns.start;
    while start < columns.end {
        let end = columns.end.min(start.saturating_add(width));
        // Nobody fetched the first panel: its first row block has to, and leaves the next panel to
        // the others.
        let late = usize::from(start == columns.start);
        let eighths = if end < columns.end { 8 } else { 0 };
        let next = (operands.weight.wrapping_add(end * k).cast(), eighths);
        // SAFETY: the caller's promises, for columns within its own.
        unsafe { panel::<K, E, L>(operands, layout, rows.clone(), start..end, late, next) };
        start = end;
    }
}

/// Computes `y[rows, columns]` of so few columns that their weights stay in the second-level cache.
/// So many row blocks fetch those weights, and the others what comes next: from an address on, so
/// many eighths of the bytes of this panel.
///
/// # Safety
///
/// That of [`region`].
#[inline(always)]
pub(super) unsafe fn panel<K: Kernel<E>, E, L: RowLayout>(
    operands: &Operands<K::X, E>,
    layout: L,
    rows: Range<usize>,
    columns: Range<usize>,
    late: usize,
    (next, eighths): (*const u8, usize),
) {
    let bytes = columns.len() * operands.size.k * size_of::<E>();
    let inside =
        |row_block: &Range<usize>| rows.start <= row_block.start && row_block.end <= rows.end;
    let row_blocks = || RowBlocks::of_many(operands.size.m, K::MAX_ROWS).all().filter(inside);
    let others = row_blocks().count().saturating_sub(late);
    let each = eighths.div_ceil(others.max(1)).min(4);
    for (index, block) in row_blocks().enumerate() {
        let prefetch = match index.checked_sub(late).map(|index| index * each) {
            None => Prefetch::NextTile,
            Some(fetched) if fetched < eighths => {
                Prefetch::Eighths(each, next.wrapping_add(bytes * fetched / 8))
            }
            Some(_) => Prefetch::None,
        };
        let (row, height, columns) = (block.start, block.len(), columns.clone());
        let block = RowBlock { row, height, columns, prefetch };
        // SAFETY: the caller's promises, for rows within its own.
        unsafe { row_block::<K, E, L>(operands, layout, block) };
    }
}

/// Computes `y[row..row + height, columns]`, as many columns side by side as suit the height and
/// the registers at hand.
///
/// # Safety
///
/// That of [`MatmulLoops::region`](super::MatmulLoops::region), with the instructions of `K`; and
/// `1 <= height <= MAX_ROWS`.
#[inline(always)]
pub(super) unsafe fn row_block<K: Kernel<E>, E, L: RowLayout>(
    operands: &Operands<K::X, E>,
    layout: L,
    block: RowBlock,
) {
    // SAFETY: the caller's promises.
    unsafe {
        match (block.height, <K::Sum as Vector>::LANES) {
            (1, _) => row_block_of::<K, E, L, 1, 8>(operands, layout, block),
            (2, 16) => row_block_of::<K, E, L, 2, 8>(operands, layout, block),
            (2, 8) => row_block_of::<K, E, L, 2, 6>(operands, layout, block),
            (2, _) => row_block_of::<K, E, L, 2, 4>(operands, layout, block),
            (3, 16) => row_block_of::<K, E, L, 3, 6>(operands, layout, block),
            (3, _) => row_block_of::<K, E, L, 3, 3>(operands, layout, block),
            (4, 16) => row_block_of::<K, E, L, 4, 6>(operands, layout, block),
            (5, 16) => row_block_of::<K, E, L, 5, 4>(operands, layout, block),
            (_, 16) => row_block_of::<K, E, L, 6, 4>(operands, layout, block),
            _ => row_block_of::<K, E, L, 4, 3>(operands, layout, block),
        }
    }
}

/// About so many bytes of a row block stay in the first-level cache while weights pass it.
const NEAR: usize = 24 << 10;

/// The most sums that a row block keeps between two parts of its rows.
const KEPT: usize = 6 * panels::MOST;

/// Computes `y[row..row + HEIGHT, columns]`, `WIDTH` columns at a time and the rest one at a time.
///
/// Rows that are longer than the first-level cache has room for are taken in parts, each past all
/// columns: sums rest in between, and go on as if they had not.
///
/// # Safety
///
/// That of [`MatmulLoops::region`](super::MatmulLoops::region), with the instructions of `V`; and
/// `block.height == HEIGHT`.
#[inline(always)]
unsafe fn row_block_of<K: Kernel<E>, E, L: RowLayout, const HEIGHT: usize, const WIDTH: usize>(
    operands: &Operands<K::X, E>,
    layout: L,
    block: RowBlock,
) {
    let k = operands.size.k;
    let Range { start, end } = block.columns;
    let tiles = FAR.div_ceil((WIDTH * k * size_of::<E>()).max(1));
    let whole = (end - start) / WIDTH * WIDTH;
    // Weights that come from memory are read row after row.
    let is_near = matches!(block.prefetch, Prefetch::Eighths(..) | Prefetch::None);
    let part = match is_near && HEIGHT * whole <= KEPT {
        true => (NEAR / (HEIGHT * size_of::<K::X>())).next_multiple_of(2 * K::LANES),
        false => usize::MAX,
    };
    let mut kept = [const { MaybeUninit::<[f32; 16]>::uninit() }; KEPT];
    let mut parts = 0..k.min(part);
    loop {
        for column in (start..start + whole).step_by(WIDTH) {
            let at = |column: usize| operands.weight.wrapping_add(column * k).cast::<u8>();
            let (prefetch, eighths) = match block.prefetch {
                Prefetch::NextTile if column + 2 * WIDTH <= end => (at(column + WIDTH), 8),
                Prefetch::Far if column + (tiles + 1) * WIDTH <= end => {
                    (at(column + tiles * WIDTH), 8)
                }
                Prefetch::Eighths(eighths, first) => {
                    let done = (column - start) * k * size_of::<E>();
                    (first.wrapping_add(done * eighths / 8), eighths)
                }
                // Behind the last there may be no memory, and to look for it in vain takes time.
                Prefetch::NextTile | Prefetch::Far | Prefetch::None => (at(0), 0),
            };
            let kept = kept.as_mut_ptr().wrapping_add((column - start) * HEIGHT);
            let place = Place { row: block.row, column, part: parts.clone(), kept: kept.cast() };
            // SAFETY: the caller's promises, for rows and columns within its own; sums of as many
            // columns are kept as there is room for, and parts follow one another.
            unsafe {
                let operands = (operands, layout);
                match eighths {
                    8 => tile::<K, E, L, HEIGHT, WIDTH, 8>(operands, place, prefetch),
                    4 => tile::<K, E, L, HEIGHT, WIDTH, 4>(operands, place, prefetch),
                    3 => tile::<K, E, L, HEIGHT, WIDTH, 3>(operands, place, prefetch),
                    2 => tile::<K, E, L, HEIGHT, WIDTH, 2>(operands, place, prefetch),
                    1 => tile::<K, E, L, HEIGHT, WIDTH, 1>(operands, place, prefetch),
                    _ => tile::<K, E, L, HEIGHT, WIDTH, 0>(operands, place, prefetch),
                }
            }
        }
        if parts.end == k {
            break;
        }
        parts = parts.end..k.min(parts.end.saturating_add(part));
    }
    for column in start + whole..end {
        let place = Place { row: block.row, column, part: 0..k, kept: std::ptr::null_mut() };
        // SAFETY: as above; all of a row at once keeps nothing.
        unsafe {
            let prefetch = operands.weight.cast();
            tile::<K, E, L, HEIGHT, 1, 0>((operands, layout), place, prefetch)
        };
    }
}

/// Which outputs a tile computes, and what part of their rows.
struct Place {
    row: usize,
    column: usize,
    /// Begins with a multiple of two vectors, and ends with one or with the row.
    part: Range<usize>,
    /// Where sums are kept behind a part that is not the last, and where they are before one that
    /// is not the first.
    kept: *mut f32,
}

/// Computes `y[row..row + HEIGHT, column..column + WIDTH]`, or goes on with its sums; meanwhile
/// fetches `EIGHTHS / 8` times the weights that it reads, starting at `prefetch`.
///
/// # Safety
///
/// That of [`MatmulLoops::region`](super::MatmulLoops::region), with the instructions of `V`. If
/// the part is not all of a row, `kept` has room for the sums, and has those of the parts before.
#[inline(always)]
unsafe fn tile<
    K: Kernel<E>,
    E,
    L: RowLayout,
    const HEIGHT: usize,
    const WIDTH: usize,
    const EIGHTHS: usize,
>(
    (operands, layout): (&Operands<K::X, E>, L),
    Place { row, column, part, kept }: Place,
    prefetch: *const u8,
) {
    const LINE: usize = 64;
    let k = operands.size.k;
    let lanes = <K::Sum as Vector>::LANES;
    let steps = layout.steps(k, K::LANES, HEIGHT);
    // SAFETY: `x` has rows `row..row + HEIGHT`, and `weight` has rows `column..column + WIDTH`,
    // each of `k` elements. A load of `LANES` elements at `at` happens only while
    // `at + LANES <= k`; the last load is of the `k - at < LANES` elements left, but for packed
    // rows, which are filled up to a multiple of `LANES`. `y` has the elements written at the end,
    // and they are the caller's alone.
    unsafe {
        let weight = operands.weight.add(column * k);
        let mut sums = [[<K::Sum>::zero(); WIDTH]; HEIGHT];
        if part.start > 0 {
            for i in 0..HEIGHT {
                for j in 0..WIDTH {
                    sums[i][j] = <K::Sum>::f32(kept.add((i * WIDTH + j) * lanes));
                }
            }
        }

        let mut x = operands.x.add(row * steps.start + part.start / K::LANES * steps.vector);
        let mut at = part.start;
        while at + 2 * K::LANES <= part.end {
            let bytes = WIDTH * 2 * K::LANES * size_of::<E>() * EIGHTHS / 8;
            let base = prefetch.wrapping_add(at / (2 * K::LANES) * bytes);
            for line in 0..bytes.div_ceil(LINE) {
                <K::Sum>::prefetch(base.wrapping_add(line * LINE));
            }
            step::<K, E, HEIGHT, WIDTH>(&mut sums, (x, steps.row), weight.add(at), k);
            x = x.add(steps.vector);
            step::<K, E, HEIGHT, WIDTH>(&mut sums, (x, steps.row), weight.add(at + K::LANES), k);
            x = x.add(steps.vector);
            at += 2 * K::LANES;
        }
        if part.end < k {
            for i in 0..HEIGHT {
                for j in 0..WIDTH {
                    sums[i][j].store(kept.add((i * WIDTH + j) * lanes));
                }
            }
            return;
        }
        if at + K::LANES <= k {
            step::<K, E, HEIGHT, WIDTH>(&mut sums, (x, steps.row), weight.add(at), k);
            x = x.add(steps.vector);
            at += K::LANES;
        }
        if at < k {
            // Loads of parts are long where there are no masked ones. Loops over them are not
            // unrolled, and sums that such a loop indexes would be held in memory throughout.
            let w: [K::Vector; WIDTH] =
                std::array::from_fn(|j| K::weight_part(weight.add(j * k + at), k - at));
            let x: [K::Vector; HEIGHT] = std::array::from_fn(|i| {
                let x = x.add(i * steps.row);
                if L::FILLED { K::x(x) } else { K::x_part(x, k - at) }
            });
            for i in 0..HEIGHT {
                for j in 0..WIDTH {
                    sums[i][j] = K::fma(sums[i][j], w[j], x[i]);
                }
            }
        }

        let y = operands.y.add(row * operands.size.n + column);
        for i in 0..HEIGHT {
            let y = y.add(i * operands.size.n);
            let (fours, rest) = sums[i].as_chunks::<4>();
            for (j, &four) in fours.iter().enumerate() {
                y.add(4 * j).cast::<[f32; 4]>().write_unaligned(<K::Sum>::sums(four));
            }
            for (j, &sum) in rest.iter().enumerate() {
                y.add(4 * fours.len() + j).write(sum.sum());
            }
        }
    }
}

/// Adds the products of one vector of each row of `x` with one of each row of the weight.
///
/// # Safety
///
/// `x` points to the first of `HEIGHT` vectors, one every so many elements as stand beside it, and
/// `weight` to the first of `WIDTH`, one every `k` elements.
#[inline(always)]
unsafe fn step<K: Kernel<E>, E, const HEIGHT: usize, const WIDTH: usize>(
    sums: &mut [[K::Sum; WIDTH]; HEIGHT],
    (x, next_row): (*const K::X, usize),
    weight: *const E,
    k: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        // The fewer vectors stay in registers, the others pass through one.
        if HEIGHT < WIDTH {
            let x: [K::Vector; HEIGHT] = std::array::from_fn(|i| K::x(x.add(i * next_row)));
            for j in 0..WIDTH {
                let w = K::weight(weight.add(j * k));
                for i in 0..HEIGHT {
                    sums[i][j] = K::fma(sums[i][j], w, x[i]);
                }
            }
        } else {
            let w: [K::Vector; WIDTH] = std::array::from_fn(|j| K::weight(weight.add(j * k)));
            for i in 0..HEIGHT {
                let x = K::x(x.add(i * next_row));
                for j in 0..WIDTH {
                    sums[i][j] = K::fma(sums[i][j], w[j], x);
                }
            }
        }
    }
}
