//! The gated feed-forward block.

use burn::module::Module;
use burn::tensor::Tensor;

use super::{Activation, Linear, linear};
use crate::{Activations, Init, PassShape};

/// `down(act(gate(x)) · up(x))`, after [Shazeer, 2020](https://arxiv.org/abs/2002.05202).
#[derive(Module, Debug)]
pub struct Mlp {
    /// `[intermediate, hidden]`.
    pub gate_proj: Linear,
    /// `[intermediate, hidden]`.
    pub up_proj: Linear,
    /// `[hidden, intermediate]`.
    pub down_proj: Linear,
    #[module(skip)]
    activation: Activation,
}

impl Mlp {
    /// A block without storage.
    pub fn new(
        hidden: usize,
        inner: usize,
        bias: bool,
        activation: Activation,
        init: &Init,
    ) -> Self {
        let linear = |inputs, outputs| Linear::new(inputs, outputs, bias, init);
        Self {
            gate_proj: linear(hidden, inner),
            up_proj: linear(hidden, inner),
            down_proj: linear(inner, hidden),
            activation,
        }
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let [inner, hidden]: [usize; 2] = self.gate_proj.weight.lazy_shape().dims();
        // The gate and its sigmoid, or the gate and a tiled or biased product with its copy; then the result beside the
        // product.
        Activations::values(pass.rows() * (hidden as u64 + 3 * inner as u64))
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let kernel = self.activation.kernel();
        let both = [&self.gate_proj, &self.up_proj];
        if let Some(inner) = linear::gated(both, kernel, &x) {
            return self.down_proj.forward(inner);
        }
        let gate = self.gate_proj.forward(x.clone());
        if outsize_kernels::is_flex(&gate.device()) {
            let up = self.up_proj.forward(x);
            return self.down_proj.forward(outsize_kernels::gated(kernel, gate, up));
        }
        // Gated before the other product is made: at most two tensors of the inner width are alive at once.
        let gate = self.activation.apply(gate);
        self.down_proj.forward(gate * self.up_proj.forward(x))
    }
}
