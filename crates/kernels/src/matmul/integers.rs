//! A few rows of activations by a weight of integers, decoded in registers.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::blocks::{FAR, FEW, LINE};
use crate::BlockWeight;
use crate::integers::{Decode, GROUPS, Groups, ROOM, STEP, with_integers};
use crate::simd::Vector;

/// Computes `y` for `m` rows of activations. If rows, or groups in them, are no whole steps, all
/// are left to `others`.
///
/// # Safety
///
/// As for [`few_rows`](super::blocks::few_rows), with the instructions of `V`; the scales are the
/// weight's.
#[inline(always)]
pub(super) unsafe fn few_rows<V: Vector>(
    m: usize,
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    groups: Groups<'_>,
    y: *mut f32,
    stride: usize,
    others: &dyn Fn(Range<usize>),
) {
    let [n, k] = weight.shape();
    if !k.is_multiple_of(STEP) || !groups.columns.is_multiple_of(STEP) {
        return others(0..n);
    }
    // SAFETY: the caller's promises.
    unsafe {
        with_integers!(groups.width, groups.dtype, D => match m {
            1 => rows::<V, D, 1, 4>(x, weight, groups, y, stride),
            2 => rows::<V, D, 2, 4>(x, weight, groups, y, stride),
            3 => rows::<V, D, 3, 2>(x, weight, groups, y, stride),
            _ => rows::<V, D, FEW, 2>(x, weight, groups, y, stride),
        });
    }
}

/// [`few_rows`] with `M` rows of activations, `N` rows of the weight side by side.
///
/// # Safety
///
/// As there.
#[inline(always)]
unsafe fn rows<V: Vector, D: Decode, const M: usize, const N: usize>(
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    groups: Groups<'_>,
    y: *mut f32,
    stride: usize,
) {
    let [n, k] = weight.shape();
    let (data, row) = (weight.data(), k / STEP * D::BYTES);
    assert_eq!(data.len(), n * row, "rows of whole steps");
    let ahead = FAR.next_multiple_of((N * row).max(1));
    // SAFETY: the caller's promises; as was checked, there are these rows.
    unsafe {
        for start in (0..n).step_by(N) {
            let rows = data.as_ptr().add(start * row);
            let ahead = rows.wrapping_add(ahead);
            if start + N <= n {
                tile::<V, D, M, N>(x, (rows, start), groups, k, ahead, y.add(start), stride);
                continue;
            }
            for at in start..n {
                let rows = rows.add((at - start) * row);
                tile::<V, D, M, 1>(x, (rows, at), groups, k, ahead, y.add(at), stride);
            }
        }
    }
}

/// The products of `N` rows of the weight, from number `first` on, with the rows of `x`, each one
/// chain of multiply-adds as for f32. As many bytes as are read of integers are fetched from
/// `ahead` on, in the order in which they lie in memory.
///
/// # Safety
///
/// As for [`few_rows`]; and there are `N` rows of `k` elements, which begin at `rows`.
#[inline(always)]
unsafe fn tile<V: Vector, D: Decode, const M: usize, const N: usize>(
    x: *const f32,
    (rows, first): (*const u8, usize),
    groups: Groups<'_>,
    k: usize,
    ahead: *const u8,
    y: *mut f32,
    stride: usize,
) {
    let row_bytes = k / STEP * D::BYTES;
    // SAFETY: the caller's promises. What is fetched ahead of need may be any address.
    unsafe {
        let mut sums = [[V::zero(); M]; N];
        let mut ready = [ROOM; N];
        for (group, start) in (0..k).step_by(groups.columns).enumerate() {
            let at = group % GROUPS;
            if at == 0 {
                for (row, ready) in ready.iter_mut().enumerate() {
                    groups.ready::<V, D>(first + row, group, ready);
                }
            }
            let mut of_rows = [const { MaybeUninit::uninit() }; N];
            for (ready, of_row) in ready.iter().zip(&mut of_rows) {
                let (scale, offset) = (ready[at].assume_init(), ready[GROUPS + at].assume_init());
                of_row.write(D::group::<V>(scale, offset));
            }
            for step in start / STEP..(start + groups.columns).min(k) / STEP {
                for line in 0..(N * D::BYTES).div_ceil(LINE) {
                    V::prefetch(ahead.wrapping_add(step * N * D::BYTES + line * LINE));
                }
                let x = x.add(M * step * STEP);
                for row in 0..N {
                    let numbers = D::numbers::<V>(rows.add(row * row_bytes + step * D::BYTES));
                    for at in (0..STEP).step_by(V::LANES) {
                        let elements =
                            D::elements::<V>(&numbers, at, of_rows[row].assume_init_ref());
                        for (i, sum) in sums[row].iter_mut().enumerate() {
                            *sum = sum.fma(elements, V::f32(x.add(M * at + i * V::LANES)));
                        }
                    }
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (i, sum) in sums.iter().enumerate() {
                y.add(i * stride + row).write(sum.sum());
            }
        }
    }
}
