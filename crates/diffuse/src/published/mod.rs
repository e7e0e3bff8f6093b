//! Names of the software that models were published for, and checkpoints of one file that have them.

mod clip_names;
mod single_file;
mod unet_names;
mod vae_names;

pub(crate) use self::single_file::SingleFile;
pub use self::single_file::usual_base;
pub(crate) use self::unet_names::UnetNames;
