//! A gated convolution over the last few tokens.

use burn::module::Module;
use burn::tensor::Tensor;

use super::attention::QueryPositions;
use super::{CausalConv1d, Linear};
use crate::{Activations, Error, Init, KvCache, PassShape};

/// `out(gate · convolution(write · x))`, of which all three are projected: the short convolution of
/// LFM2 ([Liquid AI, 2025](https://arxiv.org/abs/2511.23404)).
#[derive(Module, Debug)]
pub struct ShortConvolution {
    /// `[3 · hidden, hidden]`: what is written, the gate, and what goes through both.
    pub in_proj: Linear,
    /// Over what is written.
    pub conv: CausalConv1d,
    /// `[hidden, hidden]`.
    pub out_proj: Linear,
}

impl ShortConvolution {
    /// A block without storage.
    pub fn new(hidden: usize, taps: usize, bias: bool, init: &Init) -> Self {
        Self {
            in_proj: Linear::new(hidden, 3 * hidden, bias, init),
            conv: CausalConv1d::new(hidden, taps, bias, init),
            out_proj: Linear::new(hidden, hidden, bias, init),
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same. The last inputs in layer `layer` of the cache
    /// become those of the tokens.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        positions: &QueryPositions<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let all = self.in_proj.forward(x);
        let hidden = all.dims()[2] / 3;
        let [write, gate, x] = [0, 1, 2].map(|part| all.clone().narrow(2, part * hidden, hidden));
        drop(all);
        let x = self.conv.forward(write * x, false, positions, cache, layer)?;
        Ok(self.out_proj.forward(x.to_device(&gate.device()) * gate))
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let hidden = self.out_proj.weight.lazy_shape()[0] as u64;
        let taps: u64 = self.conv.weight.lazy_shape().iter().map(|&n| n as u64).product();
        // The norm's output, what is projected, and as much again for the copy of a tiled product
        // or for its parts.
        Activations::values(pass.rows() * 7 * hidden + 2 * taps)
    }
}
