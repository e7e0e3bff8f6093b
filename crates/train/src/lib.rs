//! The same training loop on one rank or many.
//!
//! A *rank* is one copy of the training program: the only one, one of several threads of a
//! process, or one of several processes started by `mpirun`. Every rank holds the whole model and
//! trains on its share of each batch; gradients are averaged over ranks, so that all ranks take
//! the same step.
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::optim::SgdConfig;
//! use burn::tensor::Tensor;
//! use outsize_train::{Accelerator, Error, threads};
//!
//! // Two threads learn from different inputs, and the same.
//! let weights = threads(2, |accelerator: Accelerator| -> Result<Vec<f32>, Error> {
//!     let device = accelerator.device();
//!     let mut model = accelerator.prepare_model(LinearConfig::new(2, 1).init(&device))?;
//!     let mut optimizer = accelerator.prepare_optimizer(SgdConfig::new().init());
//!     for step in 0..3 {
//!         let own = (step + accelerator.process_index()) as f32;
//!         let loss = model.forward(Tensor::<2>::full([4, 2], own, &device)).square().mean();
//!         let gradients = accelerator.backward(loss, &model)?;
//!         model = optimizer.step(0.01, model, gradients);
//!     }
//!     Ok(model.weight.val().into_data().iter().collect())
//! })?;
//! let weights = weights.into_iter().collect::<Result<Vec<_>, _>>()?;
//! assert_eq!(weights[0], weights[1]);
//! # Ok::<(), Error>(())
//! ```
//!
//! | module | its one job |
//! |---|---|
//! | [`accelerator`] | [`Accelerator`]: backward, accumulation, clipping, collectives, processes |
//! | [`communicator`] | how ranks exchange bytes and sum gradients |
//! | [`data`] | which rank reads which items |
//! | [`offload`] | weights and optimizer states on the disk, for modules bigger than memory |
//! | [`state`] | saving and resuming |
//! | [`tracking`] | metrics to files and services |
#![forbid(unsafe_code)]

pub mod accelerator;
pub mod communicator;
pub mod data;
mod error;
mod gradients;
mod loss_scaler;
mod memory;
pub mod offload;
mod optimizer;
mod panic;
mod scheduler;
mod seed;
mod self_check;
pub mod state;
mod step_state;
pub mod tracking;
mod wire;

pub use accelerator::{
    Accelerator, AcceleratorBuilder, CastFloats, LocalSgd, MixedPrecision, Reduction, threads,
};
pub use communicator::Communicator;
pub use data::DataLoaderBuilder;
pub use error::Error;
pub use gradients::StepGradients;
pub use loss_scaler::LossScaler;
pub use memory::find_executable_batch_size;
pub use optimizer::AcceleratedOptimizer;
pub use scheduler::AcceleratedScheduler;
pub use self_check::{Check, self_check};
