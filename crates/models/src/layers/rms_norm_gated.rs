//! The norm of what linear attention makes, and its gate.

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Tensor};

use super::linear::ones;
use super::{Activation, entered, unit_rms_norm};
use crate::Init;

/// A norm, times SiLU or the sigmoid of a gate; or the norm of what is gated.
#[derive(Module, Debug)]
pub struct RmsNormGated {
    /// `[width]`; in f32, bf16 or f16.
    pub weight: Param<Tensor<1>>,
    epsilon: f64,
    /// Parts of the width that are normed by themselves.
    groups: usize,
    gates_first: bool,
    is_sigmoid: bool,
}

impl RmsNormGated {
    /// A norm without storage, gated behind it.
    pub fn new(width: usize, epsilon: f64, init: &Init) -> Self {
        Self {
            weight: ones(width, &init.device),
            epsilon,
            groups: 1,
            gates_first: false,
            is_sigmoid: false,
        }
    }

    /// The same of so many parts by themselves.
    pub fn in_groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// The same of what is gated.
    pub fn behind_gate(self) -> Self {
        Self { gates_first: true, ..self }
    }

    /// The same gated by the sigmoid, if it is so, rather than by SiLU.
    pub fn by_sigmoid(self, is_sigmoid: bool) -> Self {
        Self { is_sigmoid, ..self }
    }

    /// `[.., width]` f32 each to the same.
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>, gate: Tensor<D>) -> Tensor<D> {
        let (x, gate) = (entered(x, &self.weight), entered(gate, &self.weight));
        match self.gates_first {
            true => self.normed(silu_gated(x, gate)),
            false if self.is_sigmoid => self.normed(x) * sigmoid(gate),
            false => silu_gated(self.normed(x), gate),
        }
    }

    fn normed<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if self.groups == 1 {
            return outsize_kernels::rms_norm(x, self.weight.val(), self.epsilon);
        }
        let dims = x.dims();
        let [rows, width] = [dims[..D - 1].iter().product(), dims[D - 1]];
        let x = x.reshape([rows, self.groups, width / self.groups]);
        let x = unit_rms_norm(x, self.epsilon).reshape(dims);
        let weight = self.weight.val().cast(DType::F32).to_device(&x.device());
        x * weight.unsqueeze()
    }
}

/// `x` times SiLU of a gate of its shape.
pub(crate) fn silu_gated<const D: usize>(x: Tensor<D>, gate: Tensor<D>) -> Tensor<D> {
    Activation::Silu.gate(gate, x)
}
