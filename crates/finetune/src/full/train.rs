//! The loop in which all weights learn.

use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;
use outsize_core::GradientSink;
use outsize_train::data::{LoaderState, ShardedLoader};
use outsize_train::{Accelerator, MixedPrecision};

use super::adamw::AdamWStep;
use super::gradient_file::GradientFile;
use super::states::Update;
use super::step::GroupStep;
use super::tuner::FullFinetuner;
use crate::train::{batches, require_one_rank};
use crate::{Example, Examples, FinetuneError, FinetuneOptions, FinetuneStep, Finetuned};

impl FullFinetuner {
    /// Learns from the examples. `observe` is told of every step. What [`FinetuneOptions`] says of
    /// states is not looked at: they are in the folder that the model was
    /// [opened](crate::FinetuneBuilder::full) with, where each step is kept that is made. A
    /// training that ended in the middle goes on from there, with the bits of one that was not
    /// interrupted.
    ///
    /// # Errors
    /// Settings out of range, a loss that is no number, states of another training, and what
    /// reading or writing said.
    pub fn train(
        &mut self,
        examples: &Examples,
        options: &FinetuneOptions,
        mut observe: impl FnMut(&FinetuneStep),
    ) -> Result<Finetuned, FinetuneError> {
        options.check()?;
        let builder = Accelerator::builder().device(Device::flex());
        let accelerator = builder.mixed_precision(MixedPrecision::No).build()?;
        require_one_rank(&accelerator)?;
        let loader = batches(examples, self.model.settings.batch, options.shuffle);
        let batches = accelerator.prepare_data_loader(loader)?;
        let of_epoch = batches.num_batches().div_ceil(options.accumulate);
        let steps = options.steps(of_epoch);
        let is_new = self.states.progress.training.is_none();
        self.states.begin(self.describes(examples, options))?;
        let resumed = (!is_new).then_some(self.steps());
        let gradients = Arc::new(self.states.gradients()?);
        while self.steps() < steps && !self.is_stopped() {
            let (started, step) = (Instant::now(), self.steps());
            let first = LoaderState {
                epoch: (step / of_epoch) as u64,
                batch: step % of_epoch * options.accumulate,
            };
            let rate = options.rate(step, steps);
            let begun = self.states.progress.update;
            let update = match begun {
                Some(update) => update,
                None if self.add_gradients(&batches, first, options.accumulate, &gradients)? => {
                    self.begin_update(options, rate, &gradients)?
                }
                None => break,
            };
            self.update(options, update, &gradients)?;
            let last = self.states.progress.last;
            observe(&FinetuneStep {
                step: step + 1,
                steps,
                loss: last.mean(),
                grad_norm: update.norm,
                learning_rate: update.rate,
                tokens: last.tokens,
                seconds: started.elapsed().as_secs_f64(),
            });
        }
        let progress = &self.states.progress;
        Ok(Finetuned { steps: progress.step, of: steps, resumed, loss: progress.last.mean() })
    }

    /// Adds the gradients of the batches of a step, but for those that are there. Whether they are
    /// complete: if the caller wants the work to end, those that are there are kept.
    pub(super) fn add_gradients(
        &mut self,
        batches: &ShardedLoader<Vec<Example>>,
        first: LoaderState,
        accumulate: usize,
        gradients: &Arc<GradientFile>,
    ) -> Result<bool, FinetuneError> {
        let there = self.states.progress.batch;
        let mut sums = match there {
            0 => {
                gradients.clear().map_err(|cause| gradients.failed(cause))?;
                Default::default()
            }
            _ => {
                // What a process leaves that is killed from here on are no whole batches.
                self.states.progress.batch = 0;
                self.states.save()?;
                self.states.progress.sums
            }
        };
        let sink: Arc<dyn GradientSink> = gradients.clone();
        batches.load_state(LoaderState { batch: first.batch.saturating_add(there), ..first });
        let mut added = there;
        for batch in batches.iter().take(accumulate.saturating_sub(there)) {
            let batch = batch.map_err(|error| outsize_train::Error::Setting(error.to_string()))?;
            let found = self.gradients(&batch, &sink)?;
            sums.add(self.steps() + 1, found.loss, found.targets, &batch)?;
            added += 1;
            if self.is_stopped() {
                gradients.sync().map_err(|cause| gradients.failed(cause))?;
                self.states.progress.sums = sums;
                self.states.progress.batch = added;
                self.states.save()?;
                return Ok(false);
            }
        }
        self.states.progress.sums = sums;
        Ok(true)
    }

    /// What a step is to make of gradients that are complete; from now on it does.
    pub(super) fn begin_update(
        &mut self,
        options: &FinetuneOptions,
        rate: f64,
        gradients: &GradientFile,
    ) -> Result<Update, FinetuneError> {
        let failed = |cause| gradients.failed(cause);
        let share = 1.0 / self.states.progress.sums.labels.max(1) as f64;
        let norm = gradients.squared_norm().map_err(failed)?.sqrt() * share;
        if !norm.is_finite() {
            return Err(FinetuneError::Gradients { step: self.steps() + 1 });
        }
        let clipped = options.max_grad_norm.map_or(1.0, |most| most / (norm + 1e-6));
        gradients.sync().map_err(failed)?;
        let update = Update { norm, scale: share * clipped.min(1.0), rate };
        self.states.progress.update = Some(update);
        self.states.save()?;
        Ok(update)
    }

    /// Makes a step, or what of it was not made before.
    fn update(
        &mut self,
        options: &FinetuneOptions,
        update: Update,
        gradients: &GradientFile,
    ) -> Result<(), FinetuneError> {
        // What it reads is replaced.
        self.release();
        for group in 0..self.states.layout.groups.len() {
            self.update_group(options, update, gradients, group)?;
        }
        self.states.sync_names()?;
        let progress = &mut self.states.progress;
        progress.step += 1;
        progress.batch = 0;
        progress.last = std::mem::take(&mut progress.sums);
        progress.update = None;
        self.states.save()?;
        self.dispatch()
    }

    pub(super) fn update_group(
        &self,
        options: &FinetuneOptions,
        update: Update,
        gradients: &GradientFile,
        group: usize,
    ) -> Result<(), FinetuneError> {
        let step = self.steps() + 1;
        let adamw = AdamWStep::new(options, step, update.rate, update.scale);
        let weights = &self.states.group(group)?;
        let layout = &self.states.layout;
        GroupStep { weights, layout, gradients, adamw, step: step as u64 }.make(group)
    }

    /// What tells a training from others: states of one are of no use to another.
    pub(super) fn describes(&self, examples: &Examples, options: &FinetuneOptions) -> String {
        let settings = FinetuneOptions {
            states: None,
            save_after: std::time::Duration::default(),
            ..options.clone()
        };
        let model = &self.model.settings;
        format!(
            "{settings:?}, all of {:?} in {:?}, batches of {}, {} examples {:x}",
            model.model,
            model.compute,
            model.batch,
            examples.examples.len(),
            examples.checksum(),
        )
    }
}
