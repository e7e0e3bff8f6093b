//! Products of many rows of activations with weights in packed words.
//!
//! A cube makes a block of outputs: rows of both operands go to shared memory, [`STEP`] elements of
//! each at a time, and every unit adds up some outputs in registers. An output is added up element
//! by element in the order of its row, whatever the sizes of blocks: its bits depend on its own two
//! rows alone, not on which rows of a weight are multiplied together.

use burn_cubecl::cubecl;
use cubecl::prelude::*;

use super::products::{WordFormat, high_half, low_half};

/// Units of a cube in each direction.
pub(super) const SIDE: u32 = 16;

/// Outputs of a unit along a row.
const ACROSS: usize = 8;

/// Rows of the weight that a cube takes.
pub(super) const BLOCK_COLUMNS: usize = SIDE as usize * ACROSS;

/// Elements of a row that are in shared memory at once …
const STEP: usize = 16;

/// … four side by side.
const QUADS: usize = STEP / 4;

/// Quads from a row in shared memory to the next: odd, so that neighbouring rows are in different
/// banks.
const STRIDE: usize = QUADS + 1;

type Quad = Vector<f32, Const<4>>;

/// `y = x · Wᵀ` for rows `first ..` of a weight whose rows have `width` elements: `x [m, width]` to
/// `y [m, rows]`. A unit makes `down` rows of outputs.
#[cube(launch)]
pub(super) fn gemm(
    words: &[u32],
    x: &[f32],
    y: &mut [f32],
    m: u32,
    first: u32,
    rows: u32,
    width: u32,
    #[comptime] down: usize,
    #[comptime] format: WordFormat,
) {
    let unit = (UNIT_POS_Y * SIDE + UNIT_POS_X) as usize;
    let (across, along) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let (m, rows, width) = (m as usize, rows as usize, width as usize);
    let x_start = CUBE_POS_Y as usize * comptime!(SIDE as usize * down);
    let w_start = CUBE_POS_X as usize * BLOCK_COLUMNS;
    let mut x_block = Shared::<[Quad]>::new_slice(comptime!(SIDE as usize * down * STRIDE));
    let mut w_block = Shared::<[Quad]>::new_slice(comptime!(BLOCK_COLUMNS * STRIDE));
    let mut sums = Array::<f32>::new(comptime!(down * ACROSS));
    #[unroll]
    for i in 0..comptime!(down * ACROSS) {
        sums[i] = 0.0f32;
    }
    for step in 0..width.div_ceil(STEP) {
        #[unroll]
        for turn in 0..comptime!((down * QUADS).div_ceil(SIDE as usize)) {
            let at = unit + turn * comptime!((SIDE * SIDE) as usize);
            let (row, quad) = (at / QUADS, at % QUADS);
            if row < comptime!(SIDE as usize * down) {
                let column = step * STEP + quad * 4;
                x_block[row * STRIDE + quad] = of_floats(x, x_start + row, m, column, width);
            }
        }
        #[unroll]
        for turn in 0..comptime!(ACROSS * QUADS / SIDE as usize) {
            let at = unit + turn * comptime!((SIDE * SIDE) as usize);
            let (row, quad) = (at / QUADS, at % QUADS);
            let column = step * STEP + quad * 4;
            let there = w_start + row < rows;
            w_block[row * STRIDE + quad] =
                of_words(words, first as usize + w_start + row, there, column, width, format);
        }
        sync_cube();
        #[unroll]
        for quad in 0..QUADS {
            let mut own = Array::<Quad>::new(down);
            #[unroll]
            for i in 0..down {
                own[i] = x_block[(along + i * comptime!(SIDE as usize)) * STRIDE + quad];
            }
            #[unroll]
            for j in 0..ACROSS {
                let weights = w_block[(across + j * comptime!(SIDE as usize)) * STRIDE + quad];
                #[unroll]
                for i in 0..down {
                    let at = comptime!(i * ACROSS + j);
                    let mut sum = sums[at];
                    #[unroll]
                    for element in 0..4usize {
                        sum = fma(own[i].extract(element), weights.extract(element), sum);
                    }
                    sums[at] = sum;
                }
            }
        }
        sync_cube();
    }
    #[unroll]
    for i in 0..down {
        let row = x_start + along + i * comptime!(SIDE as usize);
        #[unroll]
        for j in 0..ACROSS {
            let column = w_start + across + j * comptime!(SIDE as usize);
            if row < m && column < rows {
                y[row * rows + column] = sums[comptime!(i * ACROSS + j)];
            }
        }
    }
}

/// Four elements of a row of `x` from `column` on; zeros where there are none.
#[cube]
fn of_floats(x: &[f32], row: usize, rows: usize, column: usize, width: usize) -> Quad {
    let mut quad = Quad::new(0.0f32);
    if row < rows {
        #[unroll]
        for element in 0..4usize {
            if column + element < width {
                quad.insert(element, x[row * width + column + element]);
            }
        }
    }
    quad
}

/// Four elements of a row of a weight from `column` on; zeros where there are none.
#[cube]
fn of_words(
    words: &[u32],
    row: usize,
    there: bool,
    column: usize,
    width: usize,
    #[comptime] format: WordFormat,
) -> Quad {
    let mut quad = Quad::new(0.0f32);
    if there {
        #[unroll]
        for element in 0..4usize {
            if column + element < width {
                let at = row * width + column + element;
                if comptime!(format == WordFormat::F32) {
                    quad.insert(element, f32::from_bits(words[at]));
                } else {
                    let word = words[at / 2];
                    let mut value = low_half(word, format);
                    if at % 2 == 1 {
                        value = high_half(word, format);
                    }
                    quad.insert(element, value);
                }
            }
        }
    }
    quad
}
