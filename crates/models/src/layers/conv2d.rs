//! A 3x3 convolution.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_core::{Access, Streamed};
use outsize_kernels::{ActivationDtype, ConvolutionWindow, convolution_into};

use super::linear::{lazy, normal, zeros};
use crate::{Activations, Init, PictureSize};

/// A 3x3 convolution of pictures `[batch, rows, columns, channels]` with zeros around them, weight and bias kept as stored:
/// in bf16, f16 or f32. (One of 1x1 is a [`Linear`](super::Linear) layer.)
#[derive(Module, Debug)]
pub struct Conv2d {
    /// `[out, in, 3, 3]`.
    pub weight: Param<Tensor<4>>,
    /// `[out]`.
    pub bias: Param<Tensor<1>>,
    stride: usize,
    #[module(skip)]
    compute: ActivationDtype,
}

/// The convolution that comes with a change of size.
#[derive(Module, Debug)]
pub struct Resampler {
    /// `[channels, channels, 3, 3]`.
    pub conv: Conv2d,
}

impl Conv2d {
    /// A layer without storage; unless loaded, its weight is drawn from a normal distribution of deviation 0.02, and its
    /// bias is 0.
    pub fn new(inputs: usize, outputs: usize, stride: usize, init: &Init) -> Self {
        Self {
            weight: lazy([outputs, inputs, 3, 3], &init.device, normal),
            bias: zeros(outputs, &init.device),
            stride,
            compute: init.compute,
        }
    }

    /// `[batch, rows, columns, in]` f32 to `[batch, rows, columns, out]` f32, of which there are fewer with a stride.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.forward_biased(x, self.bias.val().cast(DType::F32))
    }

    /// The same with another bias `[out]`.
    pub(crate) fn forward_biased(&self, x: Tensor<4>, bias: Tensor<1>) -> Tensor<4> {
        convolved(self.compute, x, &self.weight, bias, self.window())
    }

    fn window(&self) -> ConvolutionWindow {
        ConvolutionWindow::three(self.stride)
    }

    /// Some rows of a picture, with or without zeros above and below them, to what comes of them: of a stride of 1, with a
    /// weight from [`matrix`](Self::matrix).
    pub(crate) fn forward_rows(
        &self,
        x: Tensor<4>,
        [above, below]: [bool; 2],
        weight: &Tensor<2>,
    ) -> Tensor<4> {
        let window = ConvolutionWindow::Three { stride: 1, above, below };
        let y = output_of(&x, window, self.shape()[0]);
        convolution_into(self.compute, y, x, weight.clone(), self.bias.val(), window, 0)
    }

    /// The whole weight `[out, in · 9]`. It is held in memory as long as this is.
    pub(crate) fn matrix(&self) -> Tensor<2> {
        matrix(&self.weight)
    }

    /// Outputs and inputs.
    pub fn shape(&self) -> [usize; 2] {
        let shape = self.weight.lazy_shape();
        [shape[0], shape[1]]
    }

    /// What a picture of that size becomes.
    pub(crate) fn output(&self, size: PictureSize) -> PictureSize {
        let [rows, columns] = self.window().output(size.rows, size.columns);
        PictureSize { rows, columns, ..size }
    }

    /// What a pass over a picture of that size holds at most: the picture, its copy with zeros around it, and the result.
    pub(crate) fn activations(&self, size: PictureSize) -> Activations {
        let [outputs, inputs] = self.shape();
        size.values(inputs).and(size.padded().values(inputs)).and(self.output(size).values(outputs))
    }
}

/// A convolution with a weight that is in memory, or that comes tile by tile: the same bits either way, since each output
/// depends on its own row of the weight alone.
pub(super) fn convolved<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<4>,
    weight: &Param<Tensor<D>>,
    bias: Tensor<1>,
    window: ConvolutionWindow,
) -> Tensor<4> {
    let y = output_of(&x, window, weight.lazy_shape()[0]);
    match Streamed::of(weight) {
        Some(streamed) if !streamed.is_resident() && streamed.access() == Access::Tiles => {
            // One tile at a time: the next one may need its memory.
            streamed.tiles().fold(y, |y, (outputs, tile)| {
                let bias = bias.clone().narrow(0, outputs.start, outputs.len());
                let tile = tile.into_float(&x.device());
                convolution_into(compute, y, x.clone(), tile, bias, window, outputs.start)
            })
        }
        _ => convolution_into(compute, y, x, matrix(weight), bias, window, 0),
    }
}

/// A whole weight, `[out, ..]`, as a matrix `[out, all others]`.
fn matrix<const D: usize>(weight: &Param<Tensor<D>>) -> Tensor<2> {
    let weight = weight.val();
    let outputs = weight.dims()[0];
    let inputs = weight.dims()[1..].iter().product::<usize>();
    weight.reshape([outputs, inputs])
}

/// A tensor for so many values of each output of a picture.
fn output_of(x: &Tensor<4>, window: ConvolutionWindow, outputs: usize) -> Tensor<4> {
    let [batch, rows, columns, _] = x.dims();
    let [rows, columns] = window.output(rows, columns);
    outsize_kernels::unwritten([batch, rows, columns, outputs], &x.device())
}
