//! All of a model's weights learn, from files to files.
//!
//! Weights, AdamW's moments and gradients are in a folder. Passes read the weights from there like
//! those of any checkpoint, and add gradients to a file as they come to them; a step then goes from
//! file to file, some values at a time.

mod adamw;
mod builder;
mod gradient_file;
mod layout;
mod opened;
mod save;
mod states;
mod step;
mod train;
mod tuner;

#[cfg(test)]
mod tests;

pub use builder::FullFinetuneBuilder;
pub use opened::OpenedFullFinetune;
pub use tuner::FullFinetuner;
