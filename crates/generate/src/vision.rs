//! Images in prompts: files to pixels, pixels to features that a language model takes among the
//! tokens of a text.

mod encoder;
mod input;
mod placing;
mod processor;
mod processor_file;
mod sizes;
mod tiles;
mod tower;

pub use self::encoder::{EncodedImage, VisionEncoder};
pub use self::input::ImageInput;
pub use self::placing::{ImageIds, framed, image_place, place_images};
pub use self::processor::ImageProcessor;
