//! Kernels over tensors of Burn.

#[path = "../common/mod.rs"]
mod common;

mod blocks;
mod fetched;
mod gradients;
mod linear_attention;
mod tensors;
