//! Models of pictures: beside other programs, and in any placement the same bits.

#[path = "../common/mod.rs"]
mod common;

mod diffusion;
mod flux;
mod flux2;
mod gpu;
mod qwen_image;
mod sd3;
mod z_image;
