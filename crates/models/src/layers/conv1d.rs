//! GPT-2's linear layer, whose weight is stored the other way round.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use outsize_kernels::ActivationDtype;

use super::linear::{matrix, product_in_out, zeros};
use crate::Init;

/// `y = x · W + b`, weight and bias kept as stored: in bf16, f16 or f32.
#[derive(Module, Debug)]
pub struct Conv1d {
    /// `[in, out]`.
    pub weight: Param<Tensor<2>>,
    /// `[out]`.
    pub bias: Param<Tensor<1>>,
    #[module(skip)]
    pub(crate) compute: ActivationDtype,
}

impl Conv1d {
    /// A layer without storage; unless loaded, its weight is drawn from a normal distribution of
    /// deviation 0.02, and its bias is 0.
    pub fn new(inputs: usize, outputs: usize, init: &Init) -> Self {
        Self {
            weight: matrix([inputs, outputs], &init.device),
            bias: zeros(outputs, &init.device),
            compute: init.compute,
        }
    }

    /// `[.., in]` f32 to `[.., out]` f32: the same bits whether the weight is in memory or comes
    /// tile by tile.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        product_in_out(self.compute, x, &self.weight, Some(&self.bias))
    }

    /// Inputs and outputs.
    pub fn shape(&self) -> [usize; 2] {
        self.weight.lazy_shape().dims()
    }
}
