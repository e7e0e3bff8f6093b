//! The gated feed-forward block.

use burn::module::Module;
use burn::tensor::{Device, Tensor, activation::silu};

use crate::Linear;

/// SwiGLU: `down(silu(gate(x)) · up(x))`, after [Shazeer, 2020](https://arxiv.org/abs/2002.05202).
#[derive(Module, Debug)]
pub struct Mlp {
    /// `[intermediate, hidden]`.
    pub gate_proj: Linear,
    /// `[intermediate, hidden]`.
    pub up_proj: Linear,
    /// `[hidden, intermediate]`.
    pub down_proj: Linear,
}

impl Mlp {
    /// A block without storage.
    pub fn new(hidden: usize, intermediate: usize, device: &Device) -> Self {
        Self {
            gate_proj: Linear::new(hidden, intermediate, device),
            up_proj: Linear::new(hidden, intermediate, device),
            down_proj: Linear::new(intermediate, hidden, device),
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        // Gated before the other product is made: at most two tensors of the inner width are alive at once.
        let gate = silu(self.gate_proj.forward(x.clone()));
        self.down_proj.forward(gate * self.up_proj.forward(x))
    }
}
