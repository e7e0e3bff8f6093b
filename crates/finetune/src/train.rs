//! The loop in which an adapter learns.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use outsize_train::state::TrainingState;
use outsize_train::{AcceleratedOptimizer, Accelerator, DataLoaderBuilder};

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
    /// Learns from the examples. `observe` is told of every step.
    ///
    /// A training with [states](FinetuneOptions::states) goes on from the last one there, with the bits of one that was not
    /// interrupted.
    ///
    /// # Errors
    /// Settings out of range, a loss that is no number, states that cannot be read or written, and what reading said.
    pub fn train(
        &mut self,
        examples: &Examples,
        options: &FinetuneOptions,
        mut observe: impl FnMut(&FinetuneStep),
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
        let batches = accelerator
            .prepare_data_loader(loader.build(InMemDataset::new(examples.examples.clone())))?;
        let of_epoch = batches.num_batches().div_ceil(options.accumulate);
        let steps = options.epochs.saturating_mul(of_epoch);
        let steps = options.max_steps.map_or(steps, |most| most.min(steps));
        let mut adamw = accelerator.prepare_optimizer(
            AdamWConfig::new()
                .with_beta_1(options.betas[0])
                .with_beta_2(options.betas[1])
                .with_epsilon(options.epsilon)
                .with_weight_decay(options.weight_decay)
                .init(),
        );
        let done = Arc::new(Mutex::new(0usize));
        accelerator.register_for_checkpointing("step", &done)?;
        let mut resumed = None;
        if options.states.is_some() {
            let state = TrainingState::new().model(&mut self.adapter).optimizer(&mut adamw);
            if accelerator.resume(state.data_loader(&batches))?.is_some() {
                resumed = Some(*done.lock().unwrap_or_else(PoisonError::into_inner));
            }
        }
        let mut step = resumed.unwrap_or(0);
        let mut last = f64::NAN;
        while step < steps && !self.is_stopped() {
            let (mut sums, mut started) = (Accumulated::default(), Instant::now());
            for batch in batches.iter() {
                accelerator.accumulate();
                let Some((norm, rate)) = self.learn(
                    &accelerator,
                    &mut adamw,
                    &batch.map_err(|error| outsize_train::Error::Setting(error.to_string()))?,
                    options,
                    [step, steps],
                    &mut sums,
                )?
                else {
                    continue;
                };
                step += 1;
                *done.lock().unwrap_or_else(PoisonError::into_inner) = step;
                last = sums.loss / sums.targets.max(1) as f64;
                observe(&FinetuneStep {
                    step,
                    steps,
                    loss: last,
                    grad_norm: norm,
                    learning_rate: rate,
                    tokens: sums.tokens,
                    seconds: started.elapsed().as_secs_f64(),
                });
                let over = step == steps || self.is_stopped();
                if options.states.is_some() && (over || step.is_multiple_of(options.save_steps)) {
                    let state = TrainingState::new().model(&mut self.adapter).optimizer(&mut adamw);
                    accelerator.save_state(state.data_loader(&batches))?;
                }
                if over {
                    break;
                }
                (sums, started) = (Accumulated::default(), Instant::now());
            }
        }
        Ok(Finetuned { steps: step, of: steps, resumed, loss: last })
    }

    /// Learns from one batch: gives the norm of the gradients and the learning rate, if it ends a step.
    fn learn(
        &mut self,
        accelerator: &Accelerator,
        adamw: &mut AcceleratedOptimizer,
        examples: &[Example],
        options: &FinetuneOptions,
        [step, steps]: [usize; 2],
        sums: &mut Accumulated,
    ) -> Result<Option<(f64, f64)>, FinetuneError> {
        let found = self.gradients(examples)?;
        if !found.loss.is_finite() {
            return Err(FinetuneError::Loss { step: step + 1, loss: found.loss });
        }
        let longest = examples.iter().map(|example| example.tokens.len()).max().unwrap_or(0);
        sums.loss += found.loss;
        sums.targets += found.targets;
        sums.tokens += longest * examples.len();
        let targets = found.targets;
        let gradients = self.adapter.gradients(found);
        let mut gradients = accelerator.with_gradients(gradients, targets, &self.adapter)?;
        let most = options.max_grad_norm.unwrap_or(f64::INFINITY);
        let norm = accelerator.clip_grad_norm(&self.adapter, &mut gradients, most);
        let rate = options.rate(step, steps);
        self.adapter = adamw.step(rate, self.adapter.clone(), gradients);
        Ok(norm.map(|norm| (norm, rate)))
    }
}
