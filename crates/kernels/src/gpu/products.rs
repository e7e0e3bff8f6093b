//! Kernels over weights in packed words, written once for every GPU.
//!
//! A word is a `u32`: two bf16 or f16 elements, the first in its lower half, or one f32. Elements
//! are unpacked in registers by integer operations and bit casts, so that nothing depends on what a
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

/// Vectors of words that a lane asks for before it needs the first: what a GPU's memory takes to
/// answer is hidden by what else is under way.
const AHEAD: u32 = 4;

/// `y = x · Wᵀ` for rows `first ..` of a weight whose rows have `width` elements: `x [m, width]` to
/// `y [m, rows]`. A row is a whole number of vectors of `N` words.
///
/// The lanes of a row take its vectors in turn, and their sums are added in a fixed tree: the bits
/// of an output depend on its own row of the weight and of `x` alone.
#[cube(launch)]
pub(super) fn gemv<N: Size>(
    words: &[Vector<u32, N>],
    x: &[Vector<f32, N>],
    y: &mut [f32],
    first: u32,
    rows: u32,
    width: u32,
    #[comptime] m: usize,
    #[comptime] format: WordFormat,
) {
    multiply_rows::<N>(words, x, y, CUBE_POS as u32, first, rows, width, m, format);
}

/// The same of three weights as wide and of one format: the cubes of each lie one behind the other.
#[cube(launch)]
pub(super) fn gemv_three<N: Size>(
    words: &[Vector<u32, N>],
    more_words: &[Vector<u32, N>],
    last_words: &[Vector<u32, N>],
    x: &[Vector<f32, N>],
    y: &mut [f32],
    more_y: &mut [f32],
    last_y: &mut [f32],
    first: u32,
    more_first: u32,
    last_first: u32,
    rows: u32,
    more_rows: u32,
    last_rows: u32,
    width: u32,
    #[comptime] m: usize,
    #[comptime] format: WordFormat,
) {
    let cube = CUBE_POS as u32;
    let cubes = rows.div_ceil(CUBE_ROWS);
    let both = cubes + more_rows.div_ceil(CUBE_ROWS);
    if cube < cubes {
        multiply_rows::<N>(words, x, y, cube, first, rows, width, m, format);
    } else if cube < both {
        let cube = cube - cubes;
        multiply_rows::<N>(more_words, x, more_y, cube, more_first, more_rows, width, m, format);
    } else {
        let cube = cube - both;
        multiply_rows::<N>(last_words, x, last_y, cube, last_first, last_rows, width, m, format);
    }
}

/// What one cube of [`gemv`] does.
#[cube]
fn multiply_rows<N: Size>(
    words: &[Vector<u32, N>],
    x: &[Vector<f32, N>],
    y: &mut [f32],
    cube: u32,
    first: u32,
    rows: u32,
    width: u32,
    #[comptime] m: usize,
    #[comptime] format: WordFormat,
) {
    let lane = UNIT_POS_X;
    let row = cube * CUBE_ROWS + UNIT_POS_Y;
    let size = N::value();
    let of_word = comptime!(if format == WordFormat::F32 { 1usize } else { 2 });
    let mut sums = Array::<f32>::new(m);
    #[unroll]
    for i in 0..m {
        sums[i] = 0.0f32;
    }
    if row < rows {
        let vectors = width / comptime!((of_word * size) as u32);
        let start = (first + row) as usize * vectors as usize;
        for at in range_stepped(lane, vectors, LANES * AHEAD) {
            let mut ahead = Array::<Vector<u32, N>>::new(AHEAD as usize);
            #[unroll]
            for turn in 0..AHEAD {
                let at = at + turn * LANES;
                ahead[turn as usize] = Vector::new(0u32);
                if at < vectors {
                    ahead[turn as usize] = words[start + at as usize];
                }
            }
            #[unroll]
            for turn in 0..AHEAD {
                let at = (at + turn * LANES) as usize;
                if at < vectors as usize {
                    let some = ahead[turn as usize];
                    #[unroll]
                    for i in 0..m {
                        let x_start = (i * vectors as usize + at) * of_word;
                        let mut sum = sums[i];
                        #[unroll]
                        for element in 0..comptime!(of_word * size) {
                            let word = some.extract(comptime!(element / of_word));
                            let factor = x[x_start + comptime!(element / size)];
                            let factor = factor.extract(comptime!(element % size));
                            sum = fma(
                                element_of(word, comptime!(element % of_word), format),
                                factor,
                                sum,
                            );
                        }
                        sums[i] = sum;
                    }
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

/// Rows of a weight in f32, `[rows, width]`: of row `first` and those behind it, or of those in
/// `ids`.
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

/// An element of a word, by its place there.
#[cube]
fn element_of(word: u32, #[comptime] place: usize, #[comptime] format: WordFormat) -> f32 {
    if comptime!(format == WordFormat::F32) {
        f32::from_bits(word)
    } else if comptime!(place == 0) {
        low_half(word, format)
    } else {
        high_half(word, format)
    }
}

#[cube]
pub(super) fn low_half(word: u32, #[comptime] format: WordFormat) -> f32 {
    if comptime!(format == WordFormat::F16) {
        widened_f16(word & 0xffffu32)
    } else {
        f32::from_bits(word << 16u32)
    }
}

#[cube]
pub(super) fn high_half(word: u32, #[comptime] format: WordFormat) -> f32 {
    if comptime!(format == WordFormat::F16) {
        widened_f16(word >> 16u32)
    } else {
        f32::from_bits(word & 0xffff0000u32)
    }
}

/// An f16 as f32, by its bits. Subnormal ones are made by a multiplication: as f32 bits they would
/// be subnormal too, and some devices take these for zero.
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
