//! The same training loop on one rank or many.
//!
//! A *rank* is one copy of the training program: the only one, one of several threads of a
//! process, or one of several processes started by `mpirun`. Every rank holds the whole model and
//! trains on its share of each batch; gradients are averaged over ranks, so that all ranks take
//! the same step.
//!
//! | module | its one job |
//! |---|---|
//! | [`accelerator`] | [`Accelerator`]: backward, accumulation, clipping, collectives, processes |
//! | [`communicator`] | how ranks exchange bytes and sum gradients |
//! | [`data`] | which rank reads which items |
//! | [`state`] | saving and resuming |
//! | [`tracking`] | metrics to files and services |
#![forbid(unsafe_code)]

pub mod accelerator;
pub mod communicator;
pub mod data;
mod error;
pub mod state;
pub mod tracking;

pub use accelerator::threads;
pub use accelerator::{Accelerator, AcceleratorBuilder};
pub use communicator::Communicator;
pub use error::Error;
