//! A Burn module all of whose weights learn within a budget.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::Checkpoint;
use outsize_core::{Dispatched, Options, dispatch};
use outsize_plan::DeviceMap;

use super::adamw::OffloadedAdamW;
use super::progress::StepSums;
use super::states::OffloadedStates;
use crate::Error;

/// Makes the module anew, without its weights.
pub(super) type Init<M> = Box<dyn Fn(&Device) -> M>;

/// A Burn module within a budget whose weights learn by AdamW: see [`offloaded`](super::offloaded).
pub struct OffloadedTraining<M> {
    pub(super) init: Init<M>,
    pub(super) options: Options,
    pub(super) adamw: OffloadedAdamW,
    /// What the training began with.
    pub(super) checkpoint: Checkpoint,
    pub(super) states: OffloadedStates,
    /// The tensors of running statistics, by their paths in the module.
    pub(super) statistics: HashMap<String, String>,
    pub(super) map: DeviceMap,
    /// None while a step changes what it reads.
    pub(super) dispatched: Option<Dispatched<M>>,
    /// Those of the step that is under way, if there are gradients of it.
    pub(super) sums: Option<StepSums>,
    /// Read by modules before this one.
    pub(super) bytes_read: u64,
}

/// The figures of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OffloadedStep {
    /// Its number, counted from 1.
    pub step: usize,
    /// The mean of its losses, before it.
    pub loss: f64,
    /// The norm of its gradients, before they were clipped.
    pub grad_norm: f64,
    /// Its learning rate.
    pub learning_rate: f64,
}

impl<M: Module> OffloadedTraining<M> {
    /// Runs a pass forward and backward, adds its gradients to those of the step, and gives its
    /// loss: the mean over a batch. A step is one call or several, and goes by the mean of them.
    ///
    /// Inputs belong on [`learning_device`](outsize_core::learning_device). See
    /// [`Dispatched::backward`] for what is held meanwhile.
    ///
    /// # Errors
    /// As there; [`Error::Loss`]. The gradients of the step that were there before are gone then.
    pub fn backward(&mut self, loss: impl FnOnce(&M) -> Tensor<1>) -> Result<f32, Error> {
        let mut sums = match self.sums.take() {
            Some(sums) => sums,
            None => self.states.resume_batches()?.1,
        };
        let loss = self.dispatched()?.backward(&self.states.sink(), loss)?;
        sums.add(self.steps() + 1, f64::from(loss), 1, 0)?;
        self.sums = Some(sums);
        Ok(loss)
    }

    /// Changes all weights by their gradients, with this learning rate. What it has made is on the
    /// disk: a training whose process ends goes on from there.
    ///
    /// # Errors
    /// [`Error::NoGradients`]; [`Error::Gradients`], which leaves the weights as they are; a file
    /// that cannot be read or written.
    pub fn step(&mut self, learning_rate: f64) -> Result<OffloadedStep, Error> {
        let step = self.steps() + 1;
        let sums = self.sums.take().ok_or(Error::NoGradients { step })?;
        if !self.statistics.is_empty() {
            let now = self.dispatched()?.running_statistics()?.into_iter();
            let now = now
                .filter_map(|(path, values)| Some((self.statistics.get(&path)?.clone(), values)));
            self.states.set_statistics(&now.collect())?;
        }
        let update = self.states.begin_update(&self.adamw, learning_rate, sums)?;
        self.update()?;
        let (loss, grad_norm) = (self.states.last().mean(), update.norm);
        Ok(OffloadedStep { step, loss, grad_norm, learning_rate })
    }

    /// Makes the step that is pending, and begins to read the weights that it makes.
    pub(super) fn update(&mut self) -> Result<(), Error> {
        // What it reads is replaced.
        let order = self.dispatched.take().map(|module| {
            self.bytes_read += module.stats().bytes_read;
            module.pass_order()
        });
        self.states.update(&self.adamw)?;
        let weights = self.states.weights()?;
        let module = (self.init)(&Device::flex());
        let module = dispatch(module, &weights, &self.map, &self.options)?;
        order.into_iter().for_each(|order| module.expect(order));
        self.dispatched = Some(module);
        Ok(())
    }

    fn dispatched(&self) -> Result<&Dispatched<M>, Error> {
        self.dispatched.as_ref().ok_or(Error::HalfStep)
    }

    /// Runs a pass of which nothing is learned, as [`Dispatched::run`] does.
    ///
    /// # Errors
    /// As there.
    pub fn run<R>(&self, pass: impl FnOnce(&M) -> R) -> Result<R, Error> {
        Ok(self.dispatched()?.run(pass)?)
    }

    /// Steps that the weights have made, by this process or others before.
    pub fn steps(&self) -> usize {
        self.states.steps()
    }

    /// Values that learn.
    pub fn parameter_count(&self) -> u64 {
        self.states.values()
    }

    /// Where the weights live.
    pub fn device_map(&self) -> &DeviceMap {
        &self.map
    }

    /// Bytes that were read for passes so far.
    pub fn bytes_read(&self) -> u64 {
        let now = self.dispatched.as_ref().map_or(0, |module| module.stats().bytes_read);
        self.bytes_read + now
    }

    /// Writes the weights as they are now, as a folder of safetensors under the names and in the
    /// types that they had. It appears complete or not at all; it must not exist, or be empty.
    /// Gives the names of files that lay beside the checkpoint and were not copied, as they are too
    /// large or lead out of its folder.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<Vec<String>, Error> {
        self.states.save(&self.checkpoint, folder, |_| None)
    }

    /// Removes what the training has written in its folder of states; the folder too, if nothing
    /// else is in it.
    pub fn remove_states(self) {
        let Self { dispatched, states, .. } = self;
        drop(dispatched);
        states.remove();
    }
}

impl<M> fmt::Debug for OffloadedTraining<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dispatched, states, .. } = self;
        f.debug_struct("OffloadedTraining")
            .field("dispatched", dispatched)
            .field("states", states)
            .finish()
    }
}
