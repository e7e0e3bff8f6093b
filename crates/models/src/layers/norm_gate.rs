//! A gate behind a norm.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::sigmoid;

use super::{Activation, Linear};
use crate::{Activations, Init, PassShape};

/// Multiplies what a norm gives by the sigmoid of what two layers with few values between them make
/// of it: `x · σ(fc2(silu(fc1(x))))`, as in A.X-K2.
#[derive(Module, Debug)]
pub struct NormGate {
    /// `[rank, hidden]`.
    pub fc1: Linear,
    /// `[hidden, rank]`.
    pub fc2: Linear,
}

impl NormGate {
    /// A gate without storage.
    pub fn new(hidden: usize, rank: usize, init: &Init) -> Self {
        let linear = |inputs, outputs| Linear::new(inputs, outputs, false, init);
        Self { fc1: linear(hidden, rank), fc2: linear(rank, hidden) }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let inner = Activation::Silu.activate(self.fc1.forward(x.clone()));
        let gate = sigmoid(self.fc2.forward(inner));
        let x = x.to_device(&gate.device());
        x * gate
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let [rank, hidden] = self.fc1.widths().map(|n| n as u64);
        // What it takes, what the second layer gives with the copy of a tiled product or with its
        // sigmoid, and the product of both; or the inner values with such a copy.
        Activations::values(pass.rows() * (4 * hidden + 3 * rank))
    }
}
