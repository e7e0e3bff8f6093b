//! What models of pictures do besides matmuls and attention, over Burn tensors. Pictures are
//! `[batch, rows, columns, channels]`.

use std::ops::Range;

use burn::backend::{Dispatch, Flex};
use burn::tensor::activation::{gelu, silu, softmax};
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::device::{is_flex, is_gpu, is_stored};
use crate::group_norm::{GroupSums, Moments};
use crate::matmul::ConvolutionWindow;
use crate::picture_extension::{self, PictureOps};
use crate::{ActivationDtype, ActivationFunction, buffer};

/// Bound on what is worked on at once where [`attend_pixels`] and [`gate_halves`] are composed of
/// Burn's operations, in bytes: scores and rows. One row may be larger.
const PIECE_BYTES: usize = 8 << 20;

/// Whether these are activations that this crate's operations without a backward pass take.
fn is_plain<const D: usize>(x: &Tensor<D>) -> bool {
    is_flex(&x.device()) && x.dtype() == DType::F32
}

/// Whether these are weights that they take.
fn is_stored_here<const D: usize>(weight: &Tensor<D>) -> bool {
    is_flex(&weight.device()) && is_stored(weight.dtype())
}

/// An f32 tensor whose values are to be written, all of them, by [`convolution_into`].
pub fn unwritten(dims: [usize; 4], device: &Device) -> Tensor<4> {
    if is_gpu(device) {
        return Tensor::empty(dims, (device, DType::F32));
    }
    let data = buffer::data(buffer::take(dims.iter().product()), dims);
    Tensor::from_data(data, (device, DType::F32))
}

/// Writes the outputs of a convolution to `y [batch, rows, columns, n]`, from output `start` on:
/// those that `weight [outputs, channels · taps]`, rows of a weight `[n, channels, 3, 3]` or
/// `[n, channels]` as a checkpoint stores it, gives of `x`, with `bias [outputs]` added.
///
/// On Flex, with `x` and `y` in f32 and the weight in bf16, f16 or f32, this is [one
/// operation](crate::matmul::PackedPictures::convolve_into), in place where `y` has no other owner.
/// On a GPU it is Burn's matmul of what some pixels see at a time; elsewhere Burn's own
/// convolution.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn convolution_into(
    compute: ActivationDtype,
    y: Tensor<4>,
    x: Tensor<4>,
    weight: Tensor<2>,
    bias: Tensor<1>,
    window: ConvolutionWindow,
    start: usize,
) -> Tensor<4> {
    if is_plain(&x) && is_plain(&y) && is_stored_here(&weight) && is_stored_here(&bias) {
        return Tensor::from_dispatch(Dispatch::convolution_into(
            y.into_dispatch(),
            x.into_dispatch(),
            weight.into_dispatch(),
            bias.into_dispatch(),
            window,
            Some(start),
            compute,
        ));
    }
    #[cfg(feature = "gpu")]
    if let (true, ConvolutionWindow::Three { stride, above, .. }) = (is_gpu(&x.device()), window) {
        let (weight, bias) = (weight.cast(DType::F32), bias.cast(DType::F32));
        return crate::gpu::convolution(y, x, weight, bias, (stride, above), start);
    }
    let ([batch, _, _, channels], [outputs, _], dtype) = (x.dims(), weight.dims(), x.dtype());
    let (side, stride, around) = match window {
        ConvolutionWindow::One => (1, 1, [(0, 0), (0, 0)]),
        ConvolutionWindow::Three { stride, above, below } => {
            (3, stride, [(usize::from(above), usize::from(below)), (1, 1)])
        }
    };
    let weight = weight.cast(dtype).reshape([outputs, channels, side, side]);
    let options = ConvOptions { stride: [stride; 2], padding: around, dilation: [1, 1], groups: 1 };
    let x = x.permute([0, 3, 1, 2]);
    let found = conv2d(x, weight, Some(bias.cast(dtype)), options).permute([0, 2, 3, 1]);
    let [_, height, width, n] = y.dims();
    if outputs == n {
        return found;
    }
    y.slice_assign([0..batch, 0..height, 0..width, start..start + outputs], found)
}

/// [`convolution_into`] tensors of their own by a weight that comes tile by tile, rows after rows,
/// each with which rows these are: the bits that the whole weight gives. Each of the tensors has so
/// many of the outputs as `parts` says, which are all of them. The pictures are rounded and packed
/// once; one tile is held at a time.
///
/// # Panics
///
/// If sizes do not fit each other, or if the tiles are not all rows of the weight in order.
pub fn convolution_tiles(
    compute: ActivationDtype,
    x: Tensor<4>,
    bias: Tensor<1>,
    window: ConvolutionWindow,
    parts: &[usize],
    tiles: impl Iterator<Item = (Range<usize>, Tensor<2>)>,
) -> Vec<Tensor<4>> {
    let device = x.device();
    if is_plain(&x) {
        let on_flex = "a tensor on Flex is one of Flex";
        let bias = bias.try_into_primitive::<Flex>().expect(on_flex);
        let x = x.try_into_primitive::<Flex>().expect(on_flex);
        let tiles = tiles.map(|(outputs, tile)| {
            (
                outputs,
                tile.try_into_primitive::<Flex>()
                    .expect("activations and weights must be on one device"),
            )
        });
        let made = picture_extension::convolution_tiles(compute, x, bias, window, parts, tiles);
        return made.into_iter().map(Tensor::from_primitive::<Flex>).collect();
    }
    let ([batch, rows, columns, _], [n]) = (x.dims(), bias.dims());
    let [rows, columns] = window.output(rows, columns);
    let y = unwritten([batch, rows, columns, n], &device);
    let all = tiles.fold(y, |y, (outputs, tile)| {
        let bias = bias.clone().narrow(0, outputs.start, outputs.len());
        convolution_into(compute, y, x.clone(), tile, bias, window, outputs.start)
    });
    let mut start = 0;
    let parts = parts.iter().map(|part| {
        start += part;
        all.clone().narrow(3, start - part, *part)
    });
    parts.collect()
}

/// Adds all outputs of a convolution without a bias to `y [batch, rows, columns, outputs]`:
/// otherwise as [`convolution_into`].
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn add_convolution(
    compute: ActivationDtype,
    y: Tensor<4>,
    x: Tensor<4>,
    weight: Tensor<2>,
    window: ConvolutionWindow,
) -> Tensor<4> {
    let device = x.device();
    let bias = Tensor::zeros([weight.dims()[0]], (&device, DType::F32));
    if is_plain(&x) && is_plain(&y) && is_stored_here(&weight) {
        return Tensor::from_dispatch(Dispatch::convolution_into(
            y.into_dispatch(),
            x.into_dispatch(),
            weight.into_dispatch(),
            bias.into_dispatch(),
            window,
            None,
            compute,
        ));
    }
    let more = unwritten(y.dims(), &device);
    y + convolution_into(compute, more, x, weight, bias, window, 0)
}

/// Sums over the rows of a picture for group normalisation, added to those `before`, of the rows
/// above.
///
/// # Panics
///
/// If the groups do not divide the channels, or if `before` is of other pictures.
pub fn group_sums(before: &mut GroupSums, x: Tensor<4>, groups: usize) {
    let [batch, rows, columns, channels] = x.dims();
    let width = channels / groups;
    let sums = if is_plain(&x) {
        Tensor::<1>::from_dispatch(Dispatch::group_row_sums(x.into_dispatch(), groups))
    } else {
        let x = x.cast(DType::F32).reshape([batch * rows, columns, groups, width]);
        let both = [x.clone(), x.clone() * x].map(|x| {
            let sums = x.sum_dim(1).sum_dim(3);
            sums.reshape([batch * rows * groups, 1])
        });
        Tensor::cat(both.to_vec(), 1).reshape([batch * rows * groups * 2])
    };
    let sums: Vec<f64> = sums.into_data().iter::<f64>().collect();
    before.add(&sums, batch, groups, columns * width);
}

/// Group normalisation with given [moments](GroupSums::moments) of each picture and group, `weight`
/// and `bias` being `[channels]`; and `y · sigmoid(y)` of that, if asked for. On Flex it is [one
/// operation](mod@crate::group_norm), with no backward pass.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn normalize_groups(
    x: Tensor<4>,
    moments: Vec<Moments>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    apply_silu: bool,
) -> Tensor<4> {
    if is_plain(&x) && is_stored_here(&weight) && is_stored_here(&bias) {
        return Tensor::from_dispatch(Dispatch::normalize_by_group(
            x.into_dispatch(),
            moments,
            weight.into_dispatch(),
            bias.into_dispatch(),
            apply_silu,
        ));
    }
    let ([batch, rows, columns, channels], device) = (x.dims(), x.device());
    let groups = moments.len() / batch;
    let part = |at: usize| {
        let values: Vec<f32> = moments.iter().map(|moments| moments[at]).collect();
        let data = TensorData::new(values, [batch, 1, groups, 1]);
        Tensor::<4>::from_data(data, (&device, DType::F32))
    };
    let grouped = x.reshape([batch, rows * columns, groups, channels / groups]);
    let normed = ((grouped - part(0)) * part(1)).reshape([batch, rows, columns, channels]);
    scaled(normed, weight, bias, apply_silu)
}

/// Group normalisation over all of a picture, as [`normalize_groups`] of its own
/// [sums](group_sums). On devices other than Flex, and on autodiff ones, it is composed of Burn's
/// operations.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn group_norm(
    x: Tensor<4>,
    groups: usize,
    (weight, bias): (Tensor<1>, Tensor<1>),
    epsilon: f64,
    apply_silu: bool,
) -> Tensor<4> {
    if is_flex(&x.device()) {
        let mut sums = GroupSums::default();
        group_sums(&mut sums, x.clone(), groups);
        return normalize_groups(x, sums.moments(epsilon), weight, bias, apply_silu);
    }
    let [batch, rows, columns, channels] = x.dims();
    let x = x.reshape([batch, rows * columns, groups, channels / groups]);
    let x = x.clone() - x.mean_dim(1).mean_dim(3);
    let variance = (x.clone() * x.clone()).mean_dim(1).mean_dim(3);
    let normed =
        (x * (variance + epsilon).sqrt().recip()).reshape([batch, rows, columns, channels]);
    scaled(normed, weight, bias, apply_silu)
}

fn scaled(x: Tensor<4>, weight: Tensor<1>, bias: Tensor<1>, apply_silu: bool) -> Tensor<4> {
    let (dtype, device) = (x.dtype(), x.device());
    let [weight, bias] = [weight, bias].map(|part| part.cast(dtype).to_device(&device).unsqueeze());
    let y = x * weight + bias;
    if apply_silu { silu(y) } else { y }
}

/// `x[.., ..n] · gelu(x[.., n..])` of `x [.., 2 · n]`, to `[.., n]`
/// ([Shazeer, 2020](https://arxiv.org/abs/2002.05202)); on Flex in one pass.
pub fn gate_halves<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if is_plain(&x) {
        return Tensor::from_dispatch(Dispatch::gate_both_halves(
            x.into_dispatch(),
            ActivationFunction::Gelu,
        ));
    }
    let (mut dims, count) = (x.dims(), x.shape().num_elements());
    let n = dims[D - 1] / 2;
    dims[D - 1] = n;
    let x = x.reshape([count / (2 * n), 2 * n]);
    let [rows, _] = x.dims();
    // In pieces: what the function is made of takes several times the memory of its result.
    let step = (PIECE_BYTES / (2 * n * size_of::<f32>())).max(1);
    let parts = (0..rows).step_by(step).map(|start| {
        let x = x.clone().narrow(0, start, step.min(rows - start));
        x.clone().narrow(1, 0, n) * gelu(x.narrow(1, n, n))
    });
    Tensor::cat(parts.collect(), 0).reshape(dims)
}

/// Attention of `queries [batch, tokens, heads, width]` over all of `keys` and `values`
/// `[batch, seen, heads, width]`, to the shape of the queries; scores are multiplied by `scale`. On
/// Flex it is [one operation](crate::attention::attend_pixels_into), with no backward pass and no
/// tensor of scores.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn attend_pixels(
    compute: ActivationDtype,
    [queries, keys, values]: [Tensor<4>; 3],
    scale: f32,
) -> Tensor<4> {
    if [&queries, &keys, &values].into_iter().all(is_plain) {
        return Tensor::from_dispatch(Dispatch::pixel_attention(
            queries.into_dispatch(),
            keys.into_dispatch(),
            values.into_dispatch(),
            scale,
            compute,
        ));
    }
    let ([batch, tokens, heads, width], [_, seen, ..]) = (queries.dims(), keys.dims());
    let [queries, keys, values] = [queries * scale, keys, values].map(|x| {
        let [_, tokens, ..] = x.dims();
        x.swap_dims(1, 2).reshape([batch * heads, tokens, width])
    });
    let keys = keys.transpose();
    let step = PIECE_BYTES / (batch * heads * seen * size_of::<f32>()).max(1);
    let parts = (0..tokens).step_by(step.max(1)).map(|start| {
        let queries = queries.clone().narrow(1, start, step.max(1).min(tokens - start));
        softmax(queries.matmul(keys.clone()), 2).matmul(values.clone())
    });
    let mixed = Tensor::cat(parts.collect(), 1);
    mixed.reshape([batch, heads, tokens, width]).swap_dims(1, 2)
}

/// Each pixel four times: `[batch, 2 · rows, 2 · columns, channels]`.
pub fn upsample_nearest(x: Tensor<4>) -> Tensor<4> {
    if is_plain(&x) {
        return Tensor::from_dispatch(Dispatch::double_nearest(x.into_dispatch()));
    }
    let [batch, rows, columns, channels] = x.dims();
    let x = x.reshape([batch * rows, 1, columns, channels]).repeat_dim(1, 2);
    let x = x.reshape([batch * 2 * rows * columns, 1, channels]).repeat_dim(1, 2);
    x.reshape([batch, 2 * rows, 2 * columns, channels])
}
