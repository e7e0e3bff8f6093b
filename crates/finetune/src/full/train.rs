//! The loop in which all weights learn.

use std::time::Instant;

use burn::tensor::Device;
use outsize_train::data::{LoaderState, ShardedLoader};
use outsize_train::offload::StepSums;
use outsize_train::{Accelerator, MixedPrecision};

use super::tuner::FullFinetuner;
use crate::train::{add, batches, require_one_rank};
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
        let is_new = self.states.is_new();
        self.states.begin(self.describes(examples, options))?;
        let resumed = (!is_new).then_some(self.steps());
        while self.steps() < steps && !self.is_stopped() {
            let (started, step) = (Instant::now(), self.steps());
            let first = LoaderState {
                epoch: (step / of_epoch) as u64,
                batch: step % of_epoch * options.accumulate,
            };
            let update = match self.states.pending() {
                Some(update) => update,
                None => match self.add_gradients(&batches, first, options.accumulate)? {
                    Some(sums) => {
                        let rate = options.rate(step, steps);
                        self.states.begin_update(&options.offloaded(), rate, sums)?
                    }
                    None => break,
                },
            };
            self.update(options)?;
            let last = self.states.last();
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
        let loss = self.states.last().mean();
        Ok(Finetuned { steps: self.steps(), of: steps, resumed, loss })
    }

    /// Adds the gradients of the batches of a step, but for those that are there, and gives the
    /// sums of all. Nothing if the caller wants the work to end: those that are there are kept.
    pub(super) fn add_gradients(
        &mut self,
        batches: &ShardedLoader<Vec<Example>>,
        first: LoaderState,
        accumulate: usize,
    ) -> Result<Option<StepSums>, FinetuneError> {
        let (there, mut sums) = self.states.resume_batches()?;
        let sink = self.states.sink();
        batches.load_state(LoaderState { batch: first.batch.saturating_add(there), ..first });
        let mut added = there;
        for batch in batches.iter().take(accumulate.saturating_sub(there)) {
            let batch = batch.map_err(|error| outsize_train::Error::Setting(error.to_string()))?;
            let found = self.gradients(&batch, &sink)?;
            add(&mut sums, self.steps() + 1, found.loss, found.targets, &batch)?;
            added += 1;
            if self.is_stopped() {
                self.states.keep_batches(added, sums)?;
                return Ok(None);
            }
        }
        Ok(Some(sums))
    }

    /// Makes the step that is pending, or what of it was not made before.
    fn update(&mut self, options: &FinetuneOptions) -> Result<(), FinetuneError> {
        // What it reads is replaced.
        self.release();
        self.states.update(&options.offloaded())?;
        self.dispatch()
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
