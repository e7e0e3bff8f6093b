//! A 3x3 convolution.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_kernels::{ActivationDtype, ConvolutionWindow, convolution_into};

use super::convolution::{convolved, matrix, output_of};
use super::entered::{entered, fetched};
use super::linear::{lazy, normal, zeros};
use crate::{Activations, Init, PictureSize};

/// A 3x3 convolution of pictures `[batch, rows, columns, channels]` with zeros around them, weight
/// and bias kept as stored: in bf16, f16 or f32. (One of 1x1 is a [`Linear`](super::Linear) layer.)
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
    /// A layer without storage; unless loaded, its weight is drawn from a normal distribution of
    /// deviation 0.02, and its bias is 0.
    pub fn new(inputs: usize, outputs: usize, stride: usize, init: &Init) -> Self {
        Self {
            weight: lazy([outputs, inputs, 3, 3], &init.device, normal),
            bias: zeros(outputs, &init.device),
            stride,
            compute: init.compute,
        }
    }

    /// `[batch, rows, columns, in]` f32 to `[batch, rows, columns, out]` f32, of which there are
    /// fewer with a stride.
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

    /// Some rows of a picture, with or without zeros above and below them, to what comes of them:
    /// with a weight from [`matrix`](Self::matrix). The result is in main memory.
    pub(crate) fn forward_rows(
        &self,
        x: Tensor<4>,
        [above, below]: [bool; 2],
        weight: &Tensor<2>,
    ) -> Tensor<4> {
        let x = entered(x, &self.weight);
        let window = ConvolutionWindow::Three { stride: self.stride, above, below };
        let y = output_of(&x, window, self.shape()[0]);
        let bias = self.bias.val().cast(DType::F32).to_device(&x.device());
        let y = convolution_into(self.compute, y, x, weight.clone(), bias, window, 0);
        fetched(y, &self.weight)
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

    /// What a pass over a picture of that size holds at most: the picture, its copy with zeros
    /// around it, and the result.
    pub(crate) fn activations(&self, size: PictureSize) -> Activations {
        let [outputs, inputs] = self.shape();
        size.values(inputs).and(size.padded().values(inputs)).and(self.output(size).values(outputs))
    }
}
