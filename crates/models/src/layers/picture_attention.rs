//! Attention of transformers of pictures: tokens that all see each other, whose layers are
//! convolutions of one pixel.

use burn::tensor::Tensor;
use outsize_kernels::{ActivationDtype, attend_pixels};

use super::{Linear, RmsNorm, Rotation};

/// A projection `[batch, tokens, hidden]` as heads `[batch, tokens, heads, width]`.
pub(crate) fn heads(project: &Linear, x: &Tensor<3>, width: usize) -> Tensor<4> {
    let y = project.forward_pixels(x.clone());
    let [batch, tokens, hidden] = y.dims();
    y.reshape([batch, tokens, hidden / width, width])
}

/// The same, each head normalised.
pub(crate) fn normed_heads(project: &Linear, norm: &RmsNorm, x: &Tensor<3>) -> Tensor<4> {
    norm.forward(heads(project, x, norm.width()))
}

/// The same with a norm or without one.
pub(crate) fn heads_with(
    project: &Linear,
    norm: Option<&RmsNorm>,
    x: &Tensor<3>,
    width: usize,
) -> Tensor<4> {
    let heads = heads(project, x, width);
    match norm {
        Some(norm) => norm.forward(heads),
        None => heads,
    }
}

/// Queries, keys and values `[batch, tokens, heads, width]` to `[batch, tokens, heads · width]`.
pub(crate) fn attend_tokens(compute: ActivationDtype, projected: [Tensor<4>; 3]) -> Tensor<3> {
    let [batch, tokens, heads, width] = projected[0].dims();
    let scale = (width as f32).sqrt().recip();
    attend_pixels(compute, projected, scale).reshape([batch, tokens, heads * width])
}

/// The same of the layers of queries, keys, values and results, `[batch, tokens, hidden]` to the
/// same: with queries and keys rotated or as they are.
pub(crate) fn attend_layers(
    [queries, keys, values, out]: [&Linear; 4],
    count: usize,
    x: Tensor<3>,
    rotation: Option<&Rotation>,
) -> Tensor<3> {
    let width = x.dims()[2] / count;
    let rotated = |layer| {
        let heads = heads(layer, &x, width);
        match rotation {
            Some(rotation) => rotation.apply(heads),
            None => heads,
        }
    };
    let projected = [rotated(queries), rotated(keys), heads(values, &x, width)];
    drop(x);
    out.forward_pixels(attend_tokens(out.compute, projected))
}
