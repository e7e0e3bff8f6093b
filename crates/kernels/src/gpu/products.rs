//! Kernels over weights in packed words, written once for every GPU.
//!
//! A word is a `u32`: two bf16 or f16 elements, the first in its lower half, or one f32. Elements are
//! unpacked in registers by integer operations and bit casts, so that nothing depends on what a
//! driver makes of 16-bit floats; sums are f32.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

/// Units that share one row of a weight.
pub(super) const LANES: u32 = 32;

/// Rows of a weight that one cube multiplies.
pub(super) const CUBE_ROWS: u32 = 4;

/// The most rows of activations that [`gemv`] multiplies.
pub(super) const GEMV_ROWS: usize = 8;

/// How elements lie in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordFormat {
    /// Two bf16.
    Bf16,
    /// Two f16.
    F16,
    /// One f32.
    F32,
}

/// `y = x · Wᵀ` for rows `first ..` of a weight whose rows have `width` elements: `x [m, width]` to
/// `y [m, rows]`. With two elements in a word, `width` must be even.
///
/// The lanes of a row take its words in turn, and their sums are added in a fixed tree: the bits of
/// an output depend on its own row of the weight and of `x` alone.
#[cube(launch)]
pub(super) fn gemv(
    words: &[u32],
    x: &[f32],
    y: &mut [f32],
    first: u32,
    rows: u32,
    width: u32,
    #[comptime] m: usize,
    #[comptime] format: WordFormat,
) {
    let lane = UNIT_POS_X;
    let row = CUBE_POS as u32 * CUBE_ROWS + UNIT_POS_Y;
    let mut sums = Array::<f32>::new(m);
    #[unroll]
    for i in 0..m {
        sums[i] = 0.0f32;
    }
    if row < rows {
        if comptime!(format == WordFormat::F32) {
            let start = (first + row) as usize * width as usize;
            for at in range_stepped(lane, width, LANES) {
                let w = f32::from_bits(words[start + at as usize]);
                #[unroll]
                for i in 0..m {
                    sums[i] += w * x[i * width as usize + at as usize];
                }
            }
        } else {
            let pairs = width / 2;
            let start = (first + row) as usize * pairs as usize;
            for at in range_stepped(lane, pairs, LANES) {
                let word = words[start + at as usize];
                let low = low_half(word, format);
                let high = high_half(word, format);
                #[unroll]
                for i in 0..m {
                    let column = i * width as usize + 2 * at as usize;
                    sums[i] += low * x[column] + high * x[column + 1];
                }
            }
        }
    }
    let mut shared = Shared::<[f32]>::new_slice((LANES * CUBE_ROWS) as usize);
    let own = (UNIT_POS_Y * LANES + lane) as usize;
    #[unroll]
    for i in 0..m {
        shared[own] = sums[i];
        sync_cube();
        #[unroll]
        for step in 0..comptime!(LANES.ilog2()) {
            let reach = comptime!(LANES >> (step + 1));
            if lane < reach {
                shared[own] += shared[own + reach as usize];
            }
            sync_cube();
        }
        if lane == 0 && row < rows {
            y[i * rows as usize + row as usize] = shared[own];
        }
        sync_cube();
    }
}

/// Rows of a weight in f32, `[rows, width]`: of row `first` and those behind it, or of those in `ids`.
#[cube(launch)]
pub(super) fn unpack(
    words: &[u32],
    ids: &[u32],
    y: &mut [f32],
    first: u32,
    values: u32,
    width: u32,
    #[comptime] by_ids: bool,
    #[comptime] format: WordFormat,
) {
    let at = ABSOLUTE_POS as u32;
    if at < values {
        let row = at / width;
        let column = at % width;
        let mut from = first + row;
        if comptime!(by_ids) {
            from = ids[row as usize];
        }
        let element = from as usize * width as usize + column as usize;
        if comptime!(format == WordFormat::F32) {
            y[at as usize] = f32::from_bits(words[element]);
        } else {
            let word = words[element / 2];
            let mut value = low_half(word, format);
            if element % 2 == 1 {
                value = high_half(word, format);
            }
            y[at as usize] = value;
        }
    }
}

#[cube]
fn low_half(word: u32, #[comptime] format: WordFormat) -> f32 {
    if comptime!(format == WordFormat::F16) {
        widened_f16(word & 0xffffu32)
    } else {
        f32::from_bits(word << 16u32)
    }
}

#[cube]
fn high_half(word: u32, #[comptime] format: WordFormat) -> f32 {
    if comptime!(format == WordFormat::F16) {
        widened_f16(word >> 16u32)
    } else {
        f32::from_bits(word & 0xffff0000u32)
    }
}

/// An f16 as f32, by its bits. Subnormal ones are made by a multiplication: as f32 bits they would be
/// subnormal too, and some devices take these for zero.
#[cube]
pub(super) fn widened_f16(bits: u32) -> f32 {
    let sign = (bits & 0x8000u32) << 16u32;
    let exponent = (bits >> 10u32) & 0x1fu32;
    let mantissa = bits & 0x3ffu32;
    let mut wide = sign | ((exponent + 112u32) << 23u32) | (mantissa << 13u32);
    if exponent == 31u32 {
        wide = sign | 0x7f800000u32 | (mantissa << 13u32);
    }
    let mut value = f32::from_bits(wide);
    if exponent == 0u32 {
        // 2⁻²⁴, the least f16.
        value = f32::cast_from(mantissa) * 5.960_464_5e-8f32;
        if sign != 0u32 {
            value = -value;
        }
    }
    value
}
