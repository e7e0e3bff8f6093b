//! Tensors put together in memory that is used again.

use burn::tensor::Tensor;
use outsize_kernels::{is_gpu, unwritten};

/// The tensors one behind the other along a dimension, f32: as [`Tensor::cat`], on the CPU in a
/// buffer of the kernels.
pub(crate) fn joined<const D: usize>(parts: Vec<Tensor<D>>, dim: usize) -> Tensor<D> {
    let [first, _, ..] = &parts[..] else {
        return Tensor::cat(parts, dim);
    };
    let (device, mut dims) = (first.device(), first.dims());
    if is_gpu(&device) {
        return Tensor::cat(parts, dim);
    }
    dims[dim] = parts.iter().map(|part| part.dims()[dim]).sum();
    let all = unwritten([1, 1, 1, dims.iter().product()], &device).reshape(dims);
    let (all, _) = parts.into_iter().fold((all, 0), |(all, start), part| {
        let mut ranges = part.dims().map(|side| 0..side);
        let end = start + part.dims()[dim];
        ranges[dim] = start..end;
        (all.slice_assign(ranges, part), end)
    });
    all
}
