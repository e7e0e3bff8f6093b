//! Convolutions with a weight that may be streamed.

use std::ops::Range;

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};
use outsize_core::{Access, LowRank, Streamed};
use outsize_kernels::{
    ActivationDtype, ConvolutionWindow, WeightTensor, add_convolution, convolution_into,
    convolution_tiles, is_gpu,
};

use super::entered::entered;

/// The most bytes of f32 that a weight in blocks is unpacked to at once where it is multiplied with
/// pixels; one row may have more.
pub(crate) const UNPACKED_BYTES: u64 = 4 << 20;

/// Rows of a weight that are multiplied at once.
const PANEL: usize = 32;

/// A convolution, and what an adapter adds to it. It is computed where the weight's block is.
pub(super) fn convolved<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<4>,
    weight: &Param<Tensor<D>>,
    bias: Tensor<1>,
    window: ConvolutionWindow,
) -> Tensor<4> {
    let x = entered(x, weight);
    match Streamed::of(weight).and_then(Streamed::low_rank) {
        Some(adapter) => {
            let y = convolved_alone(compute, x.clone(), weight, bias, window);
            adapted(compute, y, x, adapter, window)
        }
        None => convolved_alone(compute, x, weight, bias, window),
    }
}

/// What a convolution of one pixel without a bias gives, in parts of so many outputs each, and what
/// an adapter adds to it.
pub(super) fn convolved_parts(
    compute: ActivationDtype,
    x: Tensor<4>,
    weight: &Param<Tensor<2>>,
    parts: &[usize],
) -> Vec<Tensor<4>> {
    let (x, window) = (entered(x, weight), ConvolutionWindow::One);
    let (device, streamed) = (x.device(), Streamed::of(weight));
    let outputs = weight.lazy_shape()[0];
    let bias = Tensor::zeros([outputs], (&device, DType::F32));
    let mut start = 0;
    let ranges = parts.iter().map(|part| {
        start += part;
        (start - part, *part)
    });
    let ranges: Vec<_> = ranges.collect();
    let adapter = streamed.and_then(Streamed::low_rank);
    let kept = adapter.is_some().then(|| x.clone());
    let made: Vec<_> = match streamed {
        _ if is_gpu(&device) => {
            let all = convolved_alone(compute, x, weight, bias, window);
            ranges.iter().map(|&(start, part)| all.clone().narrow(3, start, part)).collect()
        }
        streamed => match streamed.and_then(tiles) {
            Some(tiles) => convolution_tiles(compute, x, bias, window, parts, tiles),
            None => {
                let whole = std::iter::once((0..outputs, matrix(weight)));
                convolution_tiles(compute, x, bias, window, parts, whole)
            }
        },
    };
    let (Some(adapter), Some(x)) = (adapter, kept) else {
        return made;
    };
    let (inner, up) = lowered(compute, x, adapter, window);
    let parts = made.into_iter().zip(ranges).map(|(y, (start, part))| {
        add_convolution(compute, y, inner.clone(), up.clone().narrow(0, start, part), window)
    });
    parts.collect()
}

/// `y` and a convolution by `down`, of whose values one by `up` is added.
fn adapted(
    compute: ActivationDtype,
    y: Tensor<4>,
    x: Tensor<4>,
    adapter: LowRank,
    window: ConvolutionWindow,
) -> Tensor<4> {
    let (inner, up) = lowered(compute, x, adapter, window);
    add_convolution(compute, y, inner, up, ConvolutionWindow::One)
}

/// A convolution by an adapter's first matrix, scaled, and its second one, beside the picture.
fn lowered(
    compute: ActivationDtype,
    x: Tensor<4>,
    LowRank { down, up, scale, .. }: LowRank,
    window: ConvolutionWindow,
) -> (Tensor<4>, Tensor<2>) {
    let device = x.device();
    let [rank, _] = down.dims();
    let [down, up] = [down, up].map(|part| part.to_device(&device));
    let none = Tensor::zeros([rank], (&device, DType::F32));
    let inner = output_of(&x, window, rank);
    (convolution_into(compute, inner, x, down, none, window, 0) * scale, up)
}

/// A convolution with a weight that is in memory, or that comes tile by tile: the same bits either
/// way, since each output depends on its own row of the weight alone.
fn convolved_alone<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<4>,
    weight: &Param<Tensor<D>>,
    bias: Tensor<1>,
    window: ConvolutionWindow,
) -> Tensor<4> {
    let device = x.device();
    let bias = bias.to_device(&device);
    match Streamed::of(weight) {
        Some(streamed) if is_gpu(&device) => {
            let y = output_of(&x, window, weight.lazy_shape()[0]);
            streamed.tiles_on(&device).fold(y, |y, (outputs, tile)| {
                let bias = bias.clone().narrow(0, outputs.start, outputs.len());
                let tile = tile.into_float(&device);
                convolution_into(compute, y, x.clone(), tile, bias, window, outputs.start)
            })
        }
        streamed => match streamed.and_then(tiles) {
            Some(tiles) => {
                let outputs = weight.lazy_shape()[0];
                convolution_tiles(compute, x, bias, window, &[outputs], tiles).remove(0)
            }
            None => {
                let y = output_of(&x, window, weight.lazy_shape()[0]);
                convolution_into(compute, y, x, matrix(weight), bias, window, 0)
            }
        },
    }
}

/// Rows of a weight, as floats.
type Rows = (Range<usize>, Tensor<2>);

/// A weight that comes tile by tile or is in blocks, part by part; none of one that is in memory as
/// floats.
fn tiles(streamed: &Streamed) -> Option<Box<dyn Iterator<Item = Rows> + '_>> {
    if !streamed.is_resident() && streamed.access() == Access::Tiles {
        let tiles = streamed.tiles();
        return Some(Box::new(tiles.flat_map(|(outputs, tile)| pieces(outputs.start, tile))));
    }
    streamed.is_in_blocks().then(|| Box::new(pieces(0, streamed.weight())) as _)
}

/// Rows of a weight from number `first` on, as floats: in pieces of at most [`UNPACKED_BYTES`] if
/// it is in blocks.
fn pieces(first: usize, rows: WeightTensor) -> impl Iterator<Item = Rows> {
    let [count, columns] = rows.dims();
    let step = match rows {
        WeightTensor::Blocks(_) => match UNPACKED_BYTES as usize / size_of::<f32>() / columns {
            few @ ..PANEL => few.max(1),
            many => many / PANEL * PANEL,
        },
        _ => count.max(1),
    };
    (0..count).step_by(step).map(move |start| {
        let piece = start..(start + step).min(count);
        let floats = rows.slice(piece.clone()).into_float(&Device::flex());
        (first + piece.start..first + piece.end, floats)
    })
}

/// A whole weight, `[out, ..]`, as a matrix `[out, all others]`, without what an adapter adds; on a
/// GPU in f32.
pub(super) fn matrix<const D: usize>(weight: &Param<Tensor<D>>) -> Tensor<2> {
    if let Some(streamed) = Streamed::of(weight).filter(|weight| is_gpu(weight.device())) {
        let tiles = streamed.tiles_on(streamed.device());
        let tiles: Vec<_> = tiles.map(|(_, tile)| tile.into_float(streamed.device())).collect();
        return Tensor::cat(tiles, 0);
    }
    let weight = Streamed::of(weight).map_or_else(|| weight.val(), Streamed::value_alone);
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
