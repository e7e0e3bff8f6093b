//! An optimizer that steps when gradients are complete.

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::ModuleOptimizer;

use crate::gradients::StepGradients;

/// Burn's optimizer, whose steps do nothing while gradients accumulate or when they overflowed.
#[derive(Clone)]
pub struct AcceleratedOptimizer {
    optimizer: ModuleOptimizer,
}

impl AcceleratedOptimizer {
    pub(crate) fn new(optimizer: ModuleOptimizer) -> Self {
        Self { optimizer }
    }

    /// Updates the model with the gradients of [`backward`](crate::Accelerator::backward).
    pub fn step<M: Module>(
        &mut self,
        learning_rate: impl Into<ModuleLearningRate>,
        model: M,
        gradients: StepGradients,
    ) -> M {
        match gradients.into_inner() {
            Some(gradients) => self.optimizer.step(learning_rate, model, gradients),
            None => model,
        }
    }

    /// Burn's optimizer.
    #[must_use]
    pub fn inner(&self) -> &ModuleOptimizer {
        &self.optimizer
    }

    /// Burn's optimizer, to load its state.
    pub fn inner_mut(&mut self) -> &mut ModuleOptimizer {
        &mut self.optimizer
    }
}
