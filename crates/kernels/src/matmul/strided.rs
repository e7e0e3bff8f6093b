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

use std::cell::Cell;
use std::ops::Range;

use super::Size;
use super::pack::Scratch;
use crate::loops::share;
#[cfg(target_arch = "x86_64")]
use crate::simd::F32x16;
use crate::simd::{Vector, for_each_isa};
use crate::{ActivationDtype, Isa};

/// Packed numbers that are multiplied and summed before the sum is added to the output.
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
        // SAFETY: the caller's promises, here and below.
        let fma = |sum: V, b, a| unsafe { sum.fma(b, a) };
        // SAFETY: as above.
        unsafe { packed_product::<V, 1>(a, b, c, size, |[x, _]| x, fma) }
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
    use std::arch::x86_64::*;
    let fma = |sum: F32x16, b: F32x16, a: F32x16| {
        let pairs = |vector: F32x16| {
            let bits = _mm512_castps_si512(vector.0);
            // SAFETY: a vector of bf16 is a vector of bits.
            unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
        };
        F32x16(_mm512_dpbf16_ps(sum.0, pairs(b), pairs(a)))
    };
    // SAFETY: the caller's promises.
    unsafe { packed_product::<F32x16, 2>(a, b, c, size, pair, fma) }
}

/// Two numbers rounded to bf16, the first in the lower half of the bits.
#[cfg(any(target_arch = "x86_64", test))]
#[inline(always)]
fn pair([low, high]: [f32; 2]) -> f32 {
    // To nearest, ties to even; a NaN stays one. Comparing bits rather than floats lets the compiler do
    // many at once.
    let rounded = |x: f32| {
        let bits = x.to_bits();
        let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        if is_nan { 0x7fc0_0000 } else { rounded & 0xffff_0000 }
    };
    f32::from_bits(rounded(low) >> 16 | rounded(high))
}

/// Multiplies matrices of which `DEEP` consecutive numbers make a packed one.
///
/// # Safety
///
/// As for [`product`], and for `fma`.
#[inline(always)]
unsafe fn packed_product<V: Vector, const DEEP: usize>(
    a: Strided<'_>,
    b: Strided<'_>,
    c: (*mut f32, usize),
    Size { m, n, k }: Size,
    pack: impl Fn([f32; 2]) -> f32 + Copy,
    fma: impl Fn(V, V, V) -> V + Copy,
) {
    let most = if V::LANES == 16 { WIDE } else { 2 };
    let deepest = DEPTH.min(k.div_ceil(DEEP));
    let mut left = Scratch::new(ROWS.min(m.next_multiple_of(TALL)) * deepest, &LEFT);
    let mut right = Scratch::new(COLUMNS * deepest, &RIGHT);
    for first in (0..k).step_by(DEPTH * DEEP) {
        let depth = first..k.min(first + DEPTH * DEEP);
        let packed = depth.len().div_ceil(DEEP);
        for row in (0..m).step_by(ROWS) {
            let rows = row..m.min(row + ROWS);
            pack_left::<DEEP>(a, rows.clone(), depth.clone(), pack, &mut left);
            let mut column = 0;
            while column < n {
                let vectors = (n - column).div_ceil(V::LANES);
                let vectors = if vectors > 2 { most } else { vectors.min(most) };
                let columns = column..n.min(column + vectors * V::LANES);
                column = columns.end;
                let width = vectors * V::LANES;
                pack_right::<DEEP>(b, depth.clone(), columns.clone(), width, pack, &mut right);
                let packed = (left.as_ptr(), right.as_ptr(), packed);
                // SAFETY: the caller's promises, for rows and columns within its own.
                unsafe {
                    match vectors {
                        1 => tiles::<V, 1>(packed, rows.clone(), columns, c, fma),
                        2 => tiles::<V, 2>(packed, rows.clone(), columns, c, fma),
                        _ => tiles::<V, WIDE>(packed, rows.clone(), columns, c, fma),
                    }
                }
            }
        }
    }
}

/// Packs some rows of `a`: of [`TALL`] at a time, column by column. Rows beyond the last are zero,
/// and so is what a last packed number lacks.
#[inline(always)]
fn pack_left<const DEEP: usize>(
    a: Strided<'_>,
    rows: Range<usize>,
    depth: Range<usize>,
    pack: impl Fn([f32; 2]) -> f32 + Copy,
    to: &mut [f32],
) {
    let to = to.chunks_exact_mut(TALL * depth.len().div_ceil(DEEP));
    for (row, to) in rows.clone().step_by(TALL).zip(to) {
        let count = TALL.min(rows.end - row);
        if count < TALL {
            to.fill(0.0);
        }
        if a.row == 1 {
            // Columns of `a` lie without gaps.
            let column = |l: usize| match l < depth.end {
                true => &a.elements[row + l * a.column..][..count],
                false => &[0.0; TALL][..count],
            };
            for (l, to) in depth.clone().step_by(DEEP).zip(to.as_chunks_mut::<TALL>().0) {
                let last = column(l + DEEP - 1);
                match (column(l).as_array::<TALL>(), last.as_array::<TALL>()) {
                    (Some(first), Some(last)) => {
                        *to = std::array::from_fn(|i| pack([first[i], last[i]]));
                    }
                    _ => {
                        let pairs = column(l).iter().zip(last);
                        to.iter_mut().zip(pairs).for_each(|(to, (x, y))| *to = pack([*x, *y]));
                    }
                }
            }
            continue;
        }
        for i in 0..count {
            let row = &a.elements[(row + i) * a.row..];
            let to = to[i..].iter_mut().step_by(TALL);
            if a.column == 1 {
                let (whole, rest) = row[depth.clone()].as_chunks::<DEEP>();
                let last =
                    |part: &[f32]| pack([part[0], part.get(DEEP - 1).copied().unwrap_or(0.0)]);
                let packed = whole.iter().map(|part| pack([part[0], part[DEEP - 1]]));
                let rest = (!rest.is_empty()).then(|| last(rest));
                to.zip(packed.chain(rest)).for_each(|(to, packed)| *to = packed);
                continue;
            }
            let at = |l: usize| if l < depth.end { row[l * a.column] } else { 0.0 };
            let packed = depth.clone().step_by(DEEP).map(|l| pack([at(l), at(l + DEEP - 1)]));
            to.zip(packed).for_each(|(to, packed)| *to = packed);
        }
    }
}

/// Packs some columns of `b` in rows of `width`, of which the last elements may be zero.
#[inline(always)]
fn pack_right<const DEEP: usize>(
    b: Strided<'_>,
    depth: Range<usize>,
    columns: Range<usize>,
    width: usize,
    pack: impl Fn([f32; 2]) -> f32 + Copy,
    to: &mut [f32],
) {
    let to = &mut to[..depth.len().div_ceil(DEEP) * width];
    if columns.len() < width {
        to.fill(0.0);
    }
    if b.column == 1 {
        let row = |l: usize| match l < depth.end {
            true => &b.elements[l * b.row + columns.start..][..columns.len()],
            false => &[0.0; COLUMNS][..columns.len()],
        };
        for (l, to) in depth.clone().step_by(DEEP).zip(to.chunks_exact_mut(width)) {
            let pairs = row(l).iter().zip(row(l + DEEP - 1));
            to.iter_mut().zip(pairs).for_each(|(to, (x, y))| *to = pack([*x, *y]));
        }
        return;
    }
    for (j, column) in columns.enumerate() {
        let column = &b.elements[column * b.column..];
        let at = |l: usize| if l < depth.end { column[l * b.row] } else { 0.0 };
        let packed = depth.clone().step_by(DEEP).map(|l| pack([at(l), at(l + DEEP - 1)]));
        to[j..].iter_mut().step_by(width).zip(packed).for_each(|(to, packed)| *to = packed);
    }
}

/// Adds what packed rows and columns give to `c`.
///
/// # Safety
///
/// As for [`add_product`], with the instructions of `V`; and `left` and `right` are packed, so many
/// numbers deep.
#[inline(always)]
unsafe fn tiles<V: Vector, const W: usize>(
    (left, right, depth): (*const f32, *const f32, usize),
    rows: Range<usize>,
    columns: Range<usize>,
    (c, c_row): (*mut f32, usize),
    fma: impl Fn(V, V, V) -> V + Copy,
) {
    let whole = columns.len() == W * V::LANES;
    for (index, row) in rows.clone().step_by(TALL).enumerate() {
        // SAFETY: `left` holds as many tiles, `right` rows of `W` vectors; `c` has these rows and
        // columns.
        unsafe {
            let sums = tile::<V, W>(left.add(index * TALL * depth), right, depth, fma);
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
/// The processor has the instructions of `V`; `left` points to `depth` times [`TALL`] elements and
/// `right` to as many rows of `W` vectors.
#[inline(always)]
unsafe fn tile<V: Vector, const W: usize>(
    left: *const f32,
    right: *const f32,
    depth: usize,
    fma: impl Fn(V, V, V) -> V + Copy,
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
                    sums[i][j] = fma(sums[i][j], b[j], a);
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

        #[test]
        fn pairs_are_rounded_as_bf16_is(bits in any::<[u32; 2]>()) {
            let numbers = bits.map(f32::from_bits);
            let found = pair(numbers).to_bits();
            for (half, number) in [found as u16, (found >> 16) as u16].into_iter().zip(numbers) {
                let want = half::bf16::from_f32(number);
                let found = half::bf16::from_bits(half);
                prop_assert!(found == want || found.is_nan() && want.is_nan());
            }
        }
    }
}
