//! Normalisation of the channels of each pixel.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::entered::entered;
use super::linear::ones;
use crate::Init;

/// What the norm of a pixel is at least.
const LEAST: f64 = 1e-12;

/// `x · √channels / |x| · gamma` of the channels of each pixel of pictures
/// `[batch, rows, columns, channels]` in f32 ([Zhang and Sennrich,
/// 2019](https://arxiv.org/abs/1910.07467)), as Wan's autoencoder has it.
#[derive(Module, Debug)]
pub struct ChannelNorm {
    /// `[channels]`; in f32, bf16 or f16.
    pub gamma: Param<Tensor<1>>,
}

impl ChannelNorm {
    /// A norm without storage; unless loaded, its weight is 1.
    pub fn new(channels: usize, init: &Init) -> Self {
        Self { gamma: ones(channels, &init.device) }
    }

    /// The norm.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let epsilon = LEAST * LEAST / self.gamma.lazy_shape()[0] as f64;
        outsize_kernels::rms_norm(entered(x, &self.gamma), self.gamma.val(), epsilon)
    }
}
