//! The embedding of the time, and the layer behind all blocks that knows it.

#![allow(non_snake_case, reason = "a module is called so, and the derived code names it too")]

use burn::module::Module;
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};
use outsize_kernels::layer_norm;

use crate::architecture::Init;
use crate::layers::{Linear, Parameterless, Sinusoids, entered, fetched};

/// Sines and cosines of a time.
const CHANNELS: usize = 256;

/// How they tell it.
const SINUSOIDS: Sinusoids = Sinusoids { cosines_first: true, freq_shift: 0.0 };

/// Width between the layers of the embedding.
const INNER: usize = 1024;

/// What the norm adds to variances.
const EPSILON: f64 = 1e-6;

/// Two layers over the sines and cosines of a time.
#[derive(Module, Debug)]
pub(super) struct ZImageTimestepEmbedder {
    mlp: (Linear, Parameterless, Linear),
}

/// A norm that the time scales, and a projection to latents.
#[derive(Module, Debug)]
pub(super) struct ZImageFinalLayer {
    // In the order of use.
    /// `[hidden, time]`.
    adaLN_modulation: (Parameterless, Linear),
    /// `[out, hidden]`.
    linear: Linear,
}

impl ZImageTimestepEmbedder {
    pub fn new(width: usize, init: &Init) -> Self {
        let first = Linear::new(CHANNELS, INNER, true, init);
        Self { mlp: (first, Parameterless {}, Linear::new(INNER, width, true, init)) }
    }

    /// `[1, width]` f32.
    pub fn embed(&self, time: f32, device: &Device) -> Tensor<2> {
        let (first, _, last) = &self.mlp;
        last.forward(silu(first.forward(SINUSOIDS.of(&[time], CHANNELS, device))))
    }
}

impl ZImageFinalLayer {
    pub fn new([hidden, out]: [usize; 2], time: usize, init: &Init) -> Self {
        Self {
            adaLN_modulation: (Parameterless {}, Linear::new(time, hidden, true, init)),
            linear: Linear::new(hidden, out, true, init),
        }
    }

    /// `[batch, tokens, hidden]` f32 to `[batch, tokens, out]` f32, in main memory, for the
    /// embedding of a time `[1, time]` f32.
    pub fn forward(&self, x: Tensor<3>, time: Tensor<2>) -> Tensor<3> {
        let x = entered(x, &self.linear.weight);
        let scale = self.adaLN_modulation.1.forward(silu(time)).add_scalar(1.0);
        let scale = scale.squeeze_dim::<1>(0).to_device(&x.device());
        let normed = layer_norm(x, scale, None, EPSILON);
        fetched(self.linear.forward_pixels(normed), &self.linear.weight)
    }
}
