//! Activations on their way to and from where a block computes.

use burn::module::Param;
use burn::tensor::Tensor;
use outsize_core::Streamed;

/// Activations where the block of a parameter computes.
pub(crate) fn entered<const D: usize, const N: usize>(
    x: Tensor<D>,
    parameter: &Param<Tensor<N>>,
) -> Tensor<D> {
    match Streamed::of(parameter) {
        Some(streamed) => streamed.entered(x),
        None => x,
    }
}

/// What a layer made of one sequence, in main memory: `[1, tokens, out]` to `[tokens, out]`.
pub(crate) fn fetched_rows<const N: usize>(
    x: Tensor<3>,
    parameter: &Param<Tensor<N>>,
) -> Tensor<2> {
    fetched(x, parameter).squeeze_dim(0)
}

/// What the block of a parameter made, in main memory.
pub(crate) fn fetched<const D: usize, const N: usize>(
    x: Tensor<D>,
    parameter: &Param<Tensor<N>>,
) -> Tensor<D> {
    match Streamed::of(parameter) {
        Some(streamed) => streamed.fetched(x),
        None => x,
    }
}
