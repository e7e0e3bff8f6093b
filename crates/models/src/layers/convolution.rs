//! Convolutions with a weight that may be streamed.

use burn::module::Param;
use burn::tensor::Tensor;
use outsize_core::{Access, Streamed};
use outsize_kernels::{ActivationDtype, ConvolutionWindow, convolution_into, is_gpu};

use super::entered::entered;

/// A convolution with a weight that is in memory, or that comes tile by tile: the same bits either way, since each output
/// depends on its own row of the weight alone. It is computed where the weight's block is.
pub(super) fn convolved<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<4>,
    weight: &Param<Tensor<D>>,
    bias: Tensor<1>,
    window: ConvolutionWindow,
) -> Tensor<4> {
    let x = entered(x, weight);
    let device = x.device();
    let bias = bias.to_device(&device);
    let y = output_of(&x, window, weight.lazy_shape()[0]);
    match Streamed::of(weight) {
        Some(streamed) if is_gpu(&device) => {
            streamed.tiles_on(&device).fold(y, |y, (outputs, tile)| {
                let bias = bias.clone().narrow(0, outputs.start, outputs.len());
                let tile = tile.into_float(&device);
                convolution_into(compute, y, x.clone(), tile, bias, window, outputs.start)
            })
        }
        Some(streamed) if !streamed.is_resident() && streamed.access() == Access::Tiles => {
            // One tile at a time: the next one may need its memory.
            streamed.tiles().fold(y, |y, (outputs, tile)| {
                let bias = bias.clone().narrow(0, outputs.start, outputs.len());
                let tile = tile.into_float(&device);
                convolution_into(compute, y, x.clone(), tile, bias, window, outputs.start)
            })
        }
        _ => convolution_into(compute, y, x, matrix(weight), bias, window, 0),
    }
}

/// A whole weight, `[out, ..]`, as a matrix `[out, all others]`; on a GPU in f32.
pub(super) fn matrix<const D: usize>(weight: &Param<Tensor<D>>) -> Tensor<2> {
    if let Some(streamed) = Streamed::of(weight).filter(|weight| is_gpu(weight.device())) {
        let tiles = streamed.tiles_on(streamed.device());
        let tiles: Vec<_> = tiles.map(|(_, tile)| tile.into_float(streamed.device())).collect();
        return Tensor::cat(tiles, 0);
    }
    let weight = weight.val();
    let outputs = weight.dims()[0];
    let inputs = weight.dims()[1..].iter().product::<usize>();
    weight.reshape([outputs, inputs])
}

/// A tensor for so many values of each output of a picture.
pub(super) fn output_of(x: &Tensor<4>, window: ConvolutionWindow, outputs: usize) -> Tensor<4> {
    let [batch, rows, columns, _] = x.dims();
    let [rows, columns] = window.output(rows, columns);
    outsize_kernels::unwritten([batch, rows, columns, outputs], &x.device())
}
