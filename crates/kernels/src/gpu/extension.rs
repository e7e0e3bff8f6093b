//! The operations over a CubeCL backend's own tensors: a Burn backend extension.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Cube, backend_extension};
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl::prelude::{CubeCount, CubeDim};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;

use super::gemm::{self, BLOCK_COLUMNS, SIDE};
use super::products::{self, CUBE_ROWS, LANES, WordFormat};

/// Units of a cube of kernels whose units share nothing.
pub(super) const FREE_UNITS: u32 = 128;

/// The most cubes in one direction that every device has.
const MOST_CUBES: u32 = 65_535;

/// Some rows of a weight in packed words.
#[derive(Clone, Copy, Debug)]
pub struct PackedRows {
    /// How elements lie in a word.
    pub format: WordFormat,
    /// The first of the rows.
    pub first: usize,
    /// How many rows.
    pub count: usize,
    /// Elements of a row.
    pub width: usize,
}

impl PackedRows {
    /// Words, and elements of activations, that a lane takes at a time: a row of a weight and one
    /// of activations are whole vectors of them.
    fn vector_size(&self) -> usize {
        let words = match self.format {
            WordFormat::F32 => self.width,
            WordFormat::Bf16 | WordFormat::F16 => self.width / 2,
        };
        if words.is_multiple_of(4) { 4 } else { 1 }
    }
}

/// Operations on weights in packed words.
#[backend_extension(Cube)]
pub trait PackedWeightOps: Backend {
    /// `x · Wᵀ` of few rows: `x [m, width]` f32 to `[m, rows]` f32.
    fn packed_gemv(
        x: FloatTensor<Self>,
        words: IntTensor<Self>,
        rows: PackedRows,
    ) -> FloatTensor<Self>;

    /// The same of three weights as wide and of one format.
    fn packed_gemv_three(
        x: FloatTensor<Self>,
        first: IntTensor<Self>,
        second: IntTensor<Self>,
        third: IntTensor<Self>,
        rows: [PackedRows; 3],
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `x · Wᵀ` of many rows: `x [m, width]` f32 to `[m, rows]` f32.
    fn packed_gemm(
        x: FloatTensor<Self>,
        words: IntTensor<Self>,
        rows: PackedRows,
    ) -> FloatTensor<Self>;

    /// `x · Wᵀ` of many rows with a weight in f32: `x [m, width]` and `weight [rows, width]` to
    /// `[m, rows]`.
    fn float_gemm(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;

    /// The rows in f32: `[rows, width]`.
    fn packed_floats(words: IntTensor<Self>, rows: PackedRows) -> FloatTensor<Self>;

    /// The rows of these ids, u32, counted from the first: `[ids, width]` f32.
    fn packed_select(
        words: IntTensor<Self>,
        ids: IntTensor<Self>,
        rows: PackedRows,
    ) -> FloatTensor<Self>;
}

impl PackedWeightOps for Cube {
    fn packed_gemv(x: CubeTensor, words: CubeTensor, rows: PackedRows) -> CubeTensor {
        let x = into_contiguous(x);
        let m = x.meta.num_elements() / rows.width;
        let y = empty(&x, [m, rows.count]);
        products::gemv::launch(
            &x.client.clone(),
            cubes(rows.count.div_ceil(CUBE_ROWS as usize)),
            CubeDim::new_2d(LANES, CUBE_ROWS),
            rows.vector_size(),
            words.binding().into_buffer_arg(),
            x.binding().into_buffer_arg(),
            y.clone().binding().into_buffer_arg(),
            rows.first as u32,
            rows.count as u32,
            rows.width as u32,
            m,
            rows.format,
        );
        y
    }

    fn packed_gemv_three(
        x: CubeTensor,
        first: CubeTensor,
        second: CubeTensor,
        third: CubeTensor,
        rows: [PackedRows; 3],
    ) -> (CubeTensor, CubeTensor, CubeTensor) {
        let x = into_contiguous(x);
        let PackedRows { width, format, .. } = rows[0];
        let m = x.meta.num_elements() / width;
        let [y, more_y, last_y] = rows.map(|rows| empty(&x, [m, rows.count]));
        let [starts, counts] =
            [rows.map(|rows| rows.first as u32), rows.map(|rows| rows.count as u32)];
        products::gemv_three::launch(
            &x.client.clone(),
            cubes(rows.iter().map(|rows| rows.count.div_ceil(CUBE_ROWS as usize)).sum()),
            CubeDim::new_2d(LANES, CUBE_ROWS),
            rows[0].vector_size(),
            first.binding().into_buffer_arg(),
            second.binding().into_buffer_arg(),
            third.binding().into_buffer_arg(),
            x.binding().into_buffer_arg(),
            y.clone().binding().into_buffer_arg(),
            more_y.clone().binding().into_buffer_arg(),
            last_y.clone().binding().into_buffer_arg(),
            starts[0],
            starts[1],
            starts[2],
            counts[0],
            counts[1],
            counts[2],
            width as u32,
            m,
            format,
        );
        (y, more_y, last_y)
    }

    fn packed_gemm(x: CubeTensor, words: CubeTensor, rows: PackedRows) -> CubeTensor {
        multiplied(x, words, rows)
    }

    fn float_gemm(x: CubeTensor, weight: CubeTensor) -> CubeTensor {
        let weight = into_contiguous(weight);
        let [count, width] = weight.meta.shape().dims();
        multiplied(x, weight, PackedRows { format: WordFormat::F32, first: 0, count, width })
    }

    fn packed_floats(words: CubeTensor, rows: PackedRows) -> CubeTensor {
        unpacked(words.clone(), words, rows, false)
    }

    fn packed_select(words: CubeTensor, ids: CubeTensor, rows: PackedRows) -> CubeTensor {
        let count = ids.meta.num_elements();
        unpacked(words, ids, PackedRows { count, ..rows }, true)
    }
}

/// See [`PackedWeightOps::packed_gemm`]; words may also be the elements of an f32 tensor.
fn multiplied(x: CubeTensor, words: CubeTensor, rows: PackedRows) -> CubeTensor {
    let x = into_contiguous(x);
    let m = x.meta.num_elements() / rows.width;
    let y = empty(&x, [m, rows.count]);
    let down = match m {
        ..=16 => 1,
        17..=32 => 2,
        33..=64 => 4,
        _ => 8,
    };
    let blocks = [rows.count.div_ceil(BLOCK_COLUMNS), m.div_ceil(SIDE as usize * down)];
    gemm::gemm::launch(
        &x.client.clone(),
        CubeCount::Static(blocks[0] as u32, blocks[1] as u32, 1),
        CubeDim::new_2d(SIDE, SIDE),
        words.binding().into_buffer_arg(),
        x.binding().into_buffer_arg(),
        y.clone().binding().into_buffer_arg(),
        m as u32,
        rows.first as u32,
        rows.count as u32,
        rows.width as u32,
        down,
        rows.format,
    );
    y
}

fn unpacked(words: CubeTensor, ids: CubeTensor, rows: PackedRows, by_ids: bool) -> CubeTensor {
    let y = empty(&words, [rows.count, rows.width]);
    let values = rows.count * rows.width;
    products::unpack::launch(
        &words.client.clone(),
        cubes(values.div_ceil(FREE_UNITS as usize)),
        CubeDim::new_1d(FREE_UNITS),
        words.binding().into_buffer_arg(),
        ids.binding().into_buffer_arg(),
        y.clone().binding().into_buffer_arg(),
        rows.first as u32,
        values as u32,
        rows.width as u32,
        by_ids,
        rows.format,
    );
    y
}

/// An f32 tensor on the device of another.
pub(super) fn empty(like: &CubeTensor, shape: [usize; 2]) -> CubeTensor {
    let shape = Shape::new(shape);
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, DType::F32)
}

pub(super) fn cubes(count: usize) -> CubeCount {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let high = count.div_ceil(MOST_CUBES).max(1);
    CubeCount::Static(count.div_ceil(high), high, 1)
}
