//! Weights in blocks, dequantized a panel at a time into memory that stays in the second-level cache.
//!
//! The loops for f32 multiply a panel: the bits of a result are those of the weight's f32. One row of
//! activations needs no panel: each weight is used once, and decoded in registers.

use std::cell::Cell;
use std::ops::Range;

use outsize_checkpoint::Dtype;

use super::pack::Scratch;
use crate::blocks::{E4M3_BIAS, is_biasable};
use crate::quants::{bytes_of, dequantize};
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

/// Rows of a panel of a weight with `k` columns.
fn height(k: usize) -> usize {
    let rows = BYTES / k.saturating_mul(size_of::<f32>()).max(1);
    (rows / UNIT * UNIT).clamp(UNIT, MOST)
}

/// An upper bound on the bytes that a thread keeps for panels of weights of up to so many columns.
pub fn panel_bytes(columns: u64) -> u64 {
    let rows = height(usize::try_from(columns).unwrap_or(usize::MAX)) as u64;
    columns.saturating_mul(4 * rows).saturating_add(64)
}

/// Calls `multiply` with some rows of the weight in f32 and their numbers, until all `rows` are done.
pub(super) fn for_each_panel(
    isa: Isa,
    weight: BlockWeight<&[u8]>,
    rows: Range<usize>,
    mut multiply: impl FnMut(&[f32], Range<usize>),
) {
    let k = weight.shape()[1];
    let height = height(k);
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
const LINE: usize = 64;

/// Rows of the weight that [`gemv`] takes side by side.
const WIDTH: usize = 4;

/// Computes `y` for one row of activations, packed for `V`; rows of the weight that have a NaN or a
/// scale out of all proportion are left to `others`, and so are all if a vector would need two
/// scales.
///
/// # Safety
///
/// This processor has the instructions of `V`; `x` points to as many values as the weight has
/// columns, with zeros up to a multiple of the lanes, and `y` to an element for each of its rows,
/// which nothing else reads or writes during the call.
#[inline(always)]
pub(super) unsafe fn gemv<V: Vector>(
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    y: *mut f32,
    others: &dyn Fn(Range<usize>),
) {
    let [n, k] = weight.shape();
    if let Some(dtype) = weight.quantized() {
        for start in (0..n).step_by(WIDTH) {
            let some = weight.slice(start..n.min(start + WIDTH));
            // SAFETY: the caller's promises: `y` has an element for each of these rows.
            unsafe {
                let y = y.add(start);
                match some.shape()[0] {
                    WIDTH => y
                        .cast::<[f32; WIDTH]>()
                        .write_unaligned(decoded::<V, WIDTH>(x, dtype, some, k)),
                    len => {
                        for row in 0..len {
                            let [sum] = decoded::<V, 1>(x, dtype, some.slice(row..row + 1), k);
                            y.add(row).write(sum);
                        }
                    }
                }
            }
        }
        return;
    }
    if !weight.block()[1].is_multiple_of(V::LANES) {
        return others(0..n);
    }
    for start in (0..n).step_by(WIDTH) {
        let rows = start..n.min(start + WIDTH);
        let some = weight.slice(rows.clone());
        let scales = (0..rows.len()).flat_map(|row| some.scales_of(row));
        if !is_biasable(some.data(), scales) {
            others(rows);
            continue;
        }
        // SAFETY: the caller's promises: `y` has an element for each of these rows.
        unsafe {
            let y = y.add(start);
            match rows.len() {
                WIDTH => {
                    let sums = tile::<V, WIDTH>(x, some, k);
                    y.cast::<[f32; WIDTH]>().write_unaligned(sums);
                }
                len => {
                    for row in 0..len {
                        let [sum] = tile::<V, 1>(x, some.slice(row..row + 1), k);
                        y.add(row).write(sum);
                    }
                }
            }
        }
    }
}

/// Elements of a row that [`decoded`] decodes at a time: whole blocks of every format.
const DECODED: usize = 256;

/// The products of a few rows of a weight in GGUF's blocks with `x`, each one chain of multiply-adds
/// as for f32. A few elements at a time are decoded into memory of the first-level cache.
///
/// # Safety
///
/// As for [`gemv`], with the instructions of `V`; and the weight has `N` rows of `k` columns.
#[inline(always)]
unsafe fn decoded<V: Vector, const N: usize>(
    x: *const f32,
    dtype: Dtype,
    weight: BlockWeight<&[u8]>,
    k: usize,
) -> [f32; N] {
    let (data, row_bytes) = (weight.data(), weight.data().len() / N);
    let mut values = [[0f32; DECODED]; N];
    // SAFETY: the caller's promises. Rows are whole blocks, which are a multiple of any vector's
    // lanes. What is fetched ahead of need may be any address.
    unsafe {
        let mut sums = [V::zero(); N];
        for start in (0..k).step_by(DECODED) {
            let len = DECODED.min(k - start);
            let bytes = bytes_of(dtype, start..start + len);
            for (row, values) in values.iter_mut().enumerate() {
                let data = &data[row * row_bytes..][bytes.clone()];
                for line in data.chunks(LINE) {
                    V::prefetch(line.as_ptr().wrapping_add(N * row_bytes));
                }
                dequantize(dtype, data, &mut values[..len]);
            }
            for at in (0..len).step_by(V::LANES) {
                let x = V::f32(x.add(start + at));
                for (sum, values) in sums.iter_mut().zip(&values) {
                    *sum = sum.fma(V::f32(values.as_ptr().add(at)), x);
                }
            }
        }
        sums.map(|sum| sum.sum())
    }
}

/// The products of a few rows of the weight with `x`, each one chain of multiply-adds as for f32.
///
/// # Safety
///
/// As for [`gemv`], with the instructions of `V`; and the weight has `N` rows of `k` columns.
#[inline(always)]
unsafe fn tile<V: Vector, const N: usize>(
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    k: usize,
) -> [f32; N] {
    let (data, width) = (weight.data().as_ptr(), weight.block()[1]);
    let mut scales: [_; N] = std::array::from_fn(|row| weight.scales_of(row));
    // SAFETY: the caller's promises. A load of `LANES` bytes at `at` happens only while
    // `at + LANES <= k`, the last one is of a copy. What is fetched ahead of need may be any address.
    unsafe {
        let mut sums = [V::zero(); N];
        for start in (0..k).step_by(width) {
            let end = k.min(start + width);
            let scale: [V; N] = std::array::from_fn(|row| {
                V::splat(scales[row].next().unwrap_or(f32::NAN) * E4M3_BIAS)
            });
            let mut at = start;
            while at + V::LANES <= end {
                let ahead = data.wrapping_add(N * k + at * N);
                for line in 0..(N * V::LANES).div_ceil(LINE) {
                    V::prefetch(ahead.wrapping_add(line * LINE));
                }
                let x = V::f32(x.add(at));
                for row in 0..N {
                    let weight = V::e4m3(data.add(row * k + at), scale[row]);
                    sums[row] = sums[row].fma(weight, x);
                }
                at += V::LANES;
            }
            if at < end {
                let x = V::f32(x.add(at));
                for row in 0..N {
                    let mut part = [0u8; 16];
                    let bytes = data.add(row * k + at);
                    bytes.copy_to_nonoverlapping(part.as_mut_ptr(), end - at);
                    let weight = V::e4m3(part.as_ptr(), scale[row]);
                    sums[row] = sums[row].fma(weight, x);
                }
            }
        }
        sums.map(|sum| sum.sum())
    }
}
