//! Where and for what dtypes this crate has operations of its own.

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device};

/// Whether a device is Flex itself, where this crate's operations run: not another backend, and not
/// autodiff around Flex.
pub fn is_flex(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Flex(_))
}

/// Whether this crate has operations for a device: Flex, or autodiff around it, where those of
/// weights and of decoder layers have a backward pass.
pub fn has_kernels(device: &Device) -> bool {
    match device.as_dispatch() {
        DispatchDevice::Autodiff(device) => matches!(**device, DispatchDevice::Flex(_)),
        device => matches!(device, DispatchDevice::Flex(_)),
    }
}

/// Whether a device is a GPU, or a software adapter that acts as one.
pub fn is_gpu(device: &Device) -> bool {
    #[cfg(feature = "gpu")]
    return matches!(device.as_dispatch(), DispatchDevice::Cube(_));
    #[cfg(not(feature = "gpu"))]
    {
        let _ = device;
        false
    }
}

/// What ids of rows are on a device: not every GPU has integers of 64 bits.
pub fn index_dtype(device: &Device) -> DType {
    if is_gpu(device) { DType::I32 } else { DType::I64 }
}

/// Whether weights of a dtype are read as stored.
pub(crate) fn is_stored(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16 | DType::F32)
}
