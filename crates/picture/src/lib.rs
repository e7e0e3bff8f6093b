//! Pictures in 8 bits: read from files, resized as Pillow does, written as PNG.
#![forbid(unsafe_code)]

mod error;
mod picture;
mod resampling;

pub use error::Error;
pub use picture::{Picture, PictureHeader, byte, file_bytes};
pub use resampling::{COLOURS, PictureFilter};
