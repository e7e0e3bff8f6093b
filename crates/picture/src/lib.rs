//! Pictures in 8 bits: read from files, resized as Pillow does, written as PNG.
#![forbid(unsafe_code)]

mod error;
mod picture;

pub use error::Error;
pub use picture::{COLOURS, Picture, PictureFilter, PictureHeader, byte, file_bytes};
