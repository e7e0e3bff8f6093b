//! Passes in which a dispatched module's own weights learn.

use crate::activation_checkpoint::Running;
use crate::running_state::{settle, values};
use crate::tape::{GradientSink, Tape};
use crate::{Dispatched, Error, PassKind};
use burn::module::Module;
use burn::tensor::{Device, Gradients, Tensor};
use outsize_kernels::fetching_device;
use std::sync::Arc;

/// A pass whose gradients somebody takes: see [`Dispatched::run_learning`].
pub struct Learning<'a> {
    tape: &'a Tape,
    sink: &'a Arc<dyn GradientSink>,
}

impl Learning<'_> {
    /// Runs `work`, in which every value that the module asks for is a leaf of Burn's graph and
    /// every matrix that is multiplied learns, and hands the gradients over that it gives.
    ///
    /// # Errors
    /// That of `work`.
    ///
    /// # Unwinds
    /// To [`Dispatched::run_learning`] with what the sink said.
    pub fn record<R, E>(&self, work: impl FnOnce() -> Result<(R, Gradients), E>) -> Result<R, E> {
        let recording = self.tape.record(self.sink.clone());
        let (result, mut found) = work()?;
        recording.take_leaves().into_iter().for_each(|leaf| leaf(&mut found));
        Ok(result)
    }
}

/// Where inputs of a pass belong whose gradients are wanted: see [`Dispatched::backward`].
pub fn learning_device() -> Device {
    fetching_device(&Device::flex())
}

impl<M: Module> Dispatched<M> {
    /// The running statistics of the module, such as a BatchNorm's, as passes on
    /// [`learning_device`] have left them: by their paths, in f32.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn running_statistics(&self) -> Result<Vec<(String, Vec<f32>)>, Error> {
        self.run(|module| {
            settle(module);
            values(module)
        })
    }
}

impl<M> Dispatched<M> {
    /// Runs a pass of an unmodified module forward and backward, and gives the sum of what `loss`
    /// is. The gradients of all parameters go to `sink` in f32 as the backward pass finds them.
    ///
    /// Weights are not held meanwhile: they are read once more where the backward pass needs them,
    /// but for those of which an operation keeps a copy, as Burn's embedding does of its table.
    /// Activations are kept as in any training by Burn, on a device with gradient checkpointing. A
    /// parameter that is used several times hands over several gradients.
    ///
    /// Inputs belong on [`learning_device`], so that dropout and the like know that this is
    /// training. For modules on processors. A module that calls
    /// [`activation_checkpoint`](crate::activation_checkpoint) keeps fewer activations.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`Error::Gradient`] with what the sink said; [`Error::NotTracked`];
    /// [`Error::Misuse`] for a parameter in blocks.
    ///
    /// # Panics
    /// As there.
    pub fn backward(
        &self,
        sink: &Arc<dyn GradientSink>,
        loss: impl FnOnce(&M) -> Tensor<1>,
    ) -> Result<f32, Error> {
        self.run_kind(PassKind::Prefill, |module| {
            let _recording = self.tape().record_fetching(sink.clone());
            let _running = Running::begin(self.tape().clone());
            let loss = loss(module).sum();
            if !loss.device().is_autodiff() {
                return Err(Error::NotTracked);
            }
            let value = loss.clone().detach().into_scalar();
            loss.backward();
            Ok(value)
        })?
    }

    /// [`run`](Self::run) of a pass in which the module's weights learn: what `pass`
    /// [records](Learning::record) gives gradients, which go to `sink` in f32. For modules on
    /// processors whose weights are floats.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`Error::Gradient`] with what the sink said; [`Error::Misuse`] for a
    /// parameter in blocks, and for rows of one that is stored the other way round.
    ///
    /// # Panics
    /// As there.
    pub fn run_learning<R>(
        &self,
        sink: &Arc<dyn GradientSink>,
        pass: impl FnOnce(&M, &Learning<'_>) -> R,
    ) -> Result<R, Error> {
        self.run_kind(PassKind::Prefill, |module| {
            pass(module, &Learning { tape: self.tape(), sink })
        })
    }
}
