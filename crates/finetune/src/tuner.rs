//! A model that an adapter learns on.

use std::path::Path;

use outsize_generate::{ChatTemplate, Tokenizer};
use outsize_lora::LoraConfig;
use outsize_models::{Batch, DispatchedDecoder, LowRankGradients, ModelConfig};
use outsize_plan::DeviceMap;
use outsize_stream::Stats;

use crate::{Example, Examples, FinetuneError, LearningAdapter};

/// A model within a budget, and an adapter that learns: see [`finetune`](crate::finetune).
#[derive(Debug)]
pub struct Finetuner {
    pub(crate) model: Box<dyn DispatchedDecoder>,
    pub(crate) config: ModelConfig,
    pub(crate) lora: LoraConfig,
    pub(crate) adapter: LearningAdapter,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    /// Tokens that end a text.
    pub(crate) eos: Vec<u32>,
    pub(crate) context: usize,
    pub(crate) batch: usize,
    /// Blocks of which activations are kept instead of computed again.
    pub(crate) kept: usize,
}

/// How well examples are foretold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The mean of the cross-entropies of all targets.
    pub loss: f64,
    /// How many these are.
    pub targets: usize,
}

impl Finetuner {
    /// Reads a file of examples: JSON, one object a line, each an [`ExampleFormat`](crate::ExampleFormat).
    ///
    /// # Errors
    /// A line that is none, with its number.
    pub fn read_examples(&self, path: impl AsRef<Path>) -> Result<Examples, FinetuneError> {
        Examples::read(path.as_ref(), |format| {
            let template = self.template.as_ref();
            // One token more says whether it is longer.
            let all = Example::new(format, &self.tokenizer, template, &self.eos, self.context + 1)?;
            match all.tokens.len() > self.context {
                true => Ok((all.cut(self.context)?, true)),
                false => Ok((all, false)),
            }
        })
    }

    /// The sum of the cross-entropies of the targets of some examples, and its gradients, in one pass over the weights forward
    /// and one backward.
    ///
    /// # Errors
    /// What reading said; tokens that the model does not have.
    pub fn gradients(&self, examples: &[Example]) -> Result<LowRankGradients, FinetuneError> {
        let (batch, targets) = batch(examples)?;
        Ok(self.model.low_rank_gradients(&batch, &targets, &self.adapter.parts(), self.kept)??)
    }

    /// How well examples are foretold, of which nothing is learned.
    ///
    /// # Errors
    /// As [`gradients`](Self::gradients).
    pub fn evaluate(&self, examples: &Examples) -> Result<Evaluation, FinetuneError> {
        let parts = self.adapter.parts();
        let (mut loss, mut count) = (0.0, 0);
        for examples in examples.examples.chunks(self.batch) {
            let (batch, targets) = batch(examples)?;
            loss += self.model.low_rank_loss(&batch, &targets, &parts)??;
            count += targets.iter().flatten().count();
        }
        Ok(Evaluation { loss: loss / count.max(1) as f64, targets: count })
    }

    /// Writes the adapter as PEFT does: `adapter_config.json` and `adapter_model.safetensors`, in f32. The folder appears complete
    /// or not at all; it must not exist, or be empty.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), FinetuneError> {
        Ok(outsize_lora::save(folder, &self.lora, &self.config, &self.adapter.parts())?)
    }

    /// What learns.
    pub fn adapter(&self) -> &LearningAdapter {
        &self.adapter
    }

    /// Of how many blocks activations are kept instead of computed again, so that a step is faster: as many as there is room for,
    /// unless that would make it wait for weights. The adapter learns the same.
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
}

/// Examples side by side, and what each position is to predict.
fn batch(examples: &[Example]) -> Result<(Batch, Vec<Option<u32>>), FinetuneError> {
    let rows: Vec<_> = examples.iter().map(|example| &example.tokens).collect();
    let batch = Batch::left_padded(&rows)?;
    let mut targets = vec![None; batch.rows() * batch.tokens()];
    let rows = targets.chunks_exact_mut(batch.tokens());
    for ((targets, example), padding) in rows.zip(examples).zip(batch.padding()) {
        let next = example.tokens.iter().zip(&example.is_target).skip(1);
        for (target, (token, is_target)) in targets[*padding..].iter_mut().zip(next) {
            *target = is_target.then_some(*token);
        }
    }
    Ok((batch, targets))
}
