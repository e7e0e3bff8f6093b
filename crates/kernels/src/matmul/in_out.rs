//! `y += x · W` with weights stored `[in, out]`, as GPT-2's `Conv1D` stores them.
//!
//! An output is one chain of multiply-adds: it begins with what `y` holds and takes `k` in order,
//! fused where the processor can. So tiles of the weight's rows, one call after the other, give the
//! same bits as one call with all rows; and so does any sharing of columns and rows among threads.
//! Output columns stand in the lanes of vectors, which are loaded as they lie in memory.
//!
//! Of a few rows of activations, [`stream`] walks wide runs of columns, several rows of the weight
//! at a time: each weight is read once, in as many streams as the memory likes. Of many rows,
//! [`panel`] widens some rows of a few columns into the first-level cache, where all rows of
//! activations pass them.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are counted, and each indexes several things"
)]

use std::mem::MaybeUninit;
use std::ops::Range;

use half::{bf16, f16};

use super::blocks::{for_each_panel, height};
use super::claims::{Claims, row_parts};
use super::{Element, Size, pack};
use crate::simd::{Vector, for_each_isa};
use crate::{ActivationDtype, Isa, Weight};

/// From so many rows of activations on, weights are widened into panels.
const MANY: usize = 32;

/// Rows of the weight that [`stream`] reads side by side.
const STREAMS: usize = 8;

/// Rows of the weight in a panel.
const DEPTH: usize = 128;

/// Vectors of columns that are computed side by side: those of a panel.
const WIDTH: usize = 4;

/// Columns of a panel, at most.
const COLUMNS: usize = WIDTH * 16;

/// One accumulating matmul: `y [m, n] += x [m, rows] · W [rows, n]`, with some columns of a wider
/// `x`.
#[derive(Debug)]
pub struct InOutMatmul<'a> {
    /// `[m, k]`.
    pub x: &'a [f32],
    /// Columns of `x`.
    pub k: usize,
    /// `[rows, n]`: some rows of a weight `[k, n]`.
    pub weight: Weight<'a>,
    /// The columns of `x` that these rows are for.
    pub rows: Range<usize>,
    /// `[m, n]`.
    pub y: &'a mut [f32],
    /// Columns of the weight and of `y`.
    pub n: usize,
}

/// Adds `x · W` to `y`, for a weight `[in, out]`, or tile by tile for some rows of it.
///
/// The bits of an output depend on what it was, on its row of `x`, on its column of the weight, on
/// the [`ActivationDtype`] and on whether the [`Isa`] fuses multiply-adds, **and on nothing else**:
/// not on how the weight's rows are cut into tiles, as long as these come in order. With `s` the
/// sum of the magnitudes of all that is added, an output is off by at most `k · 2⁻²³ · s`.
///
/// # Panics
///
/// If a slice does not have the length that the sizes ask for, or if this processor does not have
/// `isa`.
pub fn add_linear_in_out_into(isa: Isa, compute: ActivationDtype, matmul: InOutMatmul<'_>) {
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    let InOutMatmul { x, k, weight, rows, y, n } = matmul;
    assert!(rows.start <= rows.end && rows.end <= k, "rows {rows:?} of a weight of {k} rows");
    assert_eq!(
        Some(weight.len()),
        rows.len().checked_mul(n),
        "weight must hold {} rows of {n} elements",
        rows.len()
    );
    let m = y.len().checked_div(n).unwrap_or(0);
    assert_eq!(m * n, y.len(), "y must hold rows of {n} elements");
    assert!(
        n == 0 || Some(x.len()) == m.checked_mul(k),
        "x must hold {m} rows of {k} elements, but it holds {}",
        x.len()
    );
    if m == 0 || rows.is_empty() {
        return;
    }
    let rounded = (compute == ActivationDtype::Bf16).then(|| pack::rounded(x));
    let x = rounded.as_deref().unwrap_or(x);
    match weight {
        Weight::Bf16(weight) => share::<bf16>(isa, [m, k, n], x, weight, rows, y),
        Weight::F16(weight) => share::<f16>(isa, [m, k, n], x, weight, rows, y),
        Weight::F32(weight) => share::<f32>(isa, [m, k, n], x, weight, rows, y),
        Weight::Blocks(weight) => {
            for_each_panel(isa, weight, 0..rows.len(), height(weight.shape()[1]), |panel, some| {
                let some = rows.start + some.start..rows.start + some.end;
                share::<f32>(isa, [m, k, n], x, panel, some, y);
            });
        }
    }
}

/// What threads share: `x` from the first of the weight's rows on.
struct Operands<E> {
    x: *const f32,
    /// Elements from one row of `x` to the next.
    x_stride: usize,
    weight: *const E,
    y: *mut f32,
    size: Size,
}

// SAFETY: three addresses and some sizes. What threads may do with the addresses is the contract of
// `region`.
unsafe impl<E: Sync> Sync for Operands<E> {}

/// Computes all of `y`, on as many threads as it is worth.
fn share<E: Element>(
    isa: Isa,
    [m, k, n]: [usize; 3],
    x: &[f32],
    weight: &[E],
    rows: Range<usize>,
    y: &mut [f32],
) {
    let size = Size { m, n, k: rows.len() };
    let operands = Operands {
        x: x[rows.start..].as_ptr(),
        x_stride: k,
        weight: weight.as_ptr(),
        y: y.as_mut_ptr(),
        size,
    };
    let threads = rayon::current_num_threads();
    let panels = n.div_ceil(COLUMNS);
    let parts = if m < MANY { 1 } else { row_parts(m, panels, threads) };
    let claims = match m < MANY {
        true => Claims::new(size, size_of::<E>(), threads, COLUMNS),
        false => Claims::of(panels * parts, threads),
    };
    claims.share(|run| {
        // SAFETY: the callers checked that `isa` is available and that the slices have the lengths
        // that the sizes ask for; all are borrowed until `share` returns. Runs do not overlap, so
        // that no two calls have an element of `y` in common.
        unsafe {
            if m < MANY {
                return region(isa, &operands, 0..m, run);
            }
            for index in run {
                let (panel, part) = (index / parts, index % parts);
                let rows = m * part / parts..m * (part + 1) / parts;
                let start = panel * COLUMNS;
                region(isa, &operands, rows, start..n.min(start + COLUMNS));
            }
        }
    });
}

for_each_isa! {
    /// Computes `y[rows, columns]`.
    ///
    /// # Safety
    ///
    /// The processor has the instructions; the operands point to matrices of their sizes; and
    /// during the call nothing else reads or writes `y[rows, columns]`.
    unsafe fn region<V, E: Element>(
        operands: &Operands<E>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if operands.size.m < MANY {
                let mut first = 0;
                while first < operands.size.k {
                    let depth = STREAMS.min(operands.size.k - first);
                    stream::<V, E>(operands, first..first + depth, columns.clone());
                    first += depth;
                }
            } else {
                let width = WIDTH * V::LANES;
                for start in columns.clone().step_by(width) {
                    panel::<V, E>(operands, rows.clone(), start..columns.end.min(start + width));
                }
            }
        }
    }
}

/// Adds what some rows of the weight, at most [`STREAMS`], give to some columns of all outputs.
///
/// # Safety
///
/// As for [`region`].
#[inline(always)]
unsafe fn stream<V: Vector, E: Element>(
    operands: &Operands<E>,
    depth: Range<usize>,
    columns: Range<usize>,
) {
    let m = operands.size.m;
    let mut row = 0;
    while row < m {
        // SAFETY: the caller's promise.
        unsafe {
            row += match m - row {
                1 => stream_rows::<V, E, 1>(operands, row, &depth, &columns),
                2 | 3 => stream_rows::<V, E, 2>(operands, row, &depth, &columns),
                _ => stream_rows::<V, E, 4>(operands, row, &depth, &columns),
            }
        }
    }
}

/// [`stream`] of `R` rows of activations; says how many these are.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn stream_rows<V: Vector, E: Element, const R: usize>(
    operands: &Operands<E>,
    row: usize,
    depth: &Range<usize>,
    columns: &Range<usize>,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        if depth.len() == STREAMS {
            stream_tile::<V, E, R, STREAMS>(operands, row, depth.start, columns);
        } else {
            for at in depth.clone() {
                stream_tile::<V, E, R, 1>(operands, row, at, columns);
            }
        }
    }
    R
}

/// [`stream`] of `R` rows of activations and `D` of the weight.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn stream_tile<V: Vector, E: Element, const R: usize, const D: usize>(
    operands: &Operands<E>,
    row: usize,
    depth: usize,
    columns: &Range<usize>,
) {
    let n = operands.size.n;
    // SAFETY: `x`, the weight and `y` have these rows; the vectors at `column` are within them, or
    // as many of their lanes as are loaded and stored.
    unsafe {
        let x: [[f32; D]; R] = std::array::from_fn(|i| {
            let x = operands.x.add((row + i) * operands.x_stride + depth);
            x.cast::<[f32; D]>().read()
        });
        let weight = operands.weight.add(depth * n);
        let y = operands.y.add(row * n);
        let mut column = columns.start;
        while column + 2 * V::LANES <= columns.end {
            let mut sums = [[V::zero(); 2]; R];
            for i in 0..R {
                for j in 0..2 {
                    sums[i][j] = V::f32(y.add(i * n + column + j * V::LANES));
                }
            }
            for l in 0..D {
                let from = weight.add(l * n + column);
                // The same columns of the next rows, which are too far away to be foreseen.
                V::prefetch(from.wrapping_add(D * n).cast());
                let w = [E::load::<V>(from), E::load::<V>(from.add(V::LANES))];
                for i in 0..R {
                    let x = V::splat(x[i][l]);
                    for j in 0..2 {
                        sums[i][j] = sums[i][j].fma(w[j], x);
                    }
                }
            }
            for i in 0..R {
                for j in 0..2 {
                    sums[i][j].store(y.add(i * n + column + j * V::LANES));
                }
            }
            column += 2 * V::LANES;
        }
        while column < columns.end {
            let count = V::LANES.min(columns.end - column);
            for i in 0..R {
                let mut sum = load(y.add(i * n + column), count);
                for l in 0..D {
                    sum = V::fma(sum, load(weight.add(l * n + column), count), V::splat(x[i][l]));
                }
                store(sum, y.add(i * n + column), count);
            }
            column += count;
        }
    }
}

/// Adds what all rows of the weight give to the outputs of some rows and of `columns`, at most
/// [`WIDTH`] vectors of them: [`DEPTH`] rows at a time, widened.
///
/// # Safety
///
/// As for [`region`].
#[inline(always)]
unsafe fn panel<V: Vector, E: Element>(
    operands: &Operands<E>,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    let Size { n, k, .. } = operands.size;
    let mut widened = [const { MaybeUninit::<f32>::uninit() }; DEPTH * COLUMNS];
    let widened: *mut f32 = widened.as_mut_ptr().cast();
    let width = WIDTH * V::LANES;
    let mut first = 0;
    while first < k {
        let depth = DEPTH.min(k - first);
        for l in 0..depth {
            for j in 0..columns.len().div_ceil(V::LANES) {
                let column = columns.start + j * V::LANES;
                let count = V::LANES.min(columns.end - column);
                // SAFETY: the weight has `count` elements there, and `widened` room for `DEPTH`
                // rows of `width`, which is at most `COLUMNS`.
                unsafe {
                    let w: V = load(operands.weight.add((first + l) * n + column), count);
                    w.store(widened.add(l * width + j * V::LANES));
                }
            }
        }
        let mut row = rows.start;
        while row < rows.end {
            let block =
                Block { row, columns: &columns, depth: first..first + depth, weight: widened };
            // Six rows of four vectors of sums fit into 32 registers, two into 16.
            let most = if V::LANES == 16 { 6 } else { 2 };
            // SAFETY: the caller's promise; `widened` holds the rows of the block.
            row += unsafe {
                match (rows.end - row).min(most) {
                    6.. => block.add::<V, E, 6>(operands),
                    5 => block.add::<V, E, 5>(operands),
                    4 => block.add::<V, E, 4>(operands),
                    3 => block.add::<V, E, 3>(operands),
                    2 => block.add::<V, E, 2>(operands),
                    _ => block.add::<V, E, 1>(operands),
                }
            };
        }
        first += depth;
    }
}

/// A few rows of activations and a panel.
struct Block<'a> {
    /// The first row of `x`.
    row: usize,
    /// Columns of `y`.
    columns: &'a Range<usize>,
    /// Rows of the weight.
    depth: Range<usize>,
    /// These rows, `WIDTH` vectors each.
    weight: *const f32,
}

impl Block<'_> {
    /// Adds what the panel gives to `R` rows of outputs; says how many these are.
    ///
    /// # Safety
    ///
    /// As for [`region`]; and the panel has all rows of `depth`.
    #[inline(always)]
    unsafe fn add<V: Vector, E: Element, const R: usize>(&self, operands: &Operands<E>) -> usize {
        let n = operands.size.n;
        let count = |j: usize| self.columns.len().saturating_sub(j * V::LANES).min(V::LANES);
        // SAFETY: the caller's promise: `x` has these rows, with an element for each row of the
        // panel, and `y` these rows and columns, `count` lanes of each vector.
        unsafe {
            let y = operands.y.add(self.row * n + self.columns.start);
            let mut sums = [[V::zero(); WIDTH]; R];
            for i in 0..R {
                for j in 0..WIDTH {
                    sums[i][j] = load(y.wrapping_add(i * n + j * V::LANES), count(j));
                }
            }
            let x = operands.x.add(self.row * operands.x_stride + self.depth.start);
            let mut weight = self.weight;
            for l in 0..self.depth.len() {
                let w: [V; WIDTH] = std::array::from_fn(|j| V::f32(weight.add(j * V::LANES)));
                for i in 0..R {
                    let x = V::splat(x.add(i * operands.x_stride + l).read());
                    for j in 0..WIDTH {
                        sums[i][j] = sums[i][j].fma(w[j], x);
                    }
                }
                weight = weight.add(WIDTH * V::LANES);
            }
            for i in 0..R {
                for j in 0..WIDTH {
                    store(sums[i][j], y.wrapping_add(i * n + j * V::LANES), count(j));
                }
            }
        }
        R
    }
}

/// The first `count` lanes.
///
/// # Safety
///
/// The processor has the instructions of `V`; `from` points to as many elements.
#[inline(always)]
unsafe fn load<V: Vector, E: Element>(from: *const E, count: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        match count {
            0 => V::zero(),
            count if count == V::LANES => E::load(from),
            count => E::load_part(from, count),
        }
    }
}

/// Writes the first `count` lanes.
///
/// # Safety
///
/// The processor has the instructions of `V`; `to` points to as many elements.
#[inline(always)]
unsafe fn store<V: Vector>(vector: V, to: *mut f32, count: usize) {
    // SAFETY: the caller's promise; no vector has more lanes than the array has elements.
    unsafe {
        if count == V::LANES {
            return vector.store(to);
        }
        let mut all = [0.0; 16];
        vector.store(all.as_mut_ptr());
        to.copy_from_nonoverlapping(all.as_ptr(), count);
    }
}
