//! Kernels over weights in blocks, as stored: bytes in words of 32 bits, the first in the lowest.
//!
//! Four neighbouring elements are decoded at a time, in registers, to f32; sums are f32.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Cube, backend_extension};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::extension::{FREE_UNITS, cubes, empty};
use super::products::{CUBE_ROWS, LANES, widened_f16};

/// How elements lie in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// Numbers of 8 bits in floating point, with a scale for some rows and columns elsewhere.
    E4m3,
    /// GGUF's blocks of 32 numbers of 8 bits.
    Q8_0,
    /// Of 32 numbers of 4 bits.
    Q4_0,
    /// Of 256 numbers of 4 bits.
    Q4K,
    /// Of 256 numbers of 6 bits.
    Q6K,
    /// Of 32 numbers of 4 bits in floating point.
    Mxfp4,
    /// Such numbers by themselves, neighbours in a byte, with a scale for some elsewhere.
    F4,
}

impl BlockFormat {
    /// Whether scales are elsewhere.
    fn has_scales_apart(self) -> bool {
        matches!(self, Self::E4m3 | Self::F4)
    }
}

/// Some rows of a weight in blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockRows {
    /// How elements lie.
    pub format: BlockFormat,
    /// The first of the rows.
    pub first: usize,
    /// How many rows.
    pub count: usize,
    /// Elements of a row.
    pub width: usize,
    /// Rows and columns that a scale is for, where scales are elsewhere.
    pub block: [usize; 2],
    /// Rows between the first that the first row of scales is for and the first of the weight.
    pub skipped: usize,
}

/// Operations on weights in blocks. `scales` are f32, and of formats that hold their own anything.
#[backend_extension(Cube)]
pub trait BlockWeightOps: Backend {
    /// `x · Wᵀ` of few rows: `x [m, width]` f32 to `[m, rows]` f32. `width` is a multiple of 4.
    fn block_gemv(
        x: FloatTensor<Self>,
        words: IntTensor<Self>,
        scales: FloatTensor<Self>,
        rows: BlockRows,
    ) -> FloatTensor<Self>;

    /// The rows in f32: `[rows, width]`; with `by_ids` those of `ids`, u32, counted from the first of all.
    fn block_floats(
        words: IntTensor<Self>,
        scales: FloatTensor<Self>,
        ids: IntTensor<Self>,
        rows: BlockRows,
        by_ids: bool,
    ) -> FloatTensor<Self>;
}

impl BlockRows {
    /// Scales of a row.
    fn scales(&self) -> usize {
        self.width.div_ceil(self.block[1])
    }
}

impl BlockWeightOps for Cube {
    fn block_gemv(
        x: CubeTensor,
        words: CubeTensor,
        scales: CubeTensor,
        rows: BlockRows,
    ) -> CubeTensor {
        let x = into_contiguous(x);
        let m = x.meta.num_elements() / rows.width;
        let y = empty(&x, [m, rows.count]);
        gemv::launch(
            &x.client.clone(),
            cubes(rows.count.div_ceil(CUBE_ROWS as usize)),
            CubeDim::new_2d(LANES, CUBE_ROWS),
            words.binding().into_buffer_arg(),
            scales.binding().into_buffer_arg(),
            x.binding().into_buffer_arg(),
            y.clone().binding().into_buffer_arg(),
            rows.first as u32,
            rows.count as u32,
            rows.width as u32,
            rows.block[0] as u32,
            rows.block[1] as u32,
            rows.skipped as u32,
            rows.scales() as u32,
            m,
            rows.format,
        );
        y
    }

    fn block_floats(
        words: CubeTensor,
        scales: CubeTensor,
        ids: CubeTensor,
        rows: BlockRows,
        by_ids: bool,
    ) -> CubeTensor {
        let y = empty(&words, [rows.count, rows.width]);
        let groups = rows.count * rows.width.div_ceil(4);
        unpack::launch(
            &words.client.clone(),
            cubes(groups.div_ceil(FREE_UNITS as usize)),
            CubeDim::new_1d(FREE_UNITS),
            words.binding().into_buffer_arg(),
            scales.binding().into_buffer_arg(),
            ids.binding().into_buffer_arg(),
            y.clone().binding().into_buffer_arg(),
            rows.first as u32,
            groups as u32,
            rows.width as u32,
            rows.block[0] as u32,
            rows.block[1] as u32,
            rows.skipped as u32,
            rows.scales() as u32,
            by_ids,
            rows.format,
        );
        y
    }
}

/// `y = x · Wᵀ`, as [`gemv`](super::products::gemv) of elements that need no scales.
#[cube(launch)]
fn gemv(
    words: &[u32],
    scales: &[f32],
    x: &[f32],
    y: &mut [f32],
    first: u32,
    rows: u32,
    width: u32,
    block_rows: u32,
    block_columns: u32,
    skipped: u32,
    row_scales: u32,
    #[comptime] m: usize,
    #[comptime] format: BlockFormat,
) {
    let lane = UNIT_POS_X;
    let row = CUBE_POS as u32 * CUBE_ROWS + UNIT_POS_Y;
    let mut sums = Array::<f32>::new(m);
    #[unroll]
    for i in 0..m {
        sums[i] = 0.0f32;
    }
    if row < rows {
        let scale_row = (skipped + first + row) / block_rows * row_scales;
        for group in range_stepped(lane, width / 4u32, LANES) {
            let column = group * 4u32;
            let mut four = Array::<f32>::new(4usize);
            decode(words, first + row, column, width, &mut four, format);
            if comptime!(format.has_scales_apart()) {
                #[unroll]
                for at in 0..4usize {
                    let scale = scale_row + (column + at as u32) / block_columns;
                    four[at] *= scales[scale as usize];
                }
            }
            #[unroll]
            for i in 0..m {
                let from = i * width as usize + column as usize;
                sums[i] += four[0] * x[from]
                    + four[1] * x[from + 1]
                    + four[2] * x[from + 2]
                    + four[3] * x[from + 3];
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

/// Rows in f32, as [`unpack`](super::products::unpack) of elements that need no scales.
#[cube(launch)]
fn unpack(
    words: &[u32],
    scales: &[f32],
    ids: &[u32],
    y: &mut [f32],
    first: u32,
    groups: u32,
    width: u32,
    block_rows: u32,
    block_columns: u32,
    skipped: u32,
    row_scales: u32,
    #[comptime] by_ids: bool,
    #[comptime] format: BlockFormat,
) {
    let at = ABSOLUTE_POS as u32;
    if at < groups {
        let row_groups = width.div_ceil(4u32);
        let row = at / row_groups;
        let column = at % row_groups * 4u32;
        let mut from = first + row;
        if comptime!(by_ids) {
            from = ids[row as usize];
        }
        let mut four = Array::<f32>::new(4usize);
        decode(words, from, column, width, &mut four, format);
        #[unroll]
        for at in 0..4usize {
            let column = column + at as u32;
            if column < width {
                let mut value = four[at];
                if comptime!(format.has_scales_apart()) {
                    let scale = (skipped + from) / block_rows * row_scales + column / block_columns;
                    value *= scales[scale as usize];
                }
                y[row as usize * width as usize + column as usize] = value;
            }
        }
    }
}

/// The four elements of a row from `column` on, a multiple of 4; without scales that are elsewhere. Elements behind the last
/// are anything.
#[cube]
fn decode(
    words: &[u32],
    row: u32,
    column: u32,
    width: u32,
    four: &mut Array<f32>,
    #[comptime] format: BlockFormat,
) {
    if comptime!(format == BlockFormat::E4m3) {
        let bytes = word_at(words, row as usize * width as usize + column as usize);
        #[unroll]
        for at in 0..4u32 {
            four[at as usize] = widened_e4m3((bytes >> (8u32 * at)) & 0xffu32);
        }
    } else if comptime!(format == BlockFormat::Q8_0) {
        let block = (row as usize * (width / 32u32) as usize + (column / 32u32) as usize) * 34usize;
        let scale = f16_at(words, block);
        let bytes = word_at(words, block + 2 + (column % 32u32) as usize);
        #[unroll]
        for at in 0..4u32 {
            four[at as usize] = scale * signed((bytes >> (8u32 * at)) & 0xffu32);
        }
    } else if comptime!(format == BlockFormat::Q4_0) {
        let block = (row as usize * (width / 32u32) as usize + (column / 32u32) as usize) * 18usize;
        let scale = f16_at(words, block);
        let bytes = word_at(words, block + 2 + (column % 16u32) as usize);
        let shift = column % 32u32 / 16u32 * 4u32;
        #[unroll]
        for at in 0..4u32 {
            let number = (bytes >> (8u32 * at + shift)) & 15u32;
            four[at as usize] = scale * (f32::cast_from(number) - 8.0f32);
        }
    } else if comptime!(format == BlockFormat::Q4K) {
        let block =
            (row as usize * (width / 256u32) as usize + (column / 256u32) as usize) * 144usize;
        let inside = column % 256u32;
        let part = inside / 32u32;
        // Six bits each: those of the last four parts are in two places.
        let mut scale = byte_at(words, block + 4 + part as usize) & 63u32;
        let mut offset = byte_at(words, block + 8 + part as usize) & 63u32;
        if part >= 4u32 {
            let both = byte_at(words, block + 8 + part as usize);
            let upper = byte_at(words, block + part as usize) >> 6u32;
            scale = (both & 15u32) | (upper << 4u32);
            offset = (both >> 4u32) | (byte_at(words, block + 4 + part as usize) >> 6u32 << 4u32);
        }
        let factor = f16_at(words, block) * f32::cast_from(scale);
        let less = f16_at(words, block + 2) * f32::cast_from(offset);
        let bytes = word_at(words, block + 16 + (inside / 64u32 * 32u32 + inside % 32u32) as usize);
        let shift = part % 2u32 * 4u32;
        #[unroll]
        for at in 0..4u32 {
            let number = (bytes >> (8u32 * at + shift)) & 15u32;
            four[at as usize] = factor * f32::cast_from(number) - less;
        }
    } else if comptime!(format == BlockFormat::Mxfp4) {
        let block = (row as usize * (width / 32u32) as usize + (column / 32u32) as usize) * 17usize;
        let scale = widened_e8m0(byte_at(words, block));
        let bytes = word_at(words, block + 1 + (column % 16u32) as usize);
        let shift = column % 32u32 / 16u32 * 4u32;
        #[unroll]
        for at in 0..4u32 {
            four[at as usize] = scale * widened_e2m1((bytes >> (8u32 * at + shift)) & 15u32);
        }
    } else if comptime!(format == BlockFormat::F4) {
        // Rows have an even number of elements, and begin with a byte.
        let bytes = word_at(words, (row as usize * width as usize + column as usize) / 2usize);
        #[unroll]
        for at in 0..4u32 {
            four[at as usize] = widened_e2m1((bytes >> (4u32 * at)) & 15u32);
        }
    } else {
        let block =
            (row as usize * (width / 256u32) as usize + (column / 256u32) as usize) * 210usize;
        let half = column % 256u32 / 128u32;
        let inside = column % 128u32;
        let low = word_at(words, block + (64u32 * half + inside % 64u32) as usize);
        let high = word_at(words, block + 128 + (32u32 * half + inside % 32u32) as usize);
        let low_shift = inside / 64u32 * 4u32;
        let high_shift = inside / 32u32 * 2u32;
        let scale = signed(byte_at(words, block + 192 + (8u32 * half + inside / 16u32) as usize));
        let factor = f16_at(words, block + 208) * scale;
        #[unroll]
        for at in 0..4u32 {
            let lower = (low >> (8u32 * at + low_shift)) & 15u32;
            let upper = (high >> (8u32 * at + high_shift)) & 3u32;
            let number = lower | (upper << 4u32);
            four[at as usize] = factor * (f32::cast_from(number) - 32.0f32);
        }
    }
}

/// Four bytes from any one on; those behind the last word are zero.
#[cube]
fn word_at(words: &[u32], byte: usize) -> u32 {
    let shift = (byte % 4usize) as u32 * 8u32;
    let at = byte / 4usize;
    let mut word = words[at] >> shift;
    if shift > 0u32 && at + 1 < words.len() {
        word |= words[at + 1] << (32u32 - shift);
    }
    word
}

#[cube]
fn byte_at(words: &[u32], byte: usize) -> u32 {
    (words[byte / 4usize] >> ((byte % 4usize) as u32 * 8u32)) & 0xffu32
}

/// The f16 at an even byte.
#[cube]
fn f16_at(words: &[u32], byte: usize) -> f32 {
    widened_f16((words[byte / 4usize] >> ((byte % 4usize) as u32 * 8u32)) & 0xffffu32)
}

/// A byte as a number with a sign.
#[cube]
fn signed(byte: u32) -> f32 {
    f32::cast_from(byte ^ 0x80u32) - 128.0f32
}

/// An E2M1 (no infinity, no NaN) as f32.
#[cube]
fn widened_e2m1(number: u32) -> f32 {
    let magnitude = number & 7u32;
    // The fields in place, the exponent is too small by 127 - 1.
    let mut value = f32::from_bits((magnitude << 22u32) + 1_056_964_608u32);
    if magnitude < 2u32 {
        value = f32::cast_from(magnitude) * 0.5f32;
    }
    if number >= 8u32 {
        value = -value;
    }
    value
}

/// An E8M0, a power of two, as f32; the last is taken for infinity.
#[cube]
fn widened_e8m0(byte: u32) -> f32 {
    let mut bits = byte << 23u32;
    if byte == 0u32 {
        // 2⁻¹²⁷ is subnormal.
        bits = 4_194_304u32;
    }
    f32::from_bits(bits)
}

/// An E4M3 (no infinity, one NaN of each sign) as f32.
#[cube]
fn widened_e4m3(byte: u32) -> f32 {
    let magnitude = byte & 0x7fu32;
    // The fields in place, the exponent is too small by 127 - 7.
    let mut value = f32::from_bits((magnitude << 20u32) + 1_006_632_960u32);
    if magnitude < 8u32 {
        // Eighths of the least normal number, 2⁻⁶.
        value = f32::cast_from(magnitude) * 0.001953125f32;
    }
    if magnitude == 0x7fu32 {
        value = f32::from_bits(0x7f800000u32 | (magnitude << 16u32));
    }
    if byte >= 0x80u32 {
        value = -value;
    }
    value
}
