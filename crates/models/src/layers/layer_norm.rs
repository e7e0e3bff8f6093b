//! Layer normalisation.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::entered::entered;
use super::linear::{ones, zeros};
use super::rms_norm::scale;
use crate::Init;

/// `(x - mean(x)) / sqrt(variance(x) + epsilon) · weight + bias` over the last dimension, in f32
/// ([Ba et al., 2016](https://arxiv.org/abs/1607.06450)).
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// `[hidden]`; in f32, bf16 or f16. None where nothing is scaled.
    pub weight: Option<Param<Tensor<1>>>,
    /// `[hidden]`; in f32, bf16 or f16. None where nothing is added.
    pub bias: Option<Param<Tensor<1>>>,
    epsilon: f64,
    width: usize,
    /// Whether the scale is one more than the weight.
    plus_one: bool,
}

impl LayerNorm {
    /// A norm without storage; unless loaded, its weight is 1 and its bias 0.
    pub fn new(hidden: usize, epsilon: f64, init: &Init) -> Self {
        Self {
            weight: Some(ones(hidden, &init.device)),
            bias: Some(zeros(hidden, &init.device)),
            epsilon,
            width: hidden,
            plus_one: false,
        }
    }

    /// The same without a bias.
    pub fn unbiased(self) -> Self {
        Self { bias: None, ..self }
    }

    /// The same without a bias and without a weight.
    pub fn unweighted(self) -> Self {
        Self { weight: None, bias: None, ..self }
    }

    /// The same that scales by one more than the weight; unless loaded, that is 0.
    pub fn plus_one(self, init: &Init) -> Self {
        let weight = Some(zeros(self.width, &init.device));
        Self { weight, plus_one: true, ..self }
    }

    /// Values of the last dimension.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Activations where its block computes, if it has anything there.
    pub(crate) fn entered<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match &self.weight {
            Some(weight) => entered(x, weight),
            None => x,
        }
    }

    fn scale(&self, device: &Device) -> Tensor<1> {
        scale(&self.weight, self.plus_one, self.width, device)
    }

    /// `[.., hidden]` f32 to the same.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let x = self.entered(x);
        let (scale, bias) = (self.scale(&x.device()), self.bias.as_ref().map(Param::val));
        outsize_kernels::layer_norm(x, scale, bias, self.epsilon)
    }

    /// `x + add`, if there is anything to add, and the norm of that; `[.., hidden]` f32 each.
    pub fn after<const D: usize>(
        &self,
        x: Tensor<D>,
        add: Option<Tensor<D>>,
    ) -> (Tensor<D>, Tensor<D>) {
        let x = self.entered(x);
        let Some(add) = add.map(|add| self.entered(add)) else {
            return (x.clone(), self.forward(x));
        };
        let add = add.to_device(&x.device());
        let (scale, bias) = (self.scale(&x.device()), self.bias.as_ref().map(Param::val));
        outsize_kernels::add_layer_norm(x, add, scale, bias, self.epsilon)
    }
}
