//! LoRA adapters learn from texts, on models bigger than memory.
//!
//! The model's own weights stay as they are: resident or streamed, in whatever format they are stored. A step runs the blocks
//! forward and keeps what each of them takes; then, from the last to the first, it runs each block once more and backward. So
//! of all activations those of one block exist at a time, and the weights of one tile.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use outsize_finetune::{FinetuneOptions, finetune};
//! use outsize_lora::{LoraConfig, ModulePattern};
//! use outsize_plan::Budget;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut tuner = finetune("path/to/checkpoint")
//!     .lora(LoraConfig::new(16, 32.0, ModulePattern::AllLinear))
//!     .max_memory(Budget::parse("cpu=2GB")?)
//!     .context(512)
//!     .batch_size(4)
//!     .build()?;
//! let examples = tuner.read_examples("train.jsonl")?;
//! let options = FinetuneOptions { epochs: 3, ..FinetuneOptions::default() };
//! tuner.train(&examples, &options, |step| {
//!     println!("step {} of {}: loss {:.3}", step.step, step.steps, step.loss);
//!     ControlFlow::Continue(())
//! })?;
//! tuner.save("adapter")?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod adapter;
mod builder;
mod error;
mod example;
mod examples;
mod memory;
mod options;
mod train;
mod tuner;

pub use adapter::LearningAdapter;
pub use builder::{FinetuneBuilder, finetune};
pub use error::FinetuneError;
pub use example::{Example, ExampleFormat};
pub use examples::Examples;
pub use options::{FinetuneOptions, LearningRate};
pub use train::{FinetuneStep, Finetuned};
pub use tuner::{Evaluation, Finetuner};
