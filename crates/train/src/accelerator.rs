//! [`Accelerator`]: what a training loop asks for on one rank or many.

mod builder;
mod checkpointing;
mod collectives;
mod join;
mod local_sgd;
mod logger;
mod precision;
mod prepare;
mod processes;
mod profile;
mod step;
mod trackers;

pub use builder::{AcceleratorBuilder, threads};
pub use collectives::Reduction;
pub use join::JoinUnevenInputs;
pub use local_sgd::LocalSgd;
pub use logger::RankLogger;
pub use precision::{CastFloats, MixedPrecision};
pub use step::NoSync;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::ParamId;
use burn::tensor::Device;
use outsize_kernels::BufferReuse;

use crate::Communicator;
use crate::loss_scaler::LossScaler;
use crate::state::Objects;
use crate::step_state::{SharedStep, StepState};
use crate::tracking::Trackers;
use builder::Settings;
use profile::Profile;
use step::Accumulated;

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
    step: SharedStep,
    accumulated: Mutex<Accumulated>,
    scaler: Mutex<Option<LossScaler>>,
    profile: Mutex<Option<Profile>>,
    trigger: AtomicBool,
    objects: Objects,
    trackers: Trackers,
    /// The model that was last found fit for a lower precision, by its first parameter.
    castable: Mutex<Option<ParamId>>,
    /// Each step needs the same memory.
    _reuse: BufferReuse,
}

impl Inner {
    fn accumulated(&self) -> MutexGuard<'_, Accumulated> {
        self.accumulated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scaler(&self) -> MutexGuard<'_, Option<LossScaler>> {
        self.scaler.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let devices = &self.inner.settings.devices;
        devices[self.inner.communicator.local_rank() % devices.len()].clone()
    }

    /// What [`autocast`](Self::autocast) computes in.
    #[must_use]
    pub fn mixed_precision(&self) -> MixedPrecision {
        self.inner.settings.mixed_precision
    }

    /// The scale of the loss in fp16 training; none otherwise.
    #[must_use]
    pub fn loss_scaler(&self) -> Option<LossScaler> {
        self.inner.scaler().clone()
    }

    /// Goes on with the scale of a saved run.
    pub fn set_loss_scaler(&self, scaler: LossScaler) {
        *self.inner.scaler() = Some(scaler);
    }

    /// Has all ranks go on with the scale of rank `from`, after steps that they did not all make:
    /// gradients of different scales cannot be added.
    pub(crate) fn share_loss_scaler(&self, from: usize) -> Result<(), crate::Error> {
        let own = self.loss_scaler();
        if own.is_some() && self.num_processes() > 1 {
            let scaler = self.gather_object(&own)?.swap_remove(from);
            *self.inner.scaler() = scaler;
        }
        Ok(())
    }

    /// Batches taken from prepared loaders so far: with the seed and the rank they seed random
    /// operations.
    #[must_use]
    pub fn batches_taken(&self) -> u64 {
        self.step_state().batches_taken
    }

    /// Goes on with the count of a saved run.
    pub fn set_batches_taken(&self, batches: u64) {
        self.step_state().batches_taken = batches;
    }

    fn step_state(&self) -> MutexGuard<'_, StepState> {
        self.inner.step.lock()
    }
}
