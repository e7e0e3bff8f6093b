//! The MLP of transformers of pictures without a gate.

use burn::module::Module;
use burn::tensor::Tensor;

use super::{Activation, Linear, Modulation, Parameterless, add_share};
use crate::architecture::Init;

/// `net.2(gelu(net.0(x)))`, as `diffusers` has it.
#[derive(Module, Debug)]
pub struct GeluFeedForward {
    net: (GeluProjection, Parameterless, Linear),
}

/// The projection before the function.
#[derive(Module, Debug)]
pub struct GeluProjection {
    /// `[inner, hidden]`.
    proj: Linear,
}

impl GeluFeedForward {
    /// Layers without storage, of which the inner one is so many times as wide.
    pub(crate) fn new(hidden: usize, expansion: usize, init: &Init) -> Self {
        let inner = expansion * hidden;
        let proj = Linear::new(hidden, inner, true, init);
        let down = Linear::new(inner, hidden, true, init);
        Self { net: (GeluProjection { proj }, Parameterless {}, down) }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let (GeluProjection { proj }, _, down) = &self.net;
        down.forward_pixels(Activation::GeluTanh.activate(proj.forward_pixels(x)))
    }

    /// `[batch, tokens, hidden]` f32 and the share of what comes of its norm.
    pub(crate) fn add(
        &self,
        x: Tensor<3>,
        (modulation, share): (Modulation, Tensor<2>),
        epsilon: f64,
    ) -> Tensor<3> {
        let branch = self.forward(modulation.norm(&x, epsilon));
        add_share(x, share, branch)
    }
}
