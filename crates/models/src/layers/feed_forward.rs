//! The feed-forward block of two layers.

use burn::module::Module;
use burn::tensor::Tensor;

use super::{Activation, Linear};
use crate::{Activations, Init, PassShape};

/// `out(act(in(x)))`, with the names of GPT-NeoX, BLOOM and Falcon.
#[derive(Module, Debug)]
pub struct FeedForward {
    /// `[inner, hidden]`.
    pub dense_h_to_4h: Linear,
    /// `[hidden, inner]`.
    pub dense_4h_to_h: Linear,
    #[module(skip)]
    activation: Activation,
}

impl FeedForward {
    /// A block without storage.
    pub fn new(
        hidden: usize,
        inner: usize,
        bias: bool,
        activation: Activation,
        init: &Init,
    ) -> Self {
        Self {
            dense_h_to_4h: Linear::new(hidden, inner, bias, init),
            dense_4h_to_h: Linear::new(inner, hidden, bias, init),
            activation,
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        two_layers([&self.dense_h_to_4h, &self.dense_4h_to_h], self.activation, x)
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        two_layer_activations(&self.dense_h_to_4h, pass)
    }
}

/// `out(act(in(x)))`: `[batch, tokens, hidden]` f32 to the same.
pub(crate) fn two_layers([first, last]: [&Linear; 2], act: Activation, x: Tensor<3>) -> Tensor<3> {
    last.forward(act.activate(first.forward(x)))
}

/// The same of many rows: with layers as [convolutions of one pixel](Linear::forward_pixels).
pub(crate) fn two_layers_of_pixels(
    [first, last]: [&Linear; 2],
    act: Activation,
    x: Tensor<3>,
) -> Tensor<3> {
    last.forward_pixels(act.activate(first.forward_pixels(x)))
}

/// What [`two_layers`] holds at most, besides the residual stream.
pub(crate) fn two_layer_activations(first: &Linear, pass: &PassShape) -> Activations {
    let [inner, hidden]: [usize; 2] = first.weight.lazy_shape().dims();
    // The norm's output or the result, and the inner layer with copies of it; or the result with
    // copies of its own.
    let most = (hidden + 3 * inner).max(inner + 3 * hidden);
    Activations::values(pass.rows() * most as u64).with_unpooled(0)
}
