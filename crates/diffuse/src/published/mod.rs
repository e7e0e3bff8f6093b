//! Names of the software that models were published for, and checkpoints of one file that have
//! them.

mod clip_names;
mod flux_names;
mod rows;
mod single_file;
mod unet_names;
mod vae_names;
mod z_image_names;

pub(crate) use self::flux_names::{LAST_NORM, published as flux_name};
pub(crate) use self::rows::Rows;
pub use self::single_file::SingleFile;
pub(crate) use self::unet_names::UnetNames;
pub(crate) use self::z_image_names::published as z_image_name;
