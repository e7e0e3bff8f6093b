//! Kernels over slices.

#[path = "../common/mod.rs"]
mod common;

mod attention;
mod contract;
mod in_out;
mod layer;
mod matmul;
mod packed_bf16;
mod picture;
mod pixel_attention;
