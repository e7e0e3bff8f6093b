//! Backward passes, and what happens to gradients before the optimizer's step.

use std::collections::HashMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use super::Accelerator;
use crate::Error;
use crate::gradients::{self, StepGradients, each_gradient};

/// Gradients that wait for the micro-batch that ends the step.
#[derive(Debug, Default)]
pub(super) struct Accumulated {
    pub(super) flat: HashMap<ParamId, Tensor<1>>,
    /// Tokens so far, by the first parameter of the model.
    pub(super) tokens: HashMap<ParamId, f64>,
}

/// While it lives, gradients accumulate and no rank waits for another.
#[must_use = "gradients are synchronized again when this is dropped"]
pub struct NoSync<'a>(&'a Accelerator);

impl Drop for NoSync<'_> {
    fn drop(&mut self) {
        self.0.step_state().no_sync -= 1;
    }
}

impl Accelerator {
    /// Begins a micro-batch: call it first in the loop's body.
    ///
    /// Its backward passes end in an optimizer step if it is the last of
    /// [`gradient_accumulation_steps`](crate::AcceleratorBuilder::gradient_accumulation_steps), or
    /// of the loader's epoch.
    pub fn accumulate(&self) {
        let mut state = self.step_state();
        if state.sync_gradients {
            state.micro_batches = 0;
        }
        state.micro_batches += 1;
        let is_last = state.batch().is_some_and(|batch| batch.is_last);
        let is_full = state.micro_batches >= self.gradient_accumulation_steps();
        state.sync_gradients = is_last || is_full;
    }

    /// Accumulates gradients without an optimizer step while the guard lives.
    pub fn no_sync(&self) -> NoSync<'_> {
        self.step_state().no_sync += 1;
        NoSync(self)
    }

    /// Whether backward passes of this micro-batch end in an optimizer step.
    #[must_use]
    pub fn sync_gradients(&self) -> bool {
        let state = self.step_state();
        state.sync_gradients && state.no_sync == 0
    }

    /// Whether the last step was left out, because gradients overflowed in fp16.
    #[must_use]
    pub fn optimizer_step_was_skipped(&self) -> bool {
        self.step_state().was_skipped
    }

    /// Micro-batches of one optimizer step.
    #[must_use]
    pub fn gradient_accumulation_steps(&self) -> usize {
        self.inner.settings.gradient_accumulation_steps
    }

    /// The gradients of `loss`, a mean over this rank's items of the batch.
    ///
    /// At the end of a step these are the gradients of the mean over all items of the ranks'
    /// batches, averaged over the step's micro-batches; between, they are kept, and nothing is
    /// returned. A loss of fp16 training is scaled before and its gradients after.
    ///
    /// # Errors
    ///
    /// A rank failed, calls something else, or is late.
    pub fn backward<const D: usize, M: Module>(
        &self,
        loss: Tensor<D>,
        model: &M,
    ) -> Result<StepGradients, Error> {
        let weight = self.step_state().batch().map_or(1.0, |batch| batch.weight);
        self.backward_of(loss, model, weight, None)
    }

    /// The gradients of `loss`, a *sum* over `tokens` tokens, as for sequences of different
    /// lengths.
    ///
    /// At the end of a step these are the gradients of the mean over the tokens of all its
    /// micro-batches on all ranks, each token counting the same. Use it or
    /// [`backward`](Self::backward) for a model, not both.
    ///
    /// # Errors
    ///
    /// A rank failed, calls something else, or is late; no rank had a token.
    pub fn backward_tokens<const D: usize, M: Module>(
        &self,
        loss: Tensor<D>,
        tokens: usize,
        model: &M,
    ) -> Result<StepGradients, Error> {
        let repeats = self.step_state().batch().is_some_and(|batch| batch.items == 0);
        let (weight, tokens) = if repeats { (0.0, 0.0) } else { (1.0, tokens as f64) };
        self.backward_of(loss, model, weight, Some(tokens))
    }

    fn backward_of<const D: usize, M: Module>(
        &self,
        loss: Tensor<D>,
        model: &M,
        weight: f64,
        tokens: Option<f64>,
    ) -> Result<StepGradients, Error> {
        let scale = self.inner.scaler().as_ref().map_or(1.0, |scaler| scaler.scale());
        let loss = match weight * scale {
            1.0 => loss,
            factor => loss.cast(DType::F32).mul_scalar(factor),
        };
        let started = self.profile_start();
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        self.profile_end("backward", started);
        self.step_gradients(gradients, model, tokens, scale)
    }

    /// The same as [`backward_tokens`](Self::backward_tokens) of gradients that were computed in
    /// another way: those of a sum over `tokens` tokens, which no scale of fp16 training was
    /// multiplied with.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn with_gradients<M: Module>(
        &self,
        gradients: GradientsParams,
        tokens: usize,
        model: &M,
    ) -> Result<StepGradients, Error> {
        self.step_gradients(gradients, model, Some(tokens as f64), 1.0)
    }

    fn step_gradients<M: Module>(
        &self,
        mut gradients: GradientsParams,
        model: &M,
        tokens: Option<f64>,
        scale: f64,
    ) -> Result<StepGradients, Error> {
        let tokens = tokens.map(|tokens| (first_parameter(model), tokens));
        if !self.sync_gradients() {
            self.inner.accumulated().add(model, gradients, tokens);
            return Ok(StepGradients::default());
        }
        let tokens = self.inner.accumulated().take(model, &mut gradients, tokens);
        self.joining(Some(tokens.is_some()))?;
        let started = self.profile_start();
        self.average(model, &mut gradients, tokens, scale)?;
        self.profile_end("all_reduce", started);
        Ok(StepGradients(self.unless_overflown(model, gradients)))
    }

    /// Averages what this rank has accumulated over ranks, as one that has no batch left, in a step
    /// of others which do or do not count tokens.
    pub(super) fn average_accumulated<M: Module>(
        &self,
        model: &M,
        counts_tokens: bool,
    ) -> Result<(), Error> {
        let mut gradients = GradientsParams::new();
        let tokens = counts_tokens.then(|| (first_parameter(model), 0.0));
        let tokens = self.inner.accumulated().take(model, &mut gradients, tokens);
        self.average(model, &mut gradients, tokens, 1.0)
    }

    fn average<M: Module>(
        &self,
        model: &M,
        gradients: &mut GradientsParams,
        tokens: Option<f64>,
        scale: f64,
    ) -> Result<(), Error> {
        let (micro_batches, is_local) = {
            let state = self.step_state();
            (state.micro_batches.max(1), state.is_local)
        };
        let ranks = if is_local { 1 } else { self.num_processes() };
        let mut divisor = scale;
        match tokens {
            None => divisor *= (ranks * micro_batches) as f64,
            Some(tokens) if ranks == 1 => divisor *= tokens,
            Some(tokens) => divisor *= self.gather_object(&tokens)?.iter().sum::<f64>(),
        }
        if divisor == 0.0 {
            let message = "no token of this step counts: leave such batches out";
            return Err(Error::Setting(message.to_owned()));
        }
        if ranks == 1 {
            gradients::scale(model, gradients, divisor.recip());
            return Ok(());
        }
        self.agree(|| format!("backward of {}", gradients::describe(model)))?;
        let bucket_bytes = self.inner.settings.bucket_bytes;
        let communicator = self.communicator();
        gradients::all_reduce(communicator, model, gradients, divisor.recip(), bucket_bytes)
    }

    /// Leaves the step out if fp16 gradients overflowed, and adapts the scale of the loss.
    fn unless_overflown<M: Module>(
        &self,
        model: &M,
        mut gradients: GradientsParams,
    ) -> Option<GradientsParams> {
        let mut scaler = self.inner.scaler();
        let is_finite = match &mut *scaler {
            None => true,
            Some(scaler) => {
                let is_finite = gradients::squared_norm(model, &mut gradients).is_finite();
                scaler.update(is_finite);
                is_finite
            }
        };
        self.step_state().was_skipped = !is_finite;
        is_finite.then_some(gradients)
    }

    /// Scales gradients down so that their norm over all parameters is at most `max_norm`, and
    /// gives the norm they had; none while gradients accumulate.
    pub fn clip_grad_norm<M: Module>(
        &self,
        model: &M,
        gradients: &mut StepGradients,
        max_norm: f64,
    ) -> Option<f64> {
        let gradients = gradients.0.as_mut()?;
        let norm = gradients::squared_norm(model, gradients).sqrt();
        gradients::scale(model, gradients, (max_norm / (norm + 1e-6)).min(1.0));
        Some(norm)
    }

    /// Clamps every gradient to `[-max_value, max_value]`; does nothing while gradients
    /// accumulate.
    pub fn clip_grad_value<M: Module>(
        &self,
        model: &M,
        gradients: &mut StepGradients,
        max_value: f64,
    ) {
        if let Some(gradients) = &mut gradients.0 {
            each_gradient(model, gradients, &mut |flat| {
                Some(flat.gradient?.clamp(-max_value, max_value))
            });
        }
    }

    /// Drops gradients that wait for a step, forgets loaders that are being iterated, and frees
    /// what is kept for the next step's activations and gradients.
    pub fn free_memory(&self) {
        *self.inner.accumulated() = Accumulated::default();
        let mut state = self.step_state();
        // Guards that are alive, and the numbers that seeds are made of, go on.
        (state.sync_gradients, state.micro_batches) = (true, 0);
        state.batches.clear();
        drop(state);
        outsize_kernels::free_buffers();
    }
}

impl Accumulated {
    fn add<M: Module>(
        &mut self,
        model: &M,
        mut gradients: GradientsParams,
        tokens: Option<(ParamId, f64)>,
    ) {
        each_gradient(model, &mut gradients, &mut |flat| {
            let sum = match self.flat.remove(&flat.id) {
                None => flat.gradient?,
                Some(sum) => flat.gradient.map_or(sum.clone(), |gradient| sum + gradient),
            };
            self.flat.insert(flat.id, sum);
            None
        });
        if let Some((key, tokens)) = tokens {
            *self.tokens.entry(key).or_default() += tokens;
        }
    }

    /// Adds what waits for this model to `gradients`; gives all tokens of the step.
    fn take<M: Module>(
        &mut self,
        model: &M,
        gradients: &mut GradientsParams,
        tokens: Option<(ParamId, f64)>,
    ) -> Option<f64> {
        if !self.flat.is_empty() {
            each_gradient(model, gradients, &mut |flat| match (
                self.flat.remove(&flat.id),
                flat.gradient,
            ) {
                (Some(sum), Some(gradient)) => Some(sum + gradient),
                (sum, gradient) => sum.or(gradient),
            });
        }
        tokens.map(|(key, tokens)| tokens + self.tokens.remove(&key).unwrap_or_default())
    }
}

/// What tells a model from others.
pub(super) fn first_parameter<M: Module>(model: &M) -> ParamId {
    struct First(Option<ParamId>);
    impl ModuleVisitor for First {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.get_or_insert(param.id);
        }
    }
    let mut first = First(None);
    model.visit(&mut first);
    first.0.unwrap_or_else(|| ParamId::from(0))
}
