//! Kernels over weights in blocks, as stored: bytes in words of 32 bits, the first in the lowest.
//!
//! Four neighbouring elements are decoded at a time, in registers, to f32; sums are f32.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Cube, backend_extension};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::block_elements::{BlockFormat, decode};
use super::extension::{FREE_UNITS, cubes, empty};
use super::products::{CUBE_ROWS, LANES};

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

    /// The rows in f32: `[rows, width]`; with `by_ids` those of `ids`, u32, counted from the first
    /// of all.
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
