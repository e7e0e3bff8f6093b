//! A learning rate that moves with the optimizer's steps.

use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};

use crate::step_state::SharedStep;

/// Burn's scheduler, which moves on when the optimizer does, by as many steps as there are ranks
/// unless batches are split.
///
/// So a schedule that was made for one rank ends with the same epoch on several, which make fewer
/// steps of larger batches.
#[derive(Clone)]
pub struct AcceleratedScheduler {
    scheduler: ModuleLrScheduler,
    stride: usize,
    step: SharedStep,
    with_optimizer: bool,
}

impl AcceleratedScheduler {
    pub(crate) fn new(
        scheduler: ModuleLrScheduler,
        stride: usize,
        with_optimizer: bool,
        step: SharedStep,
    ) -> Self {
        Self { scheduler, stride, step, with_optimizer }
    }

    /// The learning rate of the optimizer's step that comes next: call it once a micro-batch,
    /// between backward and the optimizer's step.
    ///
    /// While gradients accumulate, and when the step is left out, the schedule does not move.
    pub fn step(&mut self) -> ModuleLearningRate {
        if !self.with_optimizer {
            return self.scheduler.step();
        }
        let state = self.step.lock();
        if !state.sync_gradients || state.no_sync > 0 || state.was_skipped {
            return self.scheduler.clone().step();
        }
        let rate = self.scheduler.step();
        (1..self.stride).for_each(|_| drop(self.scheduler.step()));
        rate
    }

    /// Burn's scheduler.
    #[must_use]
    pub fn inner(&self) -> &ModuleLrScheduler {
        &self.scheduler
    }

    /// Burn's scheduler, to load its state.
    pub fn inner_mut(&mut self) -> &mut ModuleLrScheduler {
        &mut self.scheduler
    }
}
