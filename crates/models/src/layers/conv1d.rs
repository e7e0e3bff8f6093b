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
        product_in_out(self.compute, x, &self.weight, Some(&self.bias))
    }

    /// Inputs and outputs.
    pub fn shape(&self) -> [usize; 2] {
        self.weight.lazy_shape().dims()
    }
}

/// `x · W + b` with a weight `[in, out]` and perhaps a bias `[out]`.
pub(super) fn product_in_out<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weight: &Param<Tensor<2>>,
    bias: Option<&Param<Tensor<1>>>,
) -> Tensor<D> {
    let x = entered(x, weight);
    let mut dims = x.dims();
    dims[D - 1] = weight.lazy_shape()[1];
    let y = match bias {
        Some(bias) => {
            let bias = bias.val().cast(DType::F32).to_device(&x.device());
            bias.unsqueeze::<D>().expand(dims)
        }
        None => Tensor::zeros(dims, (&x.device(), DType::F32)),
    };
    let add = |y, x, (rows, tile): (std::ops::Range<usize>, _)| {
        add_linear_in_out(compute, y, x, rows.start, tile)
    };
    match Streamed::of(weight) {
        Some(streamed) if is_gpu(&x.device()) => {
            streamed.tiles_on(&x.device()).fold(y, |y, tile| add(y, x.clone(), tile))
        }
        // One tile at a time: the next one may need its memory.
        Some(streamed) if !streamed.is_resident() && streamed.access() == Access::Tiles => {
            streamed.tiles().fold(y, |y, tile| add(y, x.clone(), tile))
        }
        _ => add_linear_in_out(compute, y, x, 0, whole(weight)),
    }
}
