//! The gated feed-forward block whose gate is one weight with what it lets through.

use burn::module::Module;
use burn::tensor::Tensor;

use super::{Activation, Linear};
use crate::{Activations, Init, PassShape};

/// `down(act(gate) · up)` of one product for both, as in Phi-3.
#[derive(Module, Debug)]
pub struct FusedMlp {
    /// `[2 · intermediate, hidden]`: the gate, then what goes through it.
    pub gate_up_proj: Linear,
    /// `[hidden, intermediate]`.
    pub down_proj: Linear,
    #[module(skip)]
    activation: Activation,
}

impl FusedMlp {
    /// A block without storage and without biases.
    pub fn new(hidden: usize, inner: usize, activation: Activation, init: &Init) -> Self {
        Self {
            gate_up_proj: Linear::new(hidden, 2 * inner, false, init),
            down_proj: Linear::new(inner, hidden, false, init),
            activation,
        }
    }

    /// The same whose weights are stored the other way round.
    pub fn in_out(hidden: usize, inner: usize, activation: Activation, init: &Init) -> Self {
        Self {
            gate_up_proj: Linear::in_out(hidden, 2 * inner, false, init),
            down_proj: Linear::in_out(inner, hidden, false, init),
            activation,
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        fused([&self.gate_up_proj, &self.down_proj], self.activation, x)
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        fused_activations(&self.gate_up_proj, &self.down_proj, pass)
    }
}

/// `last(act(gate) · up)` of one product for both: `[batch, tokens, hidden]` f32 to the same.
pub(crate) fn fused([first, last]: [&Linear; 2], act: Activation, x: Tensor<3>) -> Tensor<3> {
    let both = first.forward(x);
    let inner = both.dims()[2] / 2;
    let [gate, up] = [0, inner].map(|start| both.clone().narrow(2, start, inner));
    drop(both);
    last.forward(act.gate(gate, up))
}

/// What that holds at most, besides the residual stream.
pub(crate) fn fused_activations(first: &Linear, last: &Linear, pass: &PassShape) -> Activations {
    let [hidden, inner] = last.widths();
    // The norm's output and the product with the copy of a tiled one; or the product with copies of
    // both halves; or what came through, the result and its copy.
    let inner = 4 * inner as u64;
    // What is stored the other way round is multiplied into a tensor of Burn's.
    let unpooled = if first.is_in_out() { inner } else { inner / 2 };
    Activations::values(pass.rows() * (hidden as u64 + inner).max(2 * hidden as u64 + inner / 4))
        .with_unpooled(pass.rows() * unpooled)
}
