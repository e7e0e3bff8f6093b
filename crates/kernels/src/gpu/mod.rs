//! GPUs: which there are, weights on them as stored, and streams of uploads.
//!
//! Everything else that a model computes there is made of Burn's own operations.

#[cfg(feature = "gpu")]
mod attention;
#[cfg(feature = "gpu")]
mod block_elements;
#[cfg(feature = "gpu")]
mod blocks;
#[cfg(feature = "gpu")]
mod extension;
mod failures;
mod found;
#[cfg(feature = "gpu")]
mod gemm;
#[cfg(feature = "gpu")]
mod layer;
#[cfg(feature = "wgpu-noop")]
mod noop;
#[cfg(feature = "gpu")]
mod packed;
#[cfg(feature = "gpu")]
mod pictures;
#[cfg(feature = "gpu")]
mod products;
#[cfg(any(feature = "vulkan", feature = "metal", feature = "wgpu"))]
mod staging;
mod upload;

#[cfg(feature = "gpu")]
pub(crate) use attention::attend_tokens;
#[cfg(feature = "gpu")]
pub use attention::{TokenAttention, TokenAttentionOps};
#[cfg(feature = "gpu")]
pub use block_elements::BlockFormat;
#[cfg(feature = "gpu")]
pub use blocks::{BlockRows, BlockWeightOps};
#[cfg(feature = "gpu")]
pub use extension::{PackedRows, PackedWeightOps};
pub use failures::failure;
pub use found::{BACKENDS, GpuDevice, SOFTWARE_VARIABLE, can_compute, gpus};
#[cfg(feature = "gpu")]
pub use layer::LayerGpuOps;
#[cfg(feature = "gpu")]
pub(crate) use layer::{add_norm_of, norm_of, rotated, silu_gated};
#[cfg(feature = "gpu")]
pub use packed::PackedWeight;
#[cfg(feature = "gpu")]
pub(crate) use pictures::convolution;
#[cfg(feature = "gpu")]
pub use pictures::{PictureGpuOps, SeenPixels};
#[cfg(feature = "gpu")]
pub use products::WordFormat;
pub use upload::{Fence, UPLOAD_BYTES, UploadStream, download};
