//! A model all of whose weights learn.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use outsize_checkpoint::TensorInfo;
use outsize_core::{GradientSink, PassOrder};
use outsize_models::{BatchLoss, DispatchedDecoder, Init};
use outsize_plan::DeviceMap;
use outsize_train::offload::OffloadedStates;

use crate::opened_model::OpenedModel;
use crate::tuner::{Evaluation, batch, mean_loss};
use crate::{Example, Examples, FinetuneError};

/// A model within a budget all of whose weights learn: see
/// [`FinetuneBuilder::full`](crate::FinetuneBuilder::full).
#[derive(Debug)]
pub struct FullFinetuner {
    pub(super) model: OpenedModel,
    pub(super) states: OffloadedStates,
    map: DeviceMap,
    /// None while a step changes what it reads.
    dispatched: Option<DispatchedDecoder>,
    /// In which order the one before it was asked for weights.
    order: Option<PassOrder>,
    /// Read by those before it.
    bytes_read: u64,
}

impl FullFinetuner {
    pub(super) fn new(
        model: OpenedModel,
        states: OffloadedStates,
        map: DeviceMap,
    ) -> Result<Self, FinetuneError> {
        let mut tuner = Self { model, states, map, dispatched: None, order: None, bytes_read: 0 };
        tuner.dispatch()?;
        Ok(tuner)
    }

    /// Begins to read the weights as they are now. Nothing is left in memory of those before.
    pub(super) fn dispatch(&mut self) -> Result<(), FinetuneError> {
        self.release();
        let weights = self.states.weights()?;
        let config = &self.model.config;
        let mut options = config.options(&OffloadedStates::weight_tensors(&weights));
        options.ignore.extend(OffloadedStates::NOT_WEIGHTS.map(str::to_owned));
        let device = burn::tensor::Device::flex();
        let init = Init { compute: self.model.settings.compute, ..Init::new(&device) };
        let model = config.dispatch(&init, &weights, &self.map, &options)?;
        self.order.take().into_iter().for_each(|order| model.expect(order));
        self.dispatched = Some(model);
        Ok(())
    }

    /// Gives back the memory of the weights.
    pub(super) fn release(&mut self) {
        if let Some(model) = self.dispatched.take() {
            self.bytes_read += model.watch()().bytes_read;
            self.order = Some(model.pass_order());
        }
    }

    /// The model, dispatched over the weights as they are now.
    fn dispatched(&self) -> Result<&DispatchedDecoder, FinetuneError> {
        Ok(self.dispatched.as_ref().ok_or(outsize_train::Error::HalfStep)?)
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
        self.states.steps()
    }

    /// Values that learn.
    pub fn parameter_count(&self) -> u64 {
        self.states.values()
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

    /// Writes the model as a checkpoint: its weights as they are now under the names and in the
    /// types that they had, other tensors as they were, and the files beside them. The folder
    /// appears complete or not at all; it must not exist, or be empty. Gives the names of files
    /// that were not copied, as they are too large or lead out of the folder.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<Vec<String>, FinetuneError> {
        let model = &self.model.checkpoint;
        // A head that is the table once more learns as that does.
        let tied = self.model.config.stored_head(model.tensors());
        let table = |tensor: &TensorInfo| {
            tied.filter(|[_, head]| head.name == tensor.name).map(|[table, _]| table)
        };
        Ok(self.states.save(model, folder, table)?)
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
