//! What the batches of a step come to.

use serde::{Deserialize, Serialize};

use crate::{Example, FinetuneError};

/// Sums over the batches of a step so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepSums {
    loss: f64,
    pub labels: usize,
    pub tokens: usize,
}

impl StepSums {
    /// Adds a batch of a step that is counted from 1.
    pub fn add(
        &mut self,
        step: usize,
        loss: f64,
        targets: usize,
        examples: &[Example],
    ) -> Result<(), FinetuneError> {
        if !loss.is_finite() {
            return Err(FinetuneError::Loss { step, loss });
        }
        let longest = examples.iter().map(|example| example.tokens.len()).max().unwrap_or(0);
        self.loss += loss;
        self.labels += targets;
        self.tokens += longest * examples.len();
        Ok(())
    }

    /// The mean of the cross-entropies of all targets.
    pub fn mean(&self) -> f64 {
        self.loss / self.labels.max(1) as f64
    }
}
