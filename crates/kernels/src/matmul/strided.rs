//! `c += a · b` of f32 matrices of any strides, on one thread: what backward passes multiply.
//!
//! A few rows of `a` and some columns of `b` are packed in the order in which [`tile`] reads them,
//! [`DEPTH`] packed numbers deep, so that neither strides nor powers of two cost anything in the
//! loop. Each depth is summed from nothing in order, and these sums are added to `c` in order: what
//! the bits of an output depend on is its row of `a`, its column of `b`, what it was, the
//! [`ActivationDtype`], and the instructions of the [`Isa`].
//!
//! Under [`ActivationDtype::Bf16`], where there are products of pairs of bf16, a packed number is a
//! pair of consecutive ones, each rounded.

#![allow(
    clippy::needless_range_loop,
    reason = "rows and columns are counted, and each indexes several things"
)]

mod pack;

use std::cell::Cell;
use std::ops::Range;

use self::pack::{Pack, Single, Steps};
use super::Size;
use super::pack::Scratch;
use crate::loops::share;
use crate::simd::{Vector, for_each_isa};
use crate::{ActivationDtype, Isa};

/// Packed numbers that are multiplied and summed before the sum is added to the output.
const DEPTH: usize = 256;

/// Rows of `a` that are packed at once: with their depth they stay in the second-level cache.
const ROWS: usize = 384;

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
    compute: ActivationDtype,
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
    unsafe {
        match (isa, compute) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512Bf16 | Isa::AmxBf16, ActivationDtype::Bf16) => {
                product_of_pairs(a, b, (c, c_row), size);
            }
            _ => product(isa, a, b, (c, c_row), size),
        }
    }
}

/// Writes `dy · W` to `dx`: `dy [m, n]`, `weight [n, k]` and `dx [m, k]`, on as many threads as the
/// current rayon pool has. It is the gradient of `x` of `y = x · Wᵀ`.
///
/// # Panics
///
/// As [`weight_gradient_into`].
pub fn input_gradient_into(
    isa: Isa,
    compute: ActivationDtype,
    dy: &[f32],
    weight: &[f32],
    Size { m, n, k }: Size,
    dx: &mut [f32],
) {
    assert_eq!(Some(dy.len()), m.checked_mul(n), "dy must hold {m} rows of {n}");
    assert_eq!(Some(weight.len()), n.checked_mul(k), "the weight must hold {n} rows of {k}");
    assert_eq!(Some(dx.len()), m.checked_mul(k), "dx must hold {m} rows of {k}");
    dx.fill(0.0);
    if n == 0 || k == 0 {
        return;
    }
    let rows = rows_of_share(m);
    share(dx.chunks_mut(rows * k).zip(dy.chunks(rows * n)), |(dx, dy)| {
        let size = Size { m: dx.len() / k, n: k, k: n };
        let (a, b) = (Strided::rows(dy, n), Strided::rows(weight, k));
        // SAFETY: `dx` is as many rows of `k`, and this closure's alone.
        unsafe { add_product(isa, compute, a, b, (dx.as_mut_ptr(), k), size) }
    });
}

/// Rows that a thread takes at a time: the other matrix is packed for each of them.
fn rows_of_share(rows: usize) -> usize {
    rows.div_ceil(2 * crate::threads()).next_multiple_of(TALL).clamp(8 * TALL, ROWS)
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
    compute: ActivationDtype,
    dy: &[f32],
    x: &[f32],
    Size { m, n, k }: Size,
    dw: &mut [f32],
) {
    assert_eq!(Some(dy.len()), m.checked_mul(n), "dy must hold {m} rows of {n}");
    assert_eq!(Some(x.len()), m.checked_mul(k), "x must hold {m} rows of {k}");
    assert_eq!(Some(dw.len()), n.checked_mul(k), "dw must hold {n} rows of {k}");
    dw.fill(0.0);
    if m == 0 || k == 0 {
        return;
    }
    let rows = rows_of_share(n);
    share(dw.chunks_mut(rows * k).enumerate(), |(index, dw)| {
        let a = Strided::rows(&dy[index * rows..], n).transposed();
        let size = Size { m: dw.len() / k, n: k, k: m };
        // SAFETY: `dw` is as many rows of `k`, and this closure's alone.
        unsafe { add_product(isa, compute, a, Strided::rows(x, k), (dw.as_mut_ptr(), k), size) }
    });
}

for_each_isa! {
    /// See [`add_product`].
    ///
    /// # Safety
    ///
    /// As there; the processor has the instructions, and `a` and `b` are as large.
    unsafe fn product<V>(a: Strided<'_>, b: Strided<'_>, c: (*mut f32, usize), size: Size) {
        // SAFETY: the caller's promises.
        unsafe { packed_product::<V, Single>(a, b, c, size) }
    }
}

/// The same with products of pairs of bf16.
///
/// # Safety
///
/// As there.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn product_of_pairs(a: Strided<'_>, b: Strided<'_>, c: (*mut f32, usize), size: Size) {
    // SAFETY: the caller's promises.
    unsafe { packed_product::<crate::simd::F32x16, pack::Pairs>(a, b, c, size) }
}

/// Multiplies matrices of packed numbers.
///
/// # Safety
///
/// As for [`product`], and for [`Pack`].
#[inline(always)]
unsafe fn packed_product<V: Vector, P: Pack<V>>(
    a: Strided<'_>,
    b: Strided<'_>,
    c: (*mut f32, usize),
    Size { m, n, k }: Size,
) {
    let most = if V::LANES == 16 { WIDE } else { 2 };
    let deepest = DEPTH.min(k.div_ceil(P::DEEP));
    let mut left = Scratch::new(ROWS.min(m.next_multiple_of(TALL)) * deepest, &LEFT);
    let mut right = Scratch::new(COLUMNS * deepest, &RIGHT);
    for first in (0..k).step_by(DEPTH * P::DEEP) {
        let depth = first..k.min(first + DEPTH * P::DEEP);
        let packed = depth.len().div_ceil(P::DEEP);
        for row in (0..m).step_by(ROWS) {
            let rows = row..m.min(row + ROWS);
            // SAFETY: the caller's promises, here and below, for rows and columns within its own.
            let steps = unsafe { pack::left::<V, P>(a, rows.clone(), depth.clone(), &mut left) };
            let mut column = 0;
            while column < n {
                let vectors = (n - column).div_ceil(V::LANES);
                let vectors = if vectors > 2 { most } else { vectors.min(most) };
                let columns = column..n.min(column + vectors * V::LANES);
                column = columns.end;
                let width = vectors * V::LANES;
                // SAFETY: as above.
                unsafe {
                    pack::right::<V, P>(b, depth.clone(), columns.clone(), width, &mut right);
                    let (left, right) = ((left.as_ptr(), steps), right.as_ptr());
                    match vectors {
                        1 => tiles::<V, P, 1>((left, right, packed), rows.clone(), columns, c),
                        2 => tiles::<V, P, 2>((left, right, packed), rows.clone(), columns, c),
                        _ => tiles::<V, P, WIDE>((left, right, packed), rows.clone(), columns, c),
                    }
                }
            }
        }
    }
}

/// Adds what packed rows and columns give to `c`.
///
/// # Safety
///
/// As for [`add_product`], with the instructions of `V`; and `left` and `right` are packed, so many
/// numbers deep.
#[inline(always)]
unsafe fn tiles<V: Vector, P: Pack<V>, const W: usize>(
    ((left, steps), right, depth): ((*const f32, Steps), *const f32, usize),
    rows: Range<usize>,
    columns: Range<usize>,
    (c, c_row): (*mut f32, usize),
) {
    let whole = columns.len() == W * V::LANES;
    for (index, row) in rows.clone().step_by(TALL).enumerate() {
        // SAFETY: `left` holds as many tiles, `right` rows of `W` vectors; `c` has these rows and
        // columns.
        unsafe {
            let sums = tile::<V, P, W>((left.add(index * TALL * depth), steps), right, depth);
            for (i, sums) in sums.into_iter().enumerate().take(rows.end - row) {
                let c = c.add((row + i) * c_row + columns.start);
                if whole {
                    for (j, sum) in sums.into_iter().enumerate() {
                        let c = c.add(j * V::LANES);
                        sum.fma(V::splat(1.0), V::f32(c)).store(c);
                    }
                    continue;
                }
                let mut all = [0.0; COLUMNS];
                for (all, sum) in all.chunks_exact_mut(V::LANES).zip(sums) {
                    sum.store(all.as_mut_ptr());
                }
                for (j, sum) in all[..columns.len()].iter().enumerate() {
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
/// As for [`Pack`]; `left` points to `depth` times [`TALL`] elements and `right` to as many rows of
/// `W` vectors.
#[inline(always)]
unsafe fn tile<V: Vector, P: Pack<V>, const W: usize>(
    (left, steps): (*const f32, Steps),
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
                let a = V::splat(left.add(l * steps.depth + i * steps.row).read());
                for j in 0..W {
                    sums[i][j] = P::fma(sums[i][j], b[j], a);
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
            let available = Isa::ALL.into_iter().filter(|isa| isa.is_available());
            for (isa, compute) in available.flat_map(|isa| {
                [ActivationDtype::F32, ActivationDtype::Bf16].map(|compute| (isa, compute))
            }) {
                let mut c = values(m * (n + gap), 3);
                let before = c.clone();
                // SAFETY: `c` holds as many rows.
                unsafe { add_product(isa, compute, a, b, (c.as_mut_ptr(), n + gap), size) };
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
            let (isa, compute, size) = (Isa::detected(), ActivationDtype::F32, Size { m, n, k });
            let (dy, x, weight) = (values(m * n, 1), values(m * k, 2), values(n * k, 4));
            let (mut dw, mut dx) = (vec![f32::NAN; n * k], vec![f32::NAN; m * k]);
            weight_gradient_into(isa, compute, &dy, &x, size, &mut dw);
            for (index, found) in dw.iter().enumerate() {
                let sum: f32 =
                    (0..m).map(|l| dy[l * n + index / k] * x[l * k + index % k]).sum();
                prop_assert_eq!(*found, sum);
            }
            input_gradient_into(isa, compute, &dy, &weight, size, &mut dx);
            for (index, found) in dx.iter().enumerate() {
                let sum: f32 =
                    (0..n).map(|l| dy[index / k * n + l] * weight[l * k + index % k]).sum();
                prop_assert_eq!(*found, sum);
            }
        }
    }
}
