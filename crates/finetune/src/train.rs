//! The loop in which an adapter learns.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::tensor::Device;
use outsize_models::LowRankGradients;
use outsize_train::state::TrainingState;
use outsize_train::{Accelerator, DataLoaderBuilder};
use serde::{Deserialize, Serialize};

use crate::{Example, Examples, FinetuneError, FinetuneOptions, Finetuner};

/// What a step came to.
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
    /// How long it took.
    pub seconds: f64,
}

/// What training came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finetuned {
    /// Steps that were made, those before an interruption included.
    pub steps: usize,
    /// How many there were to be.
    pub of: usize,
    /// The step from which a saved state went on, if there was one.
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

/// Makes nothing of examples.
#[derive(Clone)]
struct Plain;

impl Batcher<Example, Vec<Example>> for Plain {
    fn batch(&self, items: Vec<Example>, _device: &Device) -> Vec<Example> {
        items
    }
}

/// A step on its way.
#[derive(Default)]
struct Accumulated {
    loss: f64,
    targets: usize,
    tokens: usize,
}

impl Finetuner {
    /// Learns from the examples. `observe` is told of every step, and may break.
    ///
    /// A training with [states](FinetuneOptions::states) goes on from the last one there, with the bits of one that was not
    /// interrupted.
    ///
    /// # Errors
    /// Settings out of range, a loss that is no number, states that cannot be read or written or that are of another training,
    /// and what reading said.
    pub fn train(
        &mut self,
        examples: &Examples,
        options: &FinetuneOptions,
        mut observe: impl FnMut(&FinetuneStep) -> ControlFlow<()>,
    ) -> Result<Finetuned, FinetuneError> {
        options.check()?;
        let builder = Accelerator::builder().device(Device::flex().autodiff());
        let builder = builder.gradient_accumulation_steps(options.accumulate);
        let builder = match &options.states {
            Some(folder) => builder.state_dir(folder).total_limit(2),
            None => builder,
        };
        let accelerator = builder.build()?;
        let loader = DataLoaderBuilder::new(Plain).batch_size(self.batch);
        let loader = options.shuffle.into_iter().fold(loader, DataLoaderBuilder::shuffle);
        let loader = loader.build(InMemDataset::new(examples.examples.clone()));
        let batches = accelerator.prepare_data_loader(loader)?;
        let of_epoch = batches.num_batches().div_ceil(options.accumulate);
        let steps = options.epochs.saturating_mul(of_epoch);
        let steps = options.max_steps.map_or(steps, |most| most.min(steps));
        let mut adamw = accelerator.prepare_optimizer(options.adamw().init());
        let mut done = Progress::new(self.describes(examples, options));
        let resumed = match &options.states {
            Some(folder) => {
                accelerator.register_for_checkpointing("progress", &done.0)?;
                let state = TrainingState::new().model(&mut self.adapter).optimizer(&mut adamw);
                let wanted = done.training();
                let resumed = accelerator.resume(state.data_loader(&batches))?;
                if done.training() != wanted {
                    return Err(FinetuneError::OtherTraining { folder: folder.clone() });
                }
                resumed.map(|_| done.step())
            }
            None => None,
        };
        let (mut is_over, mut saved) = (done.step() >= steps, Instant::now());
        while !is_over {
            let (mut sums, mut started) = (Accumulated::default(), Instant::now());
            for batch in batches.iter() {
                accelerator.accumulate();
                let batch =
                    batch.map_err(|error| outsize_train::Error::Setting(error.to_string()))?;
                let found = self.learn_from(&batch, done.step(), &mut sums)?;
                let targets = found.targets;
                let gradients = self.adapter.gradients(found);
                let mut gradients =
                    accelerator.with_gradients(gradients, targets, &self.adapter)?;
                let most = options.max_grad_norm.unwrap_or(f64::INFINITY);
                let norm = accelerator.clip_grad_norm(&self.adapter, &mut gradients, most);
                let rate = options.rate(done.step(), steps);
                self.adapter = adamw.step(rate, self.adapter.clone(), gradients);
                let Some(norm) = norm else { continue };
                done.advance(sums.loss / sums.targets as f64);
                let observed = observe(&FinetuneStep {
                    step: done.step(),
                    steps,
                    loss: done.loss(),
                    grad_norm: norm,
                    learning_rate: rate,
                    tokens: sums.tokens,
                    seconds: started.elapsed().as_secs_f64(),
                });
                is_over = done.step() == steps || observed.is_break();
                if options.states.is_some() && (is_over || saved.elapsed() >= options.save_after) {
                    let state = TrainingState::new().model(&mut self.adapter).optimizer(&mut adamw);
                    accelerator.save_state(state.data_loader(&batches))?;
                    saved = Instant::now();
                }
                if is_over {
                    break;
                }
                (sums, started) = (Accumulated::default(), Instant::now());
            }
        }
        Ok(Finetuned { steps: done.step(), of: steps, resumed, loss: done.loss() })
    }

    /// The gradients of one batch of a step.
    fn learn_from(
        &self,
        examples: &[Example],
        step: usize,
        sums: &mut Accumulated,
    ) -> Result<LowRankGradients, FinetuneError> {
        let found = self.gradients(examples)?;
        if !found.loss.is_finite() {
            return Err(FinetuneError::Loss { step: step + 1, loss: found.loss });
        }
        let longest = examples.iter().map(|example| example.tokens.len()).max().unwrap_or(0);
        sums.loss += found.loss;
        sums.targets += found.targets;
        sums.tokens += longest * examples.len();
        Ok(found)
    }

    /// What tells a training from others: a state of one is of no use to another.
    fn describes(&self, examples: &Examples, options: &FinetuneOptions) -> String {
        let settings =
            FinetuneOptions { states: None, save_after: Duration::default(), ..options.clone() };
        let mut hash = DefaultHasher::new();
        examples.examples.hash(&mut hash);
        format!(
            "{settings:?}, batches of {}, examples {:x}, {}",
            self.batch,
            hash.finish(),
            self.lora.to_json()
        )
    }
}

/// How far a training has come, as its states keep it.
#[derive(Clone)]
struct Progress(Arc<Mutex<SavedProgress>>);

#[derive(Clone, Serialize, Deserialize)]
struct SavedProgress {
    training: String,
    step: usize,
    loss: f64,
}

impl Progress {
    fn new(training: String) -> Self {
        Self(Arc::new(Mutex::new(SavedProgress { training, step: 0, loss: f64::NAN })))
    }

    fn get(&self) -> MutexGuard<'_, SavedProgress> {
        // Nothing under the lock can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn training(&self) -> String {
        self.get().training.clone()
    }

    fn step(&self) -> usize {
        self.get().step
    }

    fn loss(&self) -> f64 {
        self.get().loss
    }

    fn advance(&mut self, loss: f64) {
        let mut progress = self.get();
        progress.step += 1;
        progress.loss = loss;
    }
}
