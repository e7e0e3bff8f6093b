//! Weights learn that do not fit memory, from files to files: weights, AdamW's moments and
//! gradients are in a folder, as in [ZeRO-Infinity](https://arxiv.org/abs/2104.07857).
//!
//! Passes read the weights from there like those of any checkpoint, and add gradients to a file as
//! they come to them; a step then goes from file to file, some values at a time.
//!
//! ```no_run
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor};
//! use outsize_core::{Options, learning_device};
//! use outsize_plan::Budget;
//! use outsize_train::offload::offloaded;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options { budget: Budget::parse("cpu=600MB")?, ..Options::default() };
//! let module = |device: &Device| LinearConfig::new(16384, 16384).init(device); // any module
//! let mut training = offloaded("model.bpk", "model.states").options(options).open(module)?;
//! while training.steps() < 100 {
//!     let x = Tensor::<2>::ones([1, 16384], &learning_device());
//!     training.backward(|model: &Linear| model.forward(x).square().mean())?;
//!     let step = training.step(1e-4)?;
//!     println!("step {}: loss {:.3}", step.step, step.loss);
//! }
//! training.save("trained")?;
//! training.remove_states();
//! # Ok(())
//! # }
//! ```

mod adamw;
mod builder;
mod first;
mod gradient_file;
mod layout;
mod progress;
mod save;
mod states;
mod step;
mod training;

pub use adamw::OffloadedAdamW;
pub use builder::{OffloadedBuilder, offloaded};
pub use layout::{LearningRole, OffloadLayout};
pub use progress::{PendingStep, StepSums};
pub use states::OffloadedStates;
pub use step::OFFLOADED_STEP_BYTES;
pub use training::{OffloadedStep, OffloadedTraining};
