//! The gated feed-forward block.

use burn::module::Module;
use burn::tensor::Tensor;

use super::{Activation, Linear, entered, linear};
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
    #[module(skip)]
    clamp: Option<MlpClamp>,
}

/// What a gate is clamped to from above, and what it multiplies either way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MlpClamp {
    /// Before the function of the gate.
    Before(f64),
    /// Behind it.
    Behind(f64),
    /// Before it, and what it multiplies is one more.
    BeforeAndOneMore(f64),
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
            clamp: None,
        }
    }

    /// The same with its gate and what it multiplies clamped, if they are.
    pub fn clamped(self, clamp: Option<MlpClamp>) -> Self {
        Self { clamp, ..self }
    }

    /// What it holds at most, besides the residual stream.
    pub fn activations(&self, pass: &PassShape) -> Activations {
        let gated = gated_activations(&self.gate_proj, pass);
        match self.clamp {
            // Clamped by Burn's own operations.
            Some(_) => {
                let [inner, _]: [usize; 2] = self.gate_proj.weight.lazy_shape().dims();
                gated.with_unpooled(pass.rows() * 3 * inner as u64)
            }
            None => gated,
        }
    }

    /// `[batch, tokens, hidden]` f32 to the same.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let layers = [&self.gate_proj, &self.up_proj];
        let Some(clamp) = self.clamp else {
            return gated_down(layers, &self.down_proj, self.activation, x);
        };
        let x = entered(x, &self.gate_proj.weight);
        let [gate, up] = linear::two(layers, x);
        let (gate, limit) = match clamp {
            MlpClamp::Before(limit) | MlpClamp::BeforeAndOneMore(limit) => {
                (self.activation.activate(gate.clamp_max(limit)), limit)
            }
            MlpClamp::Behind(limit) => (self.activation.activate(gate).clamp_max(limit), limit),
        };
        let up = up.clamp(-limit, limit);
        let up = match clamp {
            MlpClamp::BeforeAndOneMore(_) => up + 1.0,
            MlpClamp::Before(_) | MlpClamp::Behind(_) => up,
        };
        self.down_proj.forward(gate * up)
    }

    /// The same of many rows, not clamped: with layers as [convolutions of one
    /// pixel](Linear::forward_pixels).
    pub(crate) fn forward_pixels(&self, x: Tensor<3>) -> Tensor<3> {
        let gate = self.gate_proj.forward_pixels(x.clone());
        let inner = self.activation.gate(gate, self.up_proj.forward_pixels(x));
        self.down_proj.forward_pixels(inner)
    }
}

/// What a gated block of this gate holds at most, besides the residual stream.
pub(crate) fn gated_activations(gate: &Linear, pass: &PassShape) -> Activations {
    let [inner, hidden]: [usize; 2] = gate.weight.lazy_shape().dims();
    // The gate and its sigmoid, or the gate and a tiled or biased product with its copy; then the
    // result beside the product.
    Activations::values(pass.rows() * (hidden as u64 + 3 * inner as u64)).with_unpooled(0)
}

/// `down(act(gate(x)) · up(x))`: `[batch, tokens, hidden]` f32 to the same.
pub(crate) fn gated_down(
    [gate, up]: [&Linear; 2],
    down: &Linear,
    act: Activation,
    x: Tensor<3>,
) -> Tensor<3> {
    let x = entered(x, &gate.weight);
    match linear::is_one_mlp([gate, up, down], &x) {
        true => linear::gated_mlp([gate, up, down], act.kernel(), x),
        false => down.forward(gated([gate, up], act, x)),
    }
}

/// `act(gate(x)) · up(x)`: `[batch, tokens, hidden]` f32 to `[batch, tokens, inner]`.
fn gated([gate, up]: [&Linear; 2], act: Activation, x: Tensor<3>) -> Tensor<3> {
    let kernel = act.kernel();
    let x = entered(x, &gate.weight);
    if let Some(inner) = linear::gated([gate, up], kernel, &x) {
        return inner;
    }
    let both = linear::both([gate, up], &x).or_else(|| linear::interleaved([gate, up], &x));
    if let Some([gate, up]) = both {
        return act.gate(gate, up);
    }
    let gate = gate.forward(x.clone());
    if outsize_kernels::has_gate(&gate.device(), kernel) {
        return outsize_kernels::gated(kernel, gate, up.forward(x));
    }
    // Gated before the other product is made: at most two tensors of the inner width are alive at
    // once.
    act.apply(gate) * up.forward(x)
}
