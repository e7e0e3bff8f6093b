//! GPT-2's linear layer, whose weight is stored the other way round.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use outsize_core::{Access, Streamed};
use outsize_kernels::{ActivationDtype, add_linear_in_out, is_gpu};

use super::entered::entered;
use super::linear::{matrix, whole, zeros};
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
        let x = entered(x, &self.weight);
        let bias = self.bias.val().cast(DType::F32).to_device(&x.device());
        let mut dims = x.dims();
        dims[D - 1] = bias.dims()[0];
        let y = bias.unsqueeze::<D>().expand(dims);
        match Streamed::of(&self.weight) {
            Some(streamed) if is_gpu(&x.device()) => {
                streamed.tiles_on(&x.device()).fold(y, |y, (rows, tile)| {
                    add_linear_in_out(self.compute, y, x.clone(), rows.start, tile)
                })
            }
            Some(streamed) if !streamed.is_resident() && streamed.access() == Access::Tiles => {
                // One tile at a time: the next one may need its memory.
                streamed.tiles().fold(y, |y, (rows, tile)| {
                    add_linear_in_out(self.compute, y, x.clone(), rows.start, tile)
                })
            }
            _ => add_linear_in_out(self.compute, y, x, 0, whole(&self.weight)),
        }
    }

    /// Inputs and outputs.
    pub fn shape(&self) -> [usize; 2] {
        self.weight.lazy_shape().dims()
    }
}
