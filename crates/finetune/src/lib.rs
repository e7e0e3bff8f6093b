//! LoRA adapters, or all weights, learn from texts, on models bigger than memory.
//!
//! While an adapter learns, the model's own weights stay as they are: resident or streamed, in
//! whatever format they are stored. A step runs the blocks forward and keeps what each of them
//! takes; then, from the last to the first, it runs each block once more and backward. So of all
//! activations those of one block exist at a time, and of the weights one tile. If there is room,
//! activations of some blocks are kept instead.
//!
//! ```no_run
//! use outsize_finetune::{FinetuneOptions, finetune};
//! use outsize_lora::{LoraConfig, ModulePattern};
//! use outsize_plan::Budget;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = finetune("path/to/checkpoint")
//!     .lora(LoraConfig::new(16, 32.0, ModulePattern::AllLinear))
//!     .max_memory(Budget::parse("cpu=2GB")?)
//!     .context(512)
//!     .batch_size(4)
//!     .open()?;
//! let examples = model.read_examples("train.jsonl")?;
//! let mut tuner = model.build()?;
//! let options = FinetuneOptions { epochs: 3, ..FinetuneOptions::default() };
//! tuner.train(&examples, &options, |step| {
//!     println!("step {} of {}: loss {:.3}", step.step, step.steps, step.loss);
//! })?;
//! tuner.save("adapter")?;
//! # Ok(())
//! # }
//! ```
//!
//! All weights learn likewise, with [`FinetuneBuilder::full`]: AdamW's moments, gradients and the
//! weights as they are learned are then on the disk.
//!
//! [`FinetuneBuilder::calibration`] has weights become integers, chosen by what texts give rise to
//! in the model.
#![forbid(unsafe_code)]

mod adapter;
mod builder;
mod calibration;
mod error;
mod example;
mod examples;
mod full;
mod memory;
mod opened;
mod opened_model;
mod options;
mod settings;
mod train;
mod tuner;

pub use adapter::{LearningAdapter, LearningLayer};
pub use builder::{FinetuneBuilder, finetune};
pub use calibration::{CalibrationOutcome, OpenedCalibration};
pub use error::FinetuneError;
pub use example::{Example, ExampleFormat};
pub use examples::Examples;
pub use full::{FullFinetuneBuilder, FullFinetuner, OpenedFullFinetune};
pub use opened::OpenedFinetune;
pub use options::{FinetuneOptions, LearningRateSchedule};
pub use train::{FinetuneStep, Finetuned};
pub use tuner::{Evaluation, Finetuner};
