//! Layer normalisation.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::entered::entered;
use super::linear::{ones, zeros};
use crate::Init;

/// `(x - mean(x)) / sqrt(variance(x) + epsilon) · weight + bias` over the last dimension, in f32
/// ([Ba et al., 2016](https://arxiv.org/abs/1607.06450)).
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// `[hidden]`; in f32, bf16 or f16.
    pub weight: Param<Tensor<1>>,
    /// `[hidden]`; in f32, bf16 or f16. None where nothing is added.
    pub bias: Option<Param<Tensor<1>>>,
    epsilon: f64,
}

impl LayerNorm {
    /// A norm without storage; unless loaded, its weight is 1 and its bias 0.
    pub fn new(hidden: usize, epsilon: f64, init: &Init) -> Self {
        Self {
            weight: ones(hidden, &init.device),
            bias: Some(zeros(hidden, &init.device)),
            epsilon,
        }
    }

    /// The same without a bias.
    pub fn unbiased(self) -> Self {
        Self { bias: None, ..self }
    }

    /// `[.., hidden]` f32 to the same.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let x = entered(x, &self.weight);
        let bias = self.bias.as_ref().map(Param::val);
        outsize_kernels::layer_norm(x, self.weight.val(), bias, self.epsilon)
    }

    /// `x + add`, if there is anything to add, and the norm of that; `[.., hidden]` f32 each.
    pub fn after<const D: usize>(
        &self,
        x: Tensor<D>,
        add: Option<Tensor<D>>,
    ) -> (Tensor<D>, Tensor<D>) {
        let x = entered(x, &self.weight);
        let Some(add) = add.map(|add| entered(add, &self.weight)) else {
            return (x.clone(), self.forward(x));
        };
        let bias = self.bias.as_ref().map(Param::val);
        outsize_kernels::add_layer_norm(x, add, self.weight.val(), bias, self.epsilon)
    }
}
