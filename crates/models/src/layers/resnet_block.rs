//! The residual block of convolutions.

use burn::module::Module;
use burn::tensor::{DType, Tensor};

use super::{Conv2d, Linear, PictureNorm, PictureNormKind};
use crate::{Activations, Init, PictureSize};

/// The sizes of a [`ResnetBlock2d`].
#[derive(Debug, Clone, Copy)]
pub struct ResnetSizes {
    /// Channels that go in and that come out.
    pub channels: [usize; 2],
    /// Width of the embedding of time, if there is one.
    pub time: Option<usize>,
    /// The norms; groups divide both channels.
    pub norm: PictureNormKind,
    /// What norms of groups add to variances.
    pub epsilon: f64,
}

/// `x + conv2(silu(norm2(conv1(silu(norm1(x))) + time)))`, as `diffusers` has it.
#[derive(Module, Debug)]
pub struct ResnetBlock2d {
    /// `[out, time]`: what is added to each channel, first of all.
    pub time_emb_proj: Option<Linear>,
    /// `[in]`.
    pub norm1: PictureNorm,
    /// `[out, in, 3, 3]`.
    pub conv1: Conv2d,
    /// `[out]`.
    pub norm2: PictureNorm,
    /// `[out, out, 3, 3]`.
    pub conv2: Conv2d,
    /// `[out, in]`, where these are not the same; a 1x1 convolution.
    pub conv_shortcut: Option<Linear>,
}

impl ResnetBlock2d {
    /// A block without storage.
    pub fn new(sizes: ResnetSizes, init: &Init) -> Self {
        let ResnetSizes { channels: [inputs, outputs], time, norm, epsilon } = sizes;
        Self {
            norm1: PictureNorm::new(norm, inputs, epsilon, init),
            conv1: Conv2d::new(inputs, outputs, 1, init),
            time_emb_proj: time.map(|time| Linear::new(time, outputs, true, init)),
            norm2: PictureNorm::new(norm, outputs, epsilon, init),
            conv2: Conv2d::new(outputs, outputs, 1, init),
            conv_shortcut: (inputs != outputs).then(|| Linear::new(inputs, outputs, true, init)),
        }
    }

    /// `[batch, rows, columns, in]` f32 to `[batch, rows, columns, out]` f32; `time` is `silu` of
    /// the embedding of time, `[1, time]` f32, or `[batch, time]`.
    pub fn forward(&self, x: Tensor<4>, time: &Tensor<2>) -> Tensor<4> {
        // In the order in which a stream expects them.
        let time = self.time_emb_proj.as_ref().map(|project| project.forward(time.clone()));
        let normed = self.norm1.forward_silu(x.clone());
        let mut bias = self.conv1.bias.val().cast(DType::F32).to_device(&normed.device());
        let h = match time.map(|time| (time.dims(), time)) {
            None => self.conv1.forward_biased(normed, bias),
            Some(([1, _], time)) => {
                bias = bias + time.squeeze_dim(0);
                self.conv1.forward_biased(normed, bias)
            }
            Some(([batch, channels], time)) => {
                let time = time.to_device(&normed.device()).reshape([batch, 1, 1, channels]);
                self.conv1.forward_biased(normed, bias) + time
            }
        };
        let h = self.conv2.forward(self.norm2.forward_silu(h));
        h + self.shortcut(x)
    }

    /// What is added to what the convolutions give.
    pub(crate) fn shortcut(&self, x: Tensor<4>) -> Tensor<4> {
        match &self.conv_shortcut {
            Some(shortcut) => shortcut.forward_pixels(x),
            None => x,
        }
    }

    /// Channels that come out.
    pub(crate) fn outputs(&self) -> usize {
        self.conv2.shape()[0]
    }

    /// What a pass over a picture of that size holds at most, its input included.
    pub(crate) fn activations(&self, size: PictureSize) -> Activations {
        let [outputs, inputs] = self.conv1.shape();
        let convolutions = self.conv1.activations(size).or(self.conv2.activations(size));
        // At last the result of the convolutions, the shortcut with a copy, and their sum.
        size.values(inputs).and(convolutions.or(size.values(4 * outputs)))
    }
}
