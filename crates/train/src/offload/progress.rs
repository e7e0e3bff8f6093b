//! How far a training has come whose weights learn on the disk.

use serde::{Deserialize, Serialize};

use crate::Error;

/// How far a training has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// What tells it from others; nothing before it begins.
    pub training: Option<String>,
    /// Steps that all weights have made.
    pub step: usize,
    /// Batches of the next step whose gradients are there.
    pub batch: usize,
    /// The sums of the batches of the last step, if there was one.
    pub last: StepSums,
    /// Those of the batches of the next.
    pub sums: StepSums,
    /// The step that some weights have made, if the gradients are complete.
    pub update: Option<PendingStep>,
}

/// A step whose gradients are complete.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PendingStep {
    /// The norm of the gradients of the mean.
    pub norm: f64,
    /// What the sums of gradients are multiplied by.
    pub scale: f64,
    /// The learning rate.
    pub rate: f64,
}

/// Sums over the batches of a step so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSums {
    loss: f64,
    /// What the gradients are the mean over, such as labels.
    pub items: usize,
    /// Tokens that were run, if there are such.
    pub tokens: usize,
}

impl StepSums {
    /// Adds the sum of the losses of `items`, of a batch of a step that is counted from 1.
    ///
    /// # Errors
    /// [`Error::Loss`]: it is no number.
    pub fn add(
        &mut self,
        step: usize,
        loss: f64,
        items: usize,
        tokens: usize,
    ) -> Result<(), Error> {
        if !loss.is_finite() {
            return Err(Error::Loss { step, loss });
        }
        self.loss += loss;
        self.items += items;
        self.tokens += tokens;
        Ok(())
    }

    /// The mean loss of the items.
    pub fn mean(&self) -> f64 {
        self.loss / self.items.max(1) as f64
    }
}
