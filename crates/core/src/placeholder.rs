//! What a streamed parameter holds instead of its value.

use burn::module::Param;
use burn::tensor::{DType, Device, Shape, Tensor};

/// Replaces the parameter's value by one NaN expanded to its shape: right shape, right device, no
/// memory, and poison for code that goes round `Param::val()`. A lazy parameter is not initialised.
pub(crate) fn poison<const D: usize>(param: Param<Tensor<D>>, dtype: DType) -> Param<Tensor<D>> {
    let (id, shape, device) = (param.id, param.lazy_shape(), param.lazy_device());
    param.transform_for_load(nan::<D>(shape, &device, dtype), id)
}

fn nan<const D: usize>(shape: Shape, device: &Device, dtype: DType) -> Tensor<D> {
    if shape.num_elements() == 0 {
        return Tensor::empty(shape, (device, dtype));
    }
    Tensor::<D>::full([1; D], f32::NAN, (device, dtype)).expand(shape)
}
