//! The loop in which an adapter learns.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::Device;
use outsize_models::LowRankGradients;
use outsize_train::data::BatchLoader;
use outsize_train::offload::StepSums;
use outsize_train::state::TrainingState;
use outsize_train::{Accelerator, DataLoaderBuilder, MixedPrecision};
use serde::{Deserialize, Serialize};

use crate::{Example, Examples, FinetuneError, FinetuneOptions, Finetuner};

/// The figures of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FinetuneStep {
    /// Its number, counted from 1.
    pub step: usize,
    /// How many there will be.
    pub steps: usize,
    /// The mean of the cross-entropies of its targets, before it.
    pub loss: f64,
    /// The norm of its gradients, before they were clipped.
    pub grad_norm: f64,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Tokens that it ran, padding included.
    pub tokens: usize,
    /// How long it took, or what of it this process made.
    pub seconds: f64,
}

/// The result of a training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finetuned {
    /// Steps that were made, those before an interruption included.
    pub steps: usize,
    /// How many there were to be.
    pub of: usize,
    /// The steps that a saved state had, if there was one.
    pub resumed: Option<usize>,
    /// The loss of the last step.
    pub loss: f64,
}

impl Finetuned {
    /// Whether it ended because the caller wanted it to.
    pub fn was_stopped(&self) -> bool {
        self.steps < self.of
    }
}

/// Gives examples as they are.
#[derive(Clone)]
struct ExampleBatcher;

impl Batcher<Example, Vec<Example>> for ExampleBatcher {
    fn batch(&self, items: Vec<Example>, _device: &Device) -> Vec<Example> {
        items
    }
}

impl Finetuner {
    /// Learns from the examples. `observe` is told of every step.
    ///
    /// A training with [states](FinetuneOptions::states) goes on from the last one there, with the
    /// bits of one that was not interrupted.
    ///
    /// # Errors
    /// Settings out of range, a loss that is no number, states that cannot be read or written or
    /// that are of another training, and what reading said.
    pub fn train(
        &mut self,
        examples: &Examples,
        options: &FinetuneOptions,
        mut observe: impl FnMut(&FinetuneStep),
    ) -> Result<Finetuned, FinetuneError> {
        options.check()?;
        let builder = Accelerator::builder().device(Device::flex().autodiff());
        let builder = builder.mixed_precision(MixedPrecision::No);
        let builder = builder.gradient_accumulation_steps(options.accumulate);
        let builder = match &options.states {
            Some(folder) => builder.state_dir(folder).total_limit(2),
            None => builder,
        };
        let accelerator = builder.build()?;
        require_one_rank(&accelerator)?;
        let batches = accelerator.prepare_data_loader(batches(
            examples,
            self.settings.batch,
            options.shuffle,
        ))?;
        let of_epoch = batches.num_batches().div_ceil(options.accumulate);
        let steps = options.steps(of_epoch);
        let mut adamw = accelerator.prepare_optimizer(options.adamw().init());
        let done = TrainingProgress::new(self.describes(examples, options));
        let mut resumed = None;
        if let Some(folder) = &options.states {
            accelerator.register_for_checkpointing("progress", &done.0)?;
            let wanted = done.get().training.clone();
            let mut adapter = self.adapter.clone();
            let state = TrainingState::new().model(&mut adapter).optimizer(&mut adamw);
            let loaded = accelerator.resume(state.data_loader(&batches))?;
            if done.get().training != wanted {
                return Err(outsize_train::Error::OtherTraining { folder: folder.clone() }.into());
            }
            self.adapter = adapter;
            resumed = loaded.map(|_| done.get().step);
        }
        let (mut is_over, mut saved) = (done.get().step >= steps, Instant::now());
        while !is_over {
            let mut started = Instant::now();
            for batch in batches.iter() {
                accelerator.accumulate();
                let batch =
                    batch.map_err(|error| outsize_train::Error::Setting(error.to_string()))?;
                let step = done.get().step;
                let found = self.learn_from(&batch, &done)?;
                let labels = found.targets;
                let gradients = self.adapter.gradients(found);
                let mut gradients = accelerator.with_gradients(gradients, labels, &self.adapter)?;
                let most = options.max_grad_norm.unwrap_or(f64::INFINITY);
                let norm = accelerator.clip_grad_norm(&self.adapter, &mut gradients, most);
                if norm.is_some_and(|norm| !norm.is_finite()) {
                    return Err(outsize_train::Error::Gradients { step: step + 1 }.into());
                }
                let rate = options.rate(step, steps);
                self.adapter = adamw.step(rate, self.adapter.clone(), gradients);
                if let Some(norm) = norm {
                    let sums = done.end_step();
                    observe(&FinetuneStep {
                        step: step + 1,
                        steps,
                        loss: done.get().loss,
                        grad_norm: norm,
                        learning_rate: rate,
                        tokens: sums.tokens,
                        seconds: started.elapsed().as_secs_f64(),
                    });
                    started = Instant::now();
                }
                is_over = done.get().step == steps || self.is_stopped();
                if options.states.is_some() && (is_over || saved.elapsed() >= options.save_after) {
                    let state = TrainingState::new().model(&mut self.adapter).optimizer(&mut adamw);
                    accelerator.save_state(state.data_loader(&batches))?;
                    saved = Instant::now();
                }
                if is_over {
                    break;
                }
            }
        }
        let progress = done.get();
        Ok(Finetuned { steps: progress.step, of: steps, resumed, loss: progress.loss })
    }

    /// The gradients of one batch of a step.
    fn learn_from(
        &self,
        examples: &[Example],
        done: &TrainingProgress,
    ) -> Result<LowRankGradients, FinetuneError> {
        let found = self.gradients(examples)?;
        let mut progress = done.get();
        let step = progress.step + 1;
        add(&mut progress.sums, step, found.loss, found.targets, examples)?;
        Ok(found)
    }

    /// What tells a training from others: a state of one is of no use to another.
    fn describes(&self, examples: &Examples, options: &FinetuneOptions) -> String {
        let settings =
            FinetuneOptions { states: None, save_after: Duration::default(), ..options.clone() };
        let model = &self.settings;
        format!(
            "{settings:?}, {:?} in {:?} from {:?} and seed {}, batches of {}, {} examples {:x}, {}",
            model.model,
            model.compute,
            model.adapter,
            model.seed,
            model.batch,
            examples.examples.len(),
            examples.checksum(),
            self.lora.to_json()
        )
    }
}

/// Adds the loss of the examples of a batch to the sums of its step, which is counted from 1.
pub(crate) fn add(
    sums: &mut StepSums,
    step: usize,
    loss: f64,
    targets: usize,
    examples: &[Example],
) -> Result<(), FinetuneError> {
    let longest = examples.iter().map(|example| example.tokens.len()).max().unwrap_or(0);
    Ok(sums.add(step, loss, targets, longest * examples.len())?)
}

/// The examples in batches, in the order that a seed draws for each epoch.
pub(crate) fn batches(
    examples: &Examples,
    batch: usize,
    shuffle: Option<u64>,
) -> BatchLoader<Vec<Example>> {
    let loader = DataLoaderBuilder::new(ExampleBatcher).batch_size(batch);
    let loader = shuffle.into_iter().fold(loader, DataLoaderBuilder::shuffle);
    loader.build(examples.clone())
}

/// Refuses to learn in several processes or threads.
pub(crate) fn require_one_rank(accelerator: &Accelerator) -> Result<(), FinetuneError> {
    match accelerator.num_processes() {
        1 => Ok(()),
        ranks => Err(FinetuneError::Ranks(ranks)),
    }
}

/// How far a training has come, as its states keep it.
struct TrainingProgress(Arc<Mutex<SavedProgress>>);

#[derive(Serialize, Deserialize)]
struct SavedProgress {
    training: String,
    step: usize,
    loss: f64,
    sums: StepSums,
}

impl TrainingProgress {
    fn new(training: String) -> Self {
        let (step, loss, sums) = (0, f64::NAN, StepSums::default());
        Self(Arc::new(Mutex::new(SavedProgress { training, step, loss, sums })))
    }

    fn get(&self) -> MutexGuard<'_, SavedProgress> {
        // Nothing under the lock can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a step; gives its sums.
    fn end_step(&self) -> StepSums {
        let mut progress = self.get();
        let sums = std::mem::take(&mut progress.sums);
        progress.step += 1;
        progress.loss = sums.mean();
        sums
    }
}
