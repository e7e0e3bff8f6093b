//! The two operations of this crate over Burn tensors of any device.

use burn::backend::Dispatch;
use burn::tensor::{DType, Int, Tensor};

use crate::extension::StoredWeightOps;
use crate::{Compute, is_flex};

/// `y = x · Wᵀ`: `x [.., in]`, `weight [out, in]` as a checkpoint stores it, to `[.., out]`.
///
/// On the Flex (CPU) device, with `x` in f32 and `weight` in bf16, f16 or f32, the weight is read as it lies in memory
/// and the result keeps this crate's [contract](crate#the-contract). Everything else, that is other devices, other
/// dtypes and tensors on an autodiff device (there is no backward pass here), takes Burn's own product with the weight
/// cast to the dtype of `x`. The result has the dtype of `x`.
///
/// # Panics
///
/// If the last dimension of `x` is not `in`, or if the two lie on different devices.
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>) -> Tensor<D> {
    linear_in(Compute::F32, x, weight)
}

/// [`linear`] with activations multiplied in a type of the caller's choice. Burn's own product, where that is taken,
/// keeps them as they are.
///
/// # Panics
///
/// As [`linear`].
pub fn linear_in<const D: usize>(compute: Compute, x: Tensor<D>, weight: Tensor<2>) -> Tensor<D> {
    let ([out, width], mut dims) = (weight.dims(), x.dims());
    assert_eq!(
        dims.last(),
        Some(&width),
        "linear: the last dimension of x {dims:?} must be the second of the weight [{out}, {width}]",
    );
    let rows = dims[..D - 1].iter().product();
    let y = matrix_product(compute, x.reshape([rows, width]), weight);
    dims[D - 1] = out;
    y.reshape(dims)
}

fn matrix_product(compute: Compute, x: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    let here = is_flex(&x.device()) && is_flex(&weight.device());
    if here && x.dtype() == DType::F32 && is_stored(weight.dtype()) {
        Tensor::from_dispatch(Dispatch::stored_linear(
            x.into_dispatch(),
            weight.into_dispatch(),
            compute,
        ))
    } else {
        let dtype = x.dtype();
        x.matmul(weight.cast(dtype).transpose())
    }
}

/// Rows `ids [t]` of `table [n, d]`, to `[t, d]` in f32. Only these rows are read and converted.
///
/// On an autodiff device gradients flow to the table.
///
/// # Panics
///
/// If an id is not a row of the table. (Some GPU backends give an unspecified row instead; check ids first.)
pub fn embedding(table: Tensor<2>, ids: Tensor<1, Int>) -> Tensor<2> {
    if is_flex(&table.device()) && is_flex(&ids.device()) && is_stored(table.dtype()) {
        Tensor::from_dispatch(Dispatch::stored_rows(
            table.into_dispatch(),
            ids.into_dispatch(),
        ))
    } else {
        table.select(0, ids).cast(DType::F32)
    }
}

pub(crate) fn is_stored(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16 | DType::F32)
}
