//! `c += a · b` of f32 matrices of any strides, on one thread: what backward passes multiply.
//!
//! A few rows of `a` and some columns of `b` are packed in the order in which [`tile`] reads them,
//! [`DEPTH`] products deep, so that neither strides nor powers of two cost anything in the loop.
//! Each depth is summed from nothing in order, and these sums are added to `c` in order: what the
//! bits of an output depend on is its row of `a`, its column of `b`, what it was, and whether the
//! [`Isa`](crate::Isa) fuses multiply-adds.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are counted, and each indexes several things"
)]

use std::cell::Cell;
use std::ops::Range;

use super::Size;
use super::pack::Scratch;
use crate::Isa;
use crate::loops::share;
use crate::simd::{Vector, for_each_isa};

/// Products that are summed before they are added to the output.
const DEPTH: usize = 256;

/// Rows of `a` that are packed at once: with their depth they stay in the second-level cache.
const ROWS: usize = 192;

/// Rows of a tile.
const TALL: usize = 6;

/// Vectors of a tile's row, at most.
const WIDE: usize = 4;

/// Columns of `b` that are packed at once, at most.
const COLUMNS: usize = WIDE * 16;

thread_local! {
    static LEFT: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    static RIGHT: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// A matrix that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided<'a> {
    /// The first element is `[0, 0]`.
    pub elements: &'a [f32],
    /// Elements from one row to the next.
    pub row: usize,
    /// Elements from one column to the next.
    pub column: usize,
}

impl<'a> Strided<'a> {
    /// Rows of `row` elements, of which the columns are the first ones.
    pub fn rows(elements: &'a [f32], row: usize) -> Self {
        Self { elements, row, column: 1 }
    }

    /// Rows as columns.
    pub fn transposed(self) -> Self {
        Self { row: self.column, column: self.row, ..self }
    }

    fn holds(&self, rows: usize, columns: usize) -> bool {
        rows == 0
            || columns == 0
            || (rows - 1) * self.row + (columns - 1) * self.column < self.elements.len()
    }
}

/// Adds `a [m, k] · b [k, n]` to `c [m, n]`, of which rows are `c_row` elements apart.
///
/// # Safety
///
/// `c` points to the first of these elements, which nothing else reads or writes during the call.
///
/// # Panics
///
/// If `a` or `b` is not as large, or if this processor does not have `isa`.
pub(crate) unsafe fn add_product(
    isa: Isa,
    a: Strided<'_>,
    b: Strided<'_>,
    (c, c_row): (*mut f32, usize),
    size: Size,
) {
    let Size { m, n, k } = size;
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    assert!(a.holds(m, k) && b.holds(k, n), "matrices of {size:?} must be held");
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: the caller's promise, and what was asserted.
    unsafe { product(isa, a, b, c, c_row, size) }
}

/// Writes `dyᵀ · x` to `dw`: `dy [m, n]`, `x [m, k]` and `dw [n, k]`, on as many threads as the
/// current rayon pool has. It is the gradient of the weight of `y = x · Wᵀ`.
///
/// # Panics
///
/// If a slice does not have the length that the sizes ask for, or if this processor does not have
/// `isa`.
pub fn weight_gradient_into(
    isa: Isa,
    dy: &[f32],
    x: &[f32],
    Size { m, n, k }: Size,
    dw: &mut [f32],
) {
    /// Rows that a thread takes at a time at least: `x` is packed for each of them.
    const LEAST: usize = 8 * TALL;
    assert_eq!(Some(dy.len()), m.checked_mul(n), "dy must hold {m} rows of {n}");
    assert_eq!(Some(x.len()), m.checked_mul(k), "x must hold {m} rows of {k}");
    assert_eq!(Some(dw.len()), n.checked_mul(k), "dw must hold {n} rows of {k}");
    dw.fill(0.0);
    if m == 0 || k == 0 {
        return;
    }
    let rows = n.div_ceil(2 * crate::threads()).next_multiple_of(TALL).clamp(LEAST, ROWS);
    share(dw.chunks_mut(rows * k).enumerate(), |(index, dw)| {
        let a = Strided::rows(&dy[index * rows..], n).transposed();
        let size = Size { m: dw.len() / k, n: k, k: m };
        // SAFETY: `dw` is as many rows of `k`, and this closure's alone.
        unsafe { add_product(isa, a, Strided::rows(x, k), (dw.as_mut_ptr(), k), size) }
    });
}

for_each_isa! {
    /// See [`add_product`].
    ///
    /// # Safety
    ///
    /// As there; the processor has the instructions, and `a` and `b` are as large.
    unsafe fn product<V>(
        a: Strided<'_>,
        b: Strided<'_>,
        c: *mut f32,
        c_row: usize,
        size: Size,
    ) {
        let Size { m, n, k } = size;
        let most = if V::LANES == 16 { WIDE } else { 2 };
        let depth = DEPTH.min(k);
        let mut left = Scratch::new(ROWS.min(m.next_multiple_of(TALL)) * depth, &LEFT);
        let mut right = Scratch::new(COLUMNS * depth, &RIGHT);
        for first in (0..k).step_by(DEPTH) {
            let depth = first..k.min(first + DEPTH);
            for row in (0..m).step_by(ROWS) {
                let rows = row..m.min(row + ROWS);
                pack_left(a, rows.clone(), depth.clone(), &mut left);
                let mut column = 0;
                while column < n {
                    let vectors = (n - column).div_ceil(V::LANES);
                    let vectors = if vectors > 2 { most } else { vectors.min(most) };
                    let columns = column..n.min(column + vectors * V::LANES);
                    column = columns.end;
                    pack_right(b, depth.clone(), columns.clone(), vectors * V::LANES, &mut right);
                    // SAFETY: the caller's promises, for rows and columns within its own.
                    unsafe {
                        let packed = (left.as_ptr(), right.as_ptr(), depth.len());
                        match vectors {
                            1 => tiles::<V, 1>(packed, rows.clone(), columns, c, c_row),
                            2 => tiles::<V, 2>(packed, rows.clone(), columns, c, c_row),
                            _ => tiles::<V, WIDE>(packed, rows.clone(), columns, c, c_row),
                        }
                    }
                }
            }
        }
    }
}

/// Packs some rows of `a`: of [`TALL`] at a time, column by column. Rows beyond the last are zero.
#[inline(always)]
fn pack_left(a: Strided<'_>, rows: Range<usize>, depth: Range<usize>, to: &mut [f32]) {
    let to = to.chunks_exact_mut(TALL * depth.len());
    for (row, to) in rows.clone().step_by(TALL).zip(to) {
        let count = TALL.min(rows.end - row);
        let from = row * a.row + depth.start * a.column;
        if count < TALL {
            to.fill(0.0);
        }
        if a.row == 1 {
            for (l, to) in to.as_chunks_mut::<TALL>().0.iter_mut().enumerate() {
                let from = &a.elements[from + l * a.column..][..count];
                match from.as_array::<TALL>() {
                    Some(from) => *to = *from,
                    None => to[..count].copy_from_slice(from),
                }
            }
            continue;
        }
        for i in 0..count {
            let from = a.elements[from + i * a.row..].iter().step_by(a.column);
            to[i..].iter_mut().step_by(TALL).zip(from).for_each(|(to, from)| *to = *from);
        }
    }
}

/// Packs some columns of `b` in rows of `width`, of which the last elements may be zero.
#[inline(always)]
fn pack_right(
    b: Strided<'_>,
    depth: Range<usize>,
    columns: Range<usize>,
    width: usize,
    to: &mut [f32],
) {
    let to = &mut to[..depth.len() * width];
    let from = depth.start * b.row + columns.start * b.column;
    if columns.len() < width {
        to.fill(0.0);
    }
    if b.column == 1 {
        for (l, to) in to.chunks_exact_mut(width).enumerate() {
            to[..columns.len()].copy_from_slice(&b.elements[from + l * b.row..][..columns.len()]);
        }
        return;
    }
    for j in 0..columns.len() {
        let from = b.elements[from + j * b.column..].iter().step_by(b.row);
        to[j..].iter_mut().step_by(width).zip(from).for_each(|(to, from)| *to = *from);
    }
}

/// Adds what packed rows and columns give to `c`.
///
/// # Safety
///
/// As for [`add_product`], with the instructions of `V`; and `left` and `right` are packed, so many
/// products deep.
#[inline(always)]
unsafe fn tiles<V: Vector, const W: usize>(
    (left, right, depth): (*const f32, *const f32, usize),
    rows: Range<usize>,
    columns: Range<usize>,
    c: *mut f32,
    c_row: usize,
) {
    let whole = columns.len() == W * V::LANES;
    for (index, row) in rows.clone().step_by(TALL).enumerate() {
        // SAFETY: `left` holds as many tiles, `right` rows of `W` vectors; `c` has these rows and
        // columns.
        unsafe {
            let sums = tile::<V, W>(left.add(index * TALL * depth), right, depth);
            for (i, sums) in sums.into_iter().enumerate().take(rows.end - row) {
                let c = c.add((row + i) * c_row + columns.start);
                if whole {
                    for (j, sum) in sums.into_iter().enumerate() {
                        let c = c.add(j * V::LANES);
                        sum.fma(V::splat(1.0), V::f32(c)).store(c);
                    }
                    continue;
                }
                let mut all = [[0.0; 16]; W];
                for (all, sum) in all.as_flattened_mut().chunks_mut(V::LANES).zip(sums) {
                    sum.store(all.as_mut_ptr());
                }
                for (j, sum) in all.as_flattened()[..columns.len()].iter().enumerate() {
                    *c.add(j) += sum;
                }
            }
        }
    }
}

/// The products of a tile's rows with `W` vectors of columns.
///
/// # Safety
///
/// The processor has the instructions of `V`; `left` points to `depth` times [`TALL`] elements and
/// `right` to as many rows of `W` vectors.
#[inline(always)]
unsafe fn tile<V: Vector, const W: usize>(
    left: *const f32,
    right: *const f32,
    depth: usize,
) -> [[V; W]; TALL] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::zero(); W]; TALL];
        for l in 0..depth {
            let right = right.add(l * W * V::LANES);
            let b: [V; W] = std::array::from_fn(|j| V::f32(right.add(j * V::LANES)));
            for i in 0..TALL {
                let a = V::splat(left.add(l * TALL + i).read());
                for j in 0..W {
                    sums[i][j] = sums[i][j].fma(b[j], a);
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 11) % 41) as f32 / 16.0 - 1.25).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Numbers of few bits: sums of their products are exact.
        #[test]
        fn products_of_any_strides(
            m in 1usize..40, n in 1usize..140, k in 1usize..600, gap in 0usize..3,
            left in any::<bool>(), right in any::<bool>(),
        ) {
            let size = Size { m, n, k };
            let matrix = |rows: usize, columns: usize, transposed: bool, elements| match transposed {
                true => Strided::rows(elements, rows + gap).transposed(),
                false => Strided::rows(elements, columns + gap),
            };
            let (a, b) = (values((m + gap) * (k + gap), 1), values((n + gap) * (k + gap), 2));
            let (a, b) = (matrix(m, k, left, &a), matrix(k, n, right, &b));
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                let mut c = values(m * (n + gap), 3);
                let before = c.clone();
                // SAFETY: `c` holds as many rows.
                unsafe { add_product(isa, a, b, (c.as_mut_ptr(), n + gap), size) };
                for (index, (found, before)) in c.iter().zip(before).enumerate() {
                    let (i, j) = (index / (n + gap), index % (n + gap));
                    let product = |l| {
                        a.elements[i * a.row + l * a.column] * b.elements[l * b.row + j * b.column]
                    };
                    let sum = if j < n { (0..k).map(product).sum() } else { 0.0 };
                    prop_assert_eq!(*found, before + sum);
                }
            }
        }

        #[test]
        fn gradients_of_weights(m in 0usize..70, n in 1usize..300, k in 1usize..70) {
            let (dy, x) = (values(m * n, 1), values(m * k, 2));
            let mut dw = vec![f32::NAN; n * k];
            weight_gradient_into(Isa::detected(), &dy, &x, Size { m, n, k }, &mut dw);
            for (index, found) in dw.iter().enumerate() {
                let sum: f32 =
                    (0..m).map(|l| dy[l * n + index / k] * x[l * k + index % k]).sum();
                prop_assert_eq!(*found, sum);
            }
        }
    }
}
