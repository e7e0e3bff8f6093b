//! Convolutions on a GPU, as products: what each pixel of the result sees becomes a row of a
//! matrix.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Cube, Dispatch, backend_extension};
use burn::tensor::Tensor;
use burn_cubecl::cubecl;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::extension::{FREE_UNITS, cubes, empty};

/// Pixels that a pixel of the result sees.
const TAPS: u32 = 9;

/// Bound on such a matrix, in bytes; larger pictures are taken in bands of rows.
const MATRIX_BYTES: usize = 16 << 20;

/// Some rows of the result of a 3x3 convolution, as far as what they see depends on it.
#[derive(Clone, Copy, Debug)]
pub struct SeenPixels {
    /// The first of the rows.
    pub first: usize,
    /// How many rows.
    pub rows: usize,
    /// Pixels of a row of the result.
    pub columns: usize,
    /// By how many pixels of the picture those of the result are apart.
    pub stride: usize,
    /// Whether there is a row of zeros above the picture.
    pub above: bool,
}

/// Operations on pictures.
#[backend_extension(Cube)]
pub trait PictureGpuOps: Backend {
    /// What pixels of the result see of a picture `[batch, rows, columns, channels]` f32 with zeros
    /// around it: `[batch · rows · columns, channels · 9]` of the result's, in the order of a
    /// stored weight.
    fn neighbourhoods(x: FloatTensor<Self>, seen: SeenPixels) -> FloatTensor<Self>;
}

impl PictureGpuOps for Cube {
    fn neighbourhoods(x: CubeTensor, seen: SeenPixels) -> CubeTensor {
        let x = into_contiguous(x);
        let [batch, height, width, channels] = x.meta.shape().dims();
        let y = empty(&x, [batch * seen.rows * seen.columns, channels * TAPS as usize]);
        let values = y.meta.num_elements();
        neighbourhoods::launch(
            &x.client.clone(),
            cubes(values.div_ceil(FREE_UNITS as usize)),
            CubeDim::new_1d(FREE_UNITS),
            x.binding().into_buffer_arg(),
            y.clone().binding().into_buffer_arg(),
            values as u32,
            height as u32,
            width as u32,
            channels as u32,
            seen.first as u32,
            seen.rows as u32,
            seen.columns as u32,
            seen.stride as u32,
            u32::from(seen.above),
        );
        y
    }
}

#[cube(launch)]
fn neighbourhoods(
    x: &[f32],
    y: &mut [f32],
    values: u32,
    height: u32,
    width: u32,
    channels: u32,
    first: u32,
    rows: u32,
    columns: u32,
    stride: u32,
    above: u32,
) {
    let at = ABSOLUTE_POS as u32;
    if at < values {
        let seen = at % (channels * TAPS);
        let pixel = at / (channels * TAPS);
        let channel = seen / TAPS;
        let tap = seen % TAPS;
        let picture = pixel / (columns * rows);
        // Counted from the zeros around the picture.
        let row = (first + pixel / columns % rows) * stride + tap / 3u32;
        let column = pixel % columns * stride + tap % 3u32;
        let mut value = 0.0f32;
        if row >= above && row < height + above && column >= 1u32 && column <= width {
            let from = (picture * height + row - above) * width + column - 1u32;
            value = x[from as usize * channels as usize + channel as usize];
        }
        y[at as usize] = value;
    }
}

/// Writes the outputs that `weight [outputs, channels · 9]` f32 gives of `x` to `y`, from `start`
/// on.
pub(crate) fn convolution(
    mut y: Tensor<4>,
    x: Tensor<4>,
    weight: Tensor<2>,
    bias: Tensor<1>,
    (stride, above): (usize, bool),
    start: usize,
) -> Tensor<4> {
    let ([batch, height, columns, _], [outputs, width]) = (y.dims(), weight.dims());
    let weight = weight.transpose();
    let row = batch * columns * width * size_of::<f32>();
    let step = (MATRIX_BYTES / row.max(1)).clamp(1, height.max(1));
    for first in (0..height).step_by(step) {
        let rows = step.min(height - first);
        let seen = SeenPixels { first, rows, columns, stride, above };
        let matrix = Dispatch::neighbourhoods(x.clone().into_dispatch(), seen);
        let made = Tensor::<2>::from_dispatch(matrix).matmul(weight.clone());
        let made = (made + bias.clone().unsqueeze()).reshape([batch, rows, columns, outputs]);
        let places = [0..batch, first..first + rows, 0..columns, start..start + outputs];
        y = y.slice_assign(places, made);
    }
    y
}
