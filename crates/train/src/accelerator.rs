//! [`Accelerator`]: what a training loop asks for on one rank or many.

mod builder;
mod processes;

pub use builder::{AcceleratorBuilder, threads};

use std::sync::Arc;

use burn::tensor::Device;

use crate::Communicator;
use builder::Settings;

/// One rank's view of a training run.
///
/// Cloning gives another handle to the same rank.
#[derive(Clone)]
pub struct Accelerator {
    inner: Arc<Inner>,
}

struct Inner {
    communicator: Arc<dyn Communicator>,
    settings: Settings,
}

impl Accelerator {
    /// The engine that connects the ranks.
    #[must_use]
    pub fn communicator(&self) -> &dyn Communicator {
        &*self.inner.communicator
    }

    /// The device that batches are made on and models are meant to live on, with autodiff.
    #[must_use]
    pub fn device(&self) -> Device {
        self.inner.settings.device.clone()
    }
}
