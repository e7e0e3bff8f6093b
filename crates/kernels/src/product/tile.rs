//! The loops of a product, written once for every vector type.
//!
//! A region of the output is walked in three steps: [`region`] takes the weight's rows in panels that stay in the
//! second-level cache; for each, [`strip`] takes a few rows of `x` over the whole panel; [`tile`] computes a few
//! outputs side by side, so that each vector it loads serves several of them. Which outputs share a tile changes no
//! result: see the [contract](crate#the-contract).
//!
//! Everything here is inlined into the `region` of an instruction set, where its instructions are enabled.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are counted, and each indexes several things"
)]

use std::ops::Range;

use super::{Job, element::Element, grid::ROW_UNIT};

/// A panel of weights takes at most about this many bytes, so that it, the next one and rows of `x` fit in the
/// second-level cache of a core.
const PANEL_BYTES: usize = 384 << 10;

/// A vector of f32 lanes, and how to fill it.
///
/// # Safety
///
/// All functions ask that the processor has the instructions that the type is for. `sum` and `fma` have the same
/// result for the same lanes wherever they are inlined (no reordering, no contraction).
pub(super) trait Vector: Copy {
    /// Lanes in a vector.
    const LANES: usize;

    /// The most rows of `x` that [`Vector::strip`] takes.
    const TALLEST: usize;

    /// Zero in every lane.
    unsafe fn zero() -> Self;

    /// `self + a * b`, lane by lane, fused where the instruction set has that.
    unsafe fn fma(self, a: Self, b: Self) -> Self;

    /// The sum of all lanes, in a fixed order.
    unsafe fn sum(self) -> f32;

    /// `LANES` f32 from a pointer to as many.
    unsafe fn f32(from: *const f32) -> Self;

    /// `count < LANES` f32 from a pointer to as many; zero in the other lanes.
    unsafe fn f32_part(from: *const f32, count: usize) -> Self;

    /// `LANES` bf16, given as their bits, widened.
    unsafe fn bf16(from: *const u16) -> Self;

    /// `count < LANES` bf16, widened; zero in the other lanes.
    unsafe fn bf16_part(from: *const u16, count: usize) -> Self;

    /// `LANES` f16, given as their bits, widened.
    unsafe fn f16(from: *const u16) -> Self;

    /// `count < LANES` f16, widened; zero in the other lanes.
    unsafe fn f16_part(from: *const u16, count: usize) -> Self;

    /// Asks for a cache line ahead of need. Any address will do.
    fn prefetch(address: *const u8);

    /// [`strip`] with the blocking that suits `height` rows of `x` and the registers at hand.
    ///
    /// # Safety
    ///
    /// That of [`strip`]; and `1 <= height <= TALLEST`.
    unsafe fn strip<E: Element>(job: &Job<E>, place: Strip);
}

/// Where a strip lies.
pub(super) struct Strip {
    /// The first row of `x`.
    pub(super) row: usize,
    /// How many rows of `x`.
    pub(super) height: usize,
    /// The rows of the weight.
    pub(super) columns: Range<usize>,
    /// How to fetch weights into the cache ahead of need.
    pub(super) ahead: Ahead,
}

/// Which weights a strip fetches ahead of need. Weights are fetched in the order they lie in memory, which memory
/// likes best, though a tile reads several rows at once.
#[derive(Clone, Copy)]
pub(super) enum Ahead {
    /// As many as it reads, starting with those that its second tile will read.
    NextTile,
    /// Half as many as it reads, starting here (an index into the weight): two strips fetch the next panel while they
    /// compute from this one.
    Half(usize),
    /// None: others have fetched them.
    Nothing,
}

/// Computes `y[rows, columns]`.
///
/// # Safety
///
/// That of [`Job::region`], with the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn region<V: Vector, E: Element>(
    job: &Job<E>,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    if rows.is_empty() {
        return;
    }
    let k = job.size.k;
    let strips = rows.len().div_ceil(V::TALLEST);
    let wide = k.saturating_mul(size_of::<E>() * ROW_UNIT) <= PANEL_BYTES;
    let panel = match (strips, wide) {
        // One strip: nothing is read twice.
        (1, _) => columns.len(),
        (_, true) => ROW_UNIT,
        (_, false) => ROW_UNIT / 2,
    };
    let mut start = columns.start;
    while start < columns.end {
        let end = columns.end.min(start.saturating_add(panel));
        let mut row = rows.start;
        for strip in 0..strips {
            // Strips of heights as equal as can be: 8 rows are 4 and 4 rather than 6 and 2.
            let height = (rows.end - row).div_ceil(strips - strip);
            let ahead = match (strips, strip) {
                (1, _) => Ahead::NextTile,
                (_, 0) => Ahead::Half(end * k),
                (_, 1) => Ahead::Half(end * k + (end - start) * k / 2),
                _ => Ahead::Nothing,
            };
            // SAFETY: the caller's promises, for rows and columns within its own.
            unsafe {
                V::strip(
                    job,
                    Strip {
                        row,
                        height,
                        columns: start..end,
                        ahead,
                    },
                )
            };
            row += height;
        }
        start = end;
    }
}

/// Computes `y[row..row + HEIGHT, columns]`, `WIDTH` columns at a time and the rest one at a time.
///
/// # Safety
///
/// That of [`Job::region`], with the instructions of `V`; and `place.height == HEIGHT`.
#[inline(always)]
pub(super) unsafe fn strip<V: Vector, E: Element, const HEIGHT: usize, const WIDTH: usize>(
    job: &Job<E>,
    place: Strip,
) {
    let k = job.size.k;
    let Range { start, end } = place.columns;
    let mut column = start;
    while column + WIDTH <= end {
        let (index, lines) = match place.ahead {
            Ahead::NextTile => ((column + WIDTH) * k, 2),
            Ahead::Half(index) => (index + (column - start) * k / 2, 1),
            Ahead::Nothing => (0, 0),
        };
        let ahead = job.weight.wrapping_add(index).cast();
        // SAFETY: the caller's promises, for rows and columns within its own.
        unsafe {
            match lines {
                2 => tile::<V, E, HEIGHT, WIDTH, 2>(job, place.row, column, ahead),
                1 => tile::<V, E, HEIGHT, WIDTH, 1>(job, place.row, column, ahead),
                _ => tile::<V, E, HEIGHT, WIDTH, 0>(job, place.row, column, ahead),
            }
        }
        column += WIDTH;
    }
    while column < end {
        // SAFETY: as above.
        unsafe { tile::<V, E, HEIGHT, 1, 0>(job, place.row, column, job.weight.cast()) };
        column += 1;
    }
}

/// Computes `y[row..row + HEIGHT, column..column + WIDTH]`; meanwhile fetches `HALVES / 2` times the weights that it
/// reads, starting at `ahead`.
///
/// # Safety
///
/// That of [`Job::region`], with the instructions of `V`.
#[inline(always)]
unsafe fn tile<
    V: Vector,
    E: Element,
    const HEIGHT: usize,
    const WIDTH: usize,
    const HALVES: usize,
>(
    job: &Job<E>,
    row: usize,
    column: usize,
    ahead: *const u8,
) {
    const LINE: usize = 64;
    let k = job.size.k;
    // SAFETY: `x` has rows `row..row + HEIGHT` and `weight` has rows `column..column + WIDTH`, each of `k` elements.
    // A load of `LANES` elements at `at` happens only while `at + LANES <= k`; the last load is of the `k - at < LANES`
    // elements left. `y` has the elements written at the end, and they are the caller's alone.
    unsafe {
        let x = job.x.add(row * k);
        let weight = job.weight.add(column * k);
        let mut sums = [[V::zero(); WIDTH]; HEIGHT];

        let mut at = 0;
        while at + 2 * V::LANES <= k {
            let bytes = WIDTH * 2 * V::LANES * size_of::<E>() * HALVES / 2;
            let base = ahead.wrapping_add(at / (2 * V::LANES) * bytes);
            for line in 0..bytes.div_ceil(LINE) {
                V::prefetch(base.wrapping_add(line * LINE));
            }
            step::<V, E, HEIGHT, WIDTH>(&mut sums, x.add(at), weight.add(at), k);
            step::<V, E, HEIGHT, WIDTH>(
                &mut sums,
                x.add(at + V::LANES),
                weight.add(at + V::LANES),
                k,
            );
            at += 2 * V::LANES;
        }
        if at + V::LANES <= k {
            step::<V, E, HEIGHT, WIDTH>(&mut sums, x.add(at), weight.add(at), k);
            at += V::LANES;
        }
        if at < k {
            let count = k - at;
            for j in 0..WIDTH {
                let w = E::load_part::<V>(weight.add(j * k + at), count);
                for i in 0..HEIGHT {
                    sums[i][j] = sums[i][j].fma(w, V::f32_part(x.add(i * k + at), count));
                }
            }
        }

        let y = job.y.add(row * job.size.n + column);
        for i in 0..HEIGHT {
            for j in 0..WIDTH {
                y.add(i * job.size.n + j).write(sums[i][j].sum());
            }
        }
    }
}

/// Adds the products of one vector of each row of `x` with one of each row of the weight.
///
/// # Safety
///
/// `x` points to the first of `HEIGHT` vectors and `weight` to the first of `WIDTH`, one every `k` elements.
#[inline(always)]
unsafe fn step<V: Vector, E: Element, const HEIGHT: usize, const WIDTH: usize>(
    sums: &mut [[V; WIDTH]; HEIGHT],
    x: *const f32,
    weight: *const E,
    k: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        // The fewer vectors stay in registers, the others pass through one.
        if HEIGHT < WIDTH {
            let x: [V; HEIGHT] = std::array::from_fn(|i| V::f32(x.add(i * k)));
            for j in 0..WIDTH {
                let w = E::load::<V>(weight.add(j * k));
                for i in 0..HEIGHT {
                    sums[i][j] = sums[i][j].fma(w, x[i]);
                }
            }
        } else {
            let w: [V; WIDTH] = std::array::from_fn(|j| E::load::<V>(weight.add(j * k)));
            for i in 0..HEIGHT {
                let x = V::f32(x.add(i * k));
                for j in 0..WIDTH {
                    sums[i][j] = sums[i][j].fma(w[j], x);
                }
            }
        }
    }
}

/// `count < N` elements, and zeros after them, for `N` up to 8: how to load a part where there are no masked loads.
///
/// # Safety
///
/// `from` points to `count` elements.
#[inline(always)]
pub(super) unsafe fn padded<T: Copy + Default, const N: usize>(
    from: *const T,
    count: usize,
) -> [T; N] {
    const { assert!(N <= 8) };
    let mut all = [T::default(); N];
    let mut done = 0;
    // Four, two and one at a time: moves of fixed size, where a copy of `count` would be a call.
    for size in [4, 2, 1] {
        if count & size != 0 && done + size <= N {
            // SAFETY: what is read are elements `done..done + size`, of `count`; what is written lies within `all`.
            unsafe {
                from.add(done)
                    .copy_to_nonoverlapping(all.as_mut_ptr().add(done), size)
            };
            done += size;
        }
    }
    all
}
