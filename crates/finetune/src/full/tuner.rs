//! A model all of whose weights learn.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use outsize_checkpoint::TensorInfo;
use outsize_core::GradientSink;
use outsize_models::{BatchLoss, DispatchedDecoder, Init};
use outsize_plan::DeviceMap;

use super::layout::STATES;
use super::states::States;
use crate::opened_model::OpenedModel;
use crate::tuner::{Evaluation, batch, mean_loss};
use crate::{Example, Examples, FinetuneError};

/// A model within a budget all of whose weights learn: see
/// [`FinetuneBuilder::full`](crate::FinetuneBuilder::full).
#[derive(Debug)]
pub struct FullFinetuner {
    pub(super) model: OpenedModel,
    pub(super) states: States,
    map: DeviceMap,
    /// None while a step changes what it reads.
    dispatched: Option<DispatchedDecoder>,
    /// Read by those before it.
    bytes_read: u64,
}

impl FullFinetuner {
    pub(super) fn new(
        model: OpenedModel,
        states: States,
        map: DeviceMap,
    ) -> Result<Self, FinetuneError> {
        let mut tuner = Self { model, states, map, dispatched: None, bytes_read: 0 };
        tuner.dispatch()?;
        Ok(tuner)
    }

    /// Begins to read the weights as they are now. Nothing is left in memory of those before.
    pub(super) fn dispatch(&mut self) -> Result<(), FinetuneError> {
        self.release();
        let weights = self.states.weights()?;
        let config = &self.model.config;
        let is_weight = |tensor: &&TensorInfo| !STATES.iter().any(|end| tensor.name.ends_with(end));
        let tensors: Vec<_> = weights.tensors().iter().filter(is_weight).cloned().collect();
        let mut options = config.options(&tensors);
        options.ignore.extend(STATES.map(str::to_owned));
        let device = burn::tensor::Device::flex();
        let init = Init { compute: self.model.settings.compute, ..Init::new(&device) };
        self.dispatched = Some(config.dispatch(&init, &weights, &self.map, &options)?);
        Ok(())
    }

    /// Gives back the memory of the weights.
    pub(super) fn release(&mut self) {
        if let Some(model) = self.dispatched.take() {
            self.bytes_read += model.watch()().bytes_read;
        }
    }

    /// The model, dispatched over the weights as they are now.
    fn dispatched(&self) -> Result<&DispatchedDecoder, FinetuneError> {
        self.dispatched.as_ref().ok_or(FinetuneError::HalfStep)
    }

    /// The sum of the cross-entropies of the targets of some examples. Its gradients go to `sink`,
    /// by tensors of the checkpoint.
    ///
    /// # Errors
    /// What reading or the sink said; tokens that the model does not have.
    pub fn gradients(
        &self,
        examples: &[Example],
        sink: &Arc<dyn GradientSink>,
    ) -> Result<BatchLoss, FinetuneError> {
        let (batch, labels) = batch(examples)?;
        Ok(self.dispatched()?.full_gradients(&batch, &labels, sink)??)
    }

    /// How well examples are predicted, of which nothing is learned.
    ///
    /// # Errors
    /// As [`gradients`](Self::gradients); [`FinetuneError::Stopped`].
    pub fn evaluate(&self, examples: &Examples) -> Result<Evaluation, FinetuneError> {
        let model = self.dispatched()?;
        mean_loss(examples, &self.model.settings, |batch, labels| {
            Ok(model.low_rank_loss(batch, labels, &HashMap::new())??)
        })
    }

    /// Reads a file of examples, as
    /// [`OpenedFullFinetune::read_examples`](crate::OpenedFullFinetune::read_examples) does; what
    /// it holds is not counted in the budget.
    ///
    /// # Errors
    /// A line that is none, with its number.
    pub fn read_examples(&self, path: impl AsRef<Path>) -> Result<Examples, FinetuneError> {
        Examples::read(path.as_ref(), &self.model.reader)
    }

    /// Steps that the weights have made, by this process or others before.
    pub fn steps(&self) -> usize {
        self.states.progress.step
    }

    /// Values that learn.
    pub fn parameter_count(&self) -> u64 {
        self.states.layout.values()
    }

    /// Tokens of the longest example.
    pub fn context(&self) -> usize {
        self.model.reader.context
    }

    /// Where the model's weights live.
    pub fn device_map(&self) -> &DeviceMap {
        &self.map
    }

    /// Bytes that were read for passes so far.
    pub fn bytes_read(&self) -> u64 {
        let now = self.dispatched.as_ref().map_or(0, |model| model.watch()().bytes_read);
        self.bytes_read + now
    }

    /// Removes what the training has written in its folder of states; the folder too, if nothing
    /// else is in it.
    pub fn remove_states(mut self) {
        self.release();
        self.states.remove();
    }

    /// Whether the caller wants the work to end.
    pub(super) fn is_stopped(&self) -> bool {
        self.model.settings.is_stopped()
    }
}
