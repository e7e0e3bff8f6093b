//! A model that an adapter learns on.

use std::path::Path;

use outsize_lora::LoraConfig;
use outsize_models::{Batch, DispatchedDecoder, Labels, LowRankGradients, ModelConfig};
use outsize_plan::DeviceMap;
use outsize_stream::Stats;

use crate::example::ExampleReader;
use crate::settings::FinetuneSettings;
use crate::{Example, Examples, FinetuneError, LearningAdapter};

/// A model within a budget, and an adapter that learns: see [`finetune`](crate::finetune).
#[derive(Debug)]
pub struct Finetuner {
    pub(crate) model: DispatchedDecoder,
    pub(crate) config: ModelConfig,
    pub(crate) lora: LoraConfig,
    pub(crate) adapter: LearningAdapter,
    pub(crate) reader: ExampleReader,
    /// Blocks of which activations are kept instead of computed again.
    pub(crate) kept: usize,
    pub(crate) settings: FinetuneSettings,
}

/// How well examples are predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The mean of the cross-entropies of all targets.
    pub loss: f64,
    /// How many these are.
    pub targets: usize,
}

impl Finetuner {
    /// Reads a file of examples, as
    /// [`OpenedFinetune::read_examples`](crate::OpenedFinetune::read_examples) does; what it holds
    /// is not counted in the budget.
    ///
    /// # Errors
    /// A line that is none, with its number.
    pub fn read_examples(&self, path: impl AsRef<Path>) -> Result<Examples, FinetuneError> {
        Examples::read(path.as_ref(), &self.reader)
    }

    /// The sum of the cross-entropies of the targets of some examples, and its gradients, in one
    /// pass over the weights forward and one backward.
    ///
    /// # Errors
    /// What reading said; tokens that the model does not have.
    pub fn gradients(&self, examples: &[Example]) -> Result<LowRankGradients, FinetuneError> {
        let (batch, labels) = batch(examples)?;
        let parts = self.adapter.parts();
        Ok(self.model.low_rank_gradients(&batch, &labels, &parts, self.kept)??)
    }

    /// How well examples are predicted, of which nothing is learned.
    ///
    /// # Errors
    /// As [`gradients`](Self::gradients); [`FinetuneError::Stopped`].
    pub fn evaluate(&self, examples: &Examples) -> Result<Evaluation, FinetuneError> {
        let parts = self.adapter.parts();
        mean_loss(examples, &self.settings, |batch, labels| {
            Ok(self.model.low_rank_loss(batch, labels, &parts)??)
        })
    }

    /// Writes the adapter as PEFT does: `adapter_config.json` and `adapter_model.safetensors`, in
    /// f32. The folder appears complete or not at all; it must not exist, or be empty.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), FinetuneError> {
        Ok(outsize_lora::save(folder, &self.lora, &self.config, &self.adapter.parts())?)
    }

    /// The adapter as it is now.
    pub fn adapter(&self) -> &LearningAdapter {
        &self.adapter
    }

    /// Tokens of the longest example.
    pub fn context(&self) -> usize {
        self.reader.context
    }

    /// Of how many blocks activations are kept instead of computed again, which gradient
    /// checkpointing does of the others: as many as make a step faster as predicted. The adapter
    /// learns the same.
    pub fn kept_blocks(&self) -> usize {
        self.kept
    }

    /// Where the model's weights live.
    pub fn device_map(&self) -> &DeviceMap {
        self.model.device_map()
    }

    /// What was read and waited for so far, for asking while a pass is running.
    pub fn watch(&self) -> impl Fn() -> Stats + 'static {
        self.model.watch()
    }

    /// Whether the caller wants the work to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.settings.is_stopped()
    }
}

/// The mean of what `loss` gives of batches of the examples.
pub(crate) fn mean_loss(
    examples: &Examples,
    settings: &FinetuneSettings,
    loss: impl Fn(&Batch, Labels<'_>) -> Result<f64, FinetuneError>,
) -> Result<Evaluation, FinetuneError> {
    let (mut sum, mut count) = (0.0, 0);
    for examples in examples.examples.chunks(settings.batch) {
        if settings.is_stopped() {
            return Err(FinetuneError::Stopped);
        }
        let (batch, labels) = batch(examples)?;
        sum += loss(&batch, &labels)?;
        count += labels.iter().flatten().count();
    }
    Ok(Evaluation { loss: sum / count.max(1) as f64, targets: count })
}

/// Examples side by side, and what each position is to predict.
pub(crate) fn batch(examples: &[Example]) -> Result<(Batch, Vec<Option<u32>>), FinetuneError> {
    let rows: Vec<_> = examples.iter().map(|example| &example.tokens).collect();
    let batch = Batch::left_padded(&rows)?;
    let mut labels = vec![None; batch.rows() * batch.tokens()];
    let rows = labels.chunks_exact_mut(batch.tokens());
    for ((labels, example), padding) in rows.zip(examples).zip(batch.padding()) {
        let next = example.tokens.iter().zip(&example.is_target).skip(1);
        for (label, (token, is_target)) in labels[*padding..].iter_mut().zip(next) {
            *label = is_target.then_some(*token);
        }
    }
    Ok((batch, labels))
}
