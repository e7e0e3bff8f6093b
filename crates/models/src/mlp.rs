//! The gated feed-forward block.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::{Activation, Linear, ModelConfig, linear};

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
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, config.mlp_bias, device);
        Self {
            gate_proj: linear(hidden, inner),
            up_proj: linear(hidden, inner),
            down_proj: linear(inner, hidden),
            activation: config.activation,
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let kernel = self.activation.gate();
        let both = [&self.gate_proj, &self.up_proj];
        if let Some(inner) = kernel.and_then(|kernel| linear::gated(both, kernel, &x)) {
            return self.down_proj.forward(inner);
        }
        let gate = self.gate_proj.forward(x.clone());
        if let Some(kernel) = kernel.filter(|_| outsize_kernels::is_flex(&gate.device())) {
            let up = self.up_proj.forward(x);
            return self
                .down_proj
                .forward(outsize_kernels::gated(kernel, gate, up));
        }
        // Gated before the other product is made: at most two tensors of the inner width are alive at once.
        let gate = self.activation.apply(gate);
        self.down_proj.forward(gate * self.up_proj.forward(x))
    }
}
