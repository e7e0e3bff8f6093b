//! What models of pictures do besides matmuls and attention, over a backend's own tensors: a Burn
//! backend extension for Flex. Pictures are `[batch, rows, columns, channels]`.

use std::ops::Range;

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, TensorMetadata, backend_extension};
use burn::tensor::TensorData;

use crate::activation::{ActivationFunction, gate_halves_into};
use crate::attention::{PixelAttentionShape, attend_pixels_into};
use crate::extension::{contiguous, dims, f32_elements, stored, whole};
use crate::group_norm::{Moments, normalize_groups_into, row_sums};
use crate::matmul::{ConvolutionOutputs, ConvolutionShape, ConvolutionWindow, PackedPictures};
use crate::{ActivationDtype, Isa, buffer, loops};

/// What models of pictures do besides.
#[backend_extension(Flex)]
pub trait PictureOps: Backend {
    /// Writes the outputs that `weight [outputs, channels · taps]` (bf16, f16 or f32) gives of `x`
    /// f32 to `y [batch, rows, columns, n]` f32, from output `start` on, with `bias [outputs]`
    /// added; without a start, adds all `n` of them to what `y` holds. In place where `y` has no
    /// other owner.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another.
    fn convolution_into(
        y: FloatTensor<Self>,
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        window: ConvolutionWindow,
        start: Option<usize>,
        compute: ActivationDtype,
    ) -> FloatTensor<Self>;

    /// Sums over each row of `x` f32 for group normalisation: `[batch · rows · groups · 2]` f64.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another.
    fn group_row_sums(x: FloatTensor<Self>, groups: usize) -> FloatTensor<Self>;

    /// Group normalisation of `x` f32 with given moments, `weight` and `bias` `[channels]` in bf16,
    /// f16 or f32; and SiLU of that, if asked for. In place where `x` has no other owner.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another.
    fn normalize_by_group(
        x: FloatTensor<Self>,
        moments: Vec<Moments>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        silu: bool,
    ) -> FloatTensor<Self>;

    /// `x[.., ..n] · function(x[.., n..])` of `x [.., 2 · n]` f32, to `[.., n]`.
    ///
    /// # Panics
    ///
    /// If a size or a dtype is another.
    fn gate_both_halves(x: FloatTensor<Self>, function: ActivationFunction) -> FloatTensor<Self>;

    /// Attention of `queries [batch, tokens, heads, width]` f32 over all of `keys` and `values`
    /// `[batch, seen, heads, width]` f32, to the shape of the queries.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another.
    fn pixel_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        scale: f32,
        compute: ActivationDtype,
    ) -> FloatTensor<Self>;

    /// Each pixel of `x` f32 four times: twice the rows and columns.
    ///
    /// # Panics
    ///
    /// If a rank or a dtype is another.
    fn double_nearest(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl PictureOps for Flex {
    fn convolution_into(
        y: FlexTensor,
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        window: ConvolutionWindow,
        start: Option<usize>,
        compute: ActivationDtype,
    ) -> FlexTensor {
        let (x, weight, bias) = (contiguous(x), contiguous(weight), contiguous(bias));
        let mut y = whole(y);
        let [batch, height, columns, channels] = dims(&x, "convolution: x");
        let [.., n] = dims::<4>(&y, "convolution: y");
        let [outputs, _] = dims(&weight, "convolution: weight");
        let shape = ConvolutionShape { batch, rows: height, columns, channels, window };
        let bias = stored(&bias, "convolution: bias").widened();
        let first = start.unwrap_or(0);
        let x = f32_elements(&x, "convolution: x");
        PackedPictures::new(Isa::detected(), compute, x, shape).convolve_into(ConvolutionOutputs {
            weight: stored(&weight, "convolution: weight"),
            bias: start.map(|_| &*bias),
            y: y.storage_mut(),
            n,
            outputs: first..first + outputs,
        });
        y
    }

    fn group_row_sums(x: FlexTensor, groups: usize) -> FlexTensor {
        let x = contiguous(x);
        let shape = dims(&x, "group norm: x");
        let sums = row_sums(Isa::detected(), f32_elements(&x, "group norm: x"), shape, groups);
        let len = sums.len();
        FlexTensor::from_data(TensorData::new(sums, [len]))
    }

    fn normalize_by_group(
        x: FlexTensor,
        moments: Vec<Moments>,
        weight: FlexTensor,
        bias: FlexTensor,
        silu: bool,
    ) -> FlexTensor {
        let (x, weight, bias) = (contiguous(x), contiguous(weight), contiguous(bias));
        let shape = dims(&x, "group norm: x");
        let [weight, bias] =
            [&weight, &bias].map(|tensor| stored(tensor, "group norm: weights").widened());
        let from = f32_elements(&x, "group norm: x");
        let mut y = buffer::take(from.len());
        let weights = (&*weight, &*bias);
        normalize_groups_into(Isa::detected(), from, shape, &moments, weights, silu, &mut y);
        FlexTensor::from_data(buffer::data(y, shape))
    }

    fn gate_both_halves(x: FlexTensor, function: ActivationFunction) -> FlexTensor {
        let x = contiguous(x);
        let mut shape = x.shape();
        let Some(last) = shape.as_mut_slice().last_mut() else {
            panic!("gate: x must have a dimension")
        };
        *last /= 2;
        let n = *last;
        let from = f32_elements(&x, "gate: x");
        let mut y = buffer::take(from.len() / 2);
        gate_halves_into(Isa::detected(), function, from, (&mut y, n));
        FlexTensor::from_data(buffer::data(y, shape))
    }

    fn pixel_attention(
        queries: FlexTensor,
        keys: FlexTensor,
        values: FlexTensor,
        scale: f32,
        compute: ActivationDtype,
    ) -> FlexTensor {
        let tensors = [queries, keys, values].map(contiguous);
        let [batch, tokens, heads, width] = dims(&tensors[0], "attention: queries");
        let [_, seen, ..] = dims::<4>(&tensors[1], "attention: keys");
        let shape = PixelAttentionShape { batch, tokens, seen, heads, width };
        let slices = tensors.each_ref().map(|tensor| f32_elements(tensor, "attention"));
        let mut y = buffer::take(slices[0].len());
        attend_pixels_into(Isa::detected(), compute, slices, shape, scale, &mut y);
        FlexTensor::from_data(buffer::data(y, [batch, tokens, heads, width]))
    }

    fn double_nearest(x: FlexTensor) -> FlexTensor {
        let x = contiguous(x);
        let [batch, rows, columns, channels] = dims(&x, "upsampling: x");
        let from = f32_elements(&x, "upsampling: x");
        let row = (columns * channels).max(1);
        let mut y = buffer::take(4 * from.len());
        loops::share(from.chunks(row).zip(y.chunks_mut(4 * row)), |(from, to)| {
            let (first, second) = to.split_at_mut(2 * row);
            for (from, to) in from.chunks(channels).zip(first.chunks_mut(2 * channels)) {
                to[..channels].copy_from_slice(from);
                to[channels..].copy_from_slice(from);
            }
            second.copy_from_slice(first);
        });
        FlexTensor::from_data(buffer::data(y, [batch, 2 * rows, 2 * columns, channels]))
    }
}

/// [`convolution_tiles`](crate::convolution_tiles) on Flex.
pub(crate) fn convolution_tiles(
    compute: ActivationDtype,
    x: FlexTensor,
    bias: FlexTensor,
    window: ConvolutionWindow,
    parts: &[usize],
    tiles: impl Iterator<Item = (Range<usize>, FlexTensor)>,
) -> Vec<FlexTensor> {
    let (x, bias) = (contiguous(x), contiguous(bias));
    let [batch, rows, columns, channels] = dims(&x, "convolution: x");
    let shape = ConvolutionShape { batch, rows, columns, channels, window };
    let ([height, width], [n]) = (shape.output(), dims(&bias, "convolution: bias"));
    let bias = stored(&bias, "convolution: bias").widened();
    assert_eq!(parts.iter().sum::<usize>(), n, "convolution: parts must be all outputs");
    let mut ys: Vec<_> =
        parts.iter().map(|part| buffer::take(batch * height * width * part)).collect();
    let x = f32_elements(&x, "convolution: x");
    let mut pictures = PackedPictures::new(Isa::detected(), compute, x, shape);
    let mut next = 0;
    for (outputs, tile) in tiles {
        assert_eq!(
            outputs.start, next,
            "convolution: tiles must be rows of a weight, one after the other"
        );
        next = outputs.end;
        let tile = contiguous(tile);
        let [_, row] = dims(&tile, "convolution: tile");
        let weight = stored(&tile, "convolution: tile");
        assert_eq!(weight.len(), outputs.len() * row, "convolution: a tile of other rows");
        let mut start = 0;
        for (&part, y) in parts.iter().zip(&mut ys) {
            // What the tile has of the part.
            let some = outputs.start.max(start)..outputs.end.min(start + part);
            if some.start < some.end {
                let rows = [some.start, some.end].map(|at| (at - outputs.start) * row);
                pictures.convolve_into(ConvolutionOutputs {
                    weight: weight.slice(rows[0], rows[1]),
                    bias: Some(&bias[some.clone()]),
                    y,
                    n: part,
                    outputs: some.start - start..some.end - start,
                });
            }
            start += part;
        }
    }
    assert_eq!(next, n, "convolution: tiles must be all of a weight of {n} rows");
    let made = parts
        .iter()
        .zip(ys)
        .map(|(&part, y)| FlexTensor::from_data(buffer::data(y, [batch, height, width, part])));
    made.collect()
}
