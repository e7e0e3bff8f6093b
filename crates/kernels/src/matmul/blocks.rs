//! Weights in blocks, dequantized a panel at a time into memory that stays in the second-level
//! cache.
//!
//! The loops for f32 multiply a panel: the bits of a result are those of the weight's f32. One row
//! of activations needs no panel: each weight is used once, and decoded in registers.

use std::cell::Cell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::Range;

use outsize_checkpoint::Dtype;

use super::pack::Scratch;
use super::panels;
use crate::blocks::{E4M3_BIAS, widen_scale};
use crate::quants::{Quants, in_memory, with_quants};
use crate::simd::Vector;
use crate::{BlockWeight, Isa};

/// Bytes of a panel, about: a core's second-level cache holds it beside activations.
const BYTES: usize = 256 << 10;

/// Rows of a panel: a multiple of those that loops of one row of activations take side by side …
const UNIT: usize = 8;

/// … and no more than those of other loops need.
const MOST: usize = 24;

thread_local! {
    static PANEL: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Rows of a panel of a weight with `k` columns, for a few rows of activations.
pub(super) fn height(k: usize) -> usize {
    let rows = BYTES / k.saturating_mul(size_of::<f32>()).max(1);
    (rows / UNIT * UNIT).clamp(UNIT, MOST)
}

/// An upper bound on the bytes that a thread keeps for panels of weights of up to so many columns.
pub(super) fn panel_bytes(columns: u64) -> u64 {
    let k = usize::try_from(columns).unwrap_or(usize::MAX);
    let rows = height(k).max(panels::width(k, size_of::<f32>())) as u64;
    columns.saturating_mul(4 * rows).saturating_add(64)
}

/// Calls `multiply` with some rows of the weight in f32 and their numbers, until all `rows` are
/// done: at most so many at a time.
pub(super) fn for_each_panel(
    isa: Isa,
    weight: BlockWeight<&[u8]>,
    rows: Range<usize>,
    height: usize,
    mut multiply: impl FnMut(&[f32], Range<usize>),
) {
    let k = weight.shape()[1];
    let mut panel = Scratch::new(height * k, &PANEL);
    for start in rows.clone().step_by(height) {
        let some = start..rows.end.min(start + height);
        let panel = &mut panel[..some.len() * k];
        weight.slice(some.clone()).dequantize_with(isa, panel);
        multiply(panel, some);
    }
}

/// Where several threads write, each its own.
pub(crate) struct OutputPtr(pub(crate) *mut f32);

// SAFETY: an address; whoever writes through it says why nobody else does.
unsafe impl Sync for OutputPtr {}

impl OutputPtr {
    /// Where the elements of a column begin.
    pub(crate) fn column(&self, column: usize) -> *mut f32 {
        self.0.wrapping_add(column)
    }
}

/// Bytes that are fetched at once.
pub(super) const LINE: usize = 64;

/// How far ahead of need weights are fetched, in bytes, about: see `Prefetch::Far`.
pub(crate) const FAR: usize = 16 << 10;

/// The most rows of activations that [`few_rows`] takes.
pub(super) const FEW: usize = 4;

/// Computes `y` for `m` rows of activations, at most [`FEW`], packed for `V`. Rows of the weight
/// that are multiplied otherwise are left to `others`: in E4M3 all if a vector would need two
/// scales, and those that have a NaN or a scale out of all proportion, or stand beside such; in F4
/// all if their last blocks are cut; and all of formats with codebooks or of numbers from -1 to 1.
///
/// # Safety
///
/// This processor has the instructions of `V`; `x` points to as many values as the weight has
/// columns, with zeros up to a multiple of the lanes, for each row; `y` points to an element for
/// each row of the weight, and so does, `stride` elements further, that of each other row of
/// activations; nothing else reads or writes these during the call.
#[inline(always)]
pub(super) unsafe fn few_rows<V: Vector>(
    m: usize,
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    y: *mut f32,
    stride: usize,
    others: &dyn Fn(Range<usize>),
) {
    let [n, k] = weight.shape();
    if let Some(dtype) = weight.quantized() {
        if dtype == Dtype::F4 && !k.is_multiple_of(weight.block()[1]) {
            return others(0..n);
        }
        // SAFETY: the caller's promises.
        return unsafe {
            with_quants!(dtype, Q => match m {
                1 => few_rows_quants::<V, Q, 1, 4>(x, weight, y, stride),
                2 => few_rows_quants::<V, Q, 2, 4>(x, weight, y, stride),
                3 => few_rows_quants::<V, Q, 3, 2>(x, weight, y, stride),
                _ => few_rows_quants::<V, Q, FEW, 2>(x, weight, y, stride),
            }, others(0..n))
        };
    }
    if !weight.block()[1].is_multiple_of(V::LANES) {
        return others(0..n);
    }
    // SAFETY: the caller's promises.
    unsafe {
        match m {
            1 => few_rows_e4m3::<V, 1, 4>(x, weight, k, y, stride, others),
            2 => few_rows_e4m3::<V, 2, 4>(x, weight, k, y, stride, others),
            3 => few_rows_e4m3::<V, 3, 2>(x, weight, k, y, stride, others),
            _ => few_rows_e4m3::<V, FEW, 2>(x, weight, k, y, stride, others),
        }
    }
}

/// [`few_rows`] with `M` rows of activations and a weight in E4M3, `N` rows of it side by side.
///
/// # Safety
///
/// As there, with the instructions of `V`.
#[inline(always)]
unsafe fn few_rows_e4m3<V: Vector, const M: usize, const N: usize>(
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    k: usize,
    y: *mut f32,
    stride: usize,
    others: &dyn Fn(Range<usize>),
) {
    let n = weight.shape()[0];
    for start in (0..n).step_by(N) {
        let rows = start..n.min(start + N);
        if !weight.is_biasable(rows.clone()) {
            others(rows);
            continue;
        }
        // SAFETY: the caller's promises: `y` has an element for each of these rows.
        unsafe {
            if rows.len() == N {
                tile::<V, M, N>(x, weight, start, k, y.add(start), stride);
                continue;
            }
            for row in rows {
                tile::<V, M, 1>(x, weight, row, k, y.add(row), stride);
            }
        }
    }
}

/// [`few_rows`] with `M` rows of activations and a weight in whole blocks of `Q`, `N` rows of it
/// side by side.
///
/// # Safety
///
/// As there, with the instructions of `V`.
#[inline(always)]
unsafe fn few_rows_quants<V: Vector, Q: Quants, const M: usize, const N: usize>(
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    y: *mut f32,
    stride: usize,
) {
    let [n, k] = weight.shape();
    let [row, scale_row] =
        [size_of::<Q::Block>(), Q::SCALE_BYTES].map(|bytes| k / Q::ELEMENTS * bytes);
    let (data, scales) = (weight.data(), weight.scales());
    assert_eq!(data.len(), n * row, "rows of whole blocks");
    assert!(scales.len() >= n * scale_row, "scales of all blocks");
    let ahead = FAR.next_multiple_of((N * row).max(1));
    // SAFETY: the caller's promises; as was checked, there are these rows.
    unsafe {
        for start in (0..n).step_by(N) {
            let rows = data.as_ptr().add(start * row);
            let apart = scales.as_ptr().add(start * scale_row);
            let ahead = rows.wrapping_add(ahead);
            let y = y.add(start);
            if start + N <= n {
                decoded::<V, Q, M, N>(x, [rows, apart], k, ahead, y, stride);
                continue;
            }
            for at in 0..n - start {
                let rows = [rows.add(at * row), apart.add(at * scale_row)];
                decoded::<V, Q, M, 1>(x, rows, k, ahead, y.add(at), stride);
            }
        }
    }
}

/// The products of `N` rows of a weight in blocks of `Q`, and of scales that lie apart, with the
/// rows of `x`, each one chain of multiply-adds as for f32. As many bytes as are read of blocks are
/// fetched from `ahead` on, in the order in which they lie in memory.
///
/// # Safety
///
/// As for [`few_rows`], with the instructions of `V`; and there are `N` rows of `k` elements.
#[inline(always)]
unsafe fn decoded<V: Vector, Q: Quants, const M: usize, const N: usize>(
    x: *const f32,
    [rows, apart]: [*const u8; 2],
    k: usize,
    ahead: *const u8,
    y: *mut f32,
    stride: usize,
) {
    let bytes = size_of::<Q::Block>();
    let row_blocks = k / Q::ELEMENTS;
    let row_bytes = row_blocks * bytes;
    // SAFETY: the caller's promises. Rows are whole blocks of whole steps. What is fetched ahead of
    // need may be any address.
    unsafe {
        let mut sums = [[V::zero(); M]; N];
        for block in 0..row_blocks {
            for line in 0..(N * bytes).div_ceil(LINE) {
                V::prefetch(ahead.wrapping_add(block * N * bytes + line * LINE));
            }
            let blocks = rows.add(block * bytes);
            let mut scales = [Q::Scales::default(); N];
            for (row, scales) in scales.iter_mut().enumerate() {
                let apart = apart.add((row * row_blocks + block) * Q::SCALE_BYTES);
                *scales = Q::scales::<V>(&*blocks.add(row * row_bytes).cast(), apart);
            }
            let scales = in_memory(Q::ELEMENTS > Q::STEP, &scales);
            for index in 0..Q::ELEMENTS / Q::STEP {
                let x = x.add(M * (block * Q::ELEMENTS + index * Q::STEP));
                let mut steps = [const { MaybeUninit::uninit() }; N];
                for (row, step) in steps.iter_mut().enumerate() {
                    let block = &*blocks.add(row * row_bytes).cast();
                    let step = step.write(Q::step::<V>(block, &scales[row], index));
                    if Q::UNPACKED {
                        continue;
                    }
                    for at in (0..Q::STEP).step_by(V::LANES) {
                        let elements = Q::elements::<V>(step, at);
                        for (i, sum) in sums[row].iter_mut().enumerate() {
                            *sum = sum.fma(elements, V::f32(x.add(M * at + i * V::LANES)));
                        }
                    }
                }
                if !Q::UNPACKED {
                    continue;
                }
                // All rows are unpacked by now: their sums, each of which waits for itself, go on
                // side by side.
                let steps = black_box(&steps);
                for at in (0..Q::STEP).step_by(V::LANES) {
                    for (step, sums) in steps.iter().zip(&mut sums) {
                        let elements = Q::elements::<V>(step.assume_init_ref(), at);
                        for (i, sum) in sums.iter_mut().enumerate() {
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

/// The products of `N` rows of the weight, from `first` on, with the rows of `x`, each one chain of
/// multiply-adds as for f32.
///
/// # Safety
///
/// As for [`few_rows`], with the instructions of `V`; and the weight has these rows, of `k`
/// columns.
#[inline(always)]
unsafe fn tile<V: Vector, const M: usize, const N: usize>(
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    first: usize,
    k: usize,
    y: *mut f32,
    stride: usize,
) {
    let width = weight.block()[1];
    let size = weight.scale_bytes();
    let data = weight.data()[first * k..(first + N) * k].as_ptr();
    let mut scales = [&[][..]; N];
    for (row, scales) in scales.iter_mut().enumerate() {
        *scales = weight.scale_row(first + row);
    }
    // SAFETY: the caller's promises. A load of `LANES` bytes at `at` happens only while
    // `at + LANES <= k`, the last one is of a copy. What is fetched ahead of need may be any
    // address.
    unsafe {
        let mut sums = [[V::zero(); M]; N];
        for (block, start) in (0..k).step_by(width).enumerate() {
            let end = k.min(start + width);
            let mut scale = [V::zero(); N];
            for (scale, scales) in scale.iter_mut().zip(&scales) {
                let bytes = &scales[block * size..][..size];
                *scale = V::splat(widen_scale(bytes) * E4M3_BIAS);
            }
            let mut at = start;
            while at + V::LANES <= end {
                let ahead = data.wrapping_add(N * k + at * N);
                for line in 0..(N * V::LANES).div_ceil(LINE) {
                    V::prefetch(ahead.wrapping_add(line * LINE));
                }
                let x = x.add(M * at);
                for row in 0..N {
                    let weight = V::e4m3(data.add(row * k + at), scale[row]);
                    for (i, sum) in sums[row].iter_mut().enumerate() {
                        *sum = sum.fma(weight, V::f32(x.add(i * V::LANES)));
                    }
                }
                at += V::LANES;
            }
            if at < end {
                let x = x.add(M * at);
                for row in 0..N {
                    let mut part = [0u8; 16];
                    let bytes = data.add(row * k + at);
                    bytes.copy_to_nonoverlapping(part.as_mut_ptr(), end - at);
                    let weight = V::e4m3(part.as_ptr(), scale[row]);
                    for (i, sum) in sums[row].iter_mut().enumerate() {
                        *sum = sum.fma(weight, V::f32(x.add(i * V::LANES)));
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
