//! What a rank knows of the step that it is in: shared by accelerator, loaders and optimizers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The batch that a loader gave last, as one rank sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ActiveBatch {
    /// Which loader; the one iterated last comes last.
    pub loader: u64,
    /// Whether it ends its epoch, on all ranks.
    pub is_last: bool,
    /// How many of its items this rank has that no other has: 0 for a repeated item.
    pub items: usize,
    /// What this rank's mean over items counts for in the mean of all ranks' means: 1 if all
    /// have as many items.
    pub weight: f64,
}

/// Where a rank is between two optimizer steps.
#[derive(Debug)]
pub(crate) struct StepState {
    /// Whether the micro-batch that goes on ends in an optimizer step.
    pub sync_gradients: bool,
    /// Micro-batches begun by `accumulate` since the last optimizer step.
    pub micro_batches: usize,
    /// Guards of `no_sync` that are alive.
    pub no_sync: usize,
    /// Whether the last optimizer step was left out because of an overflow.
    pub was_skipped: bool,
    /// Loaders that are being iterated.
    pub batches: Vec<ActiveBatch>,
    /// Batches taken since the start, for seeds.
    pub batches_taken: u64,
    /// Whether ranks train apart for a while, as in local SGD.
    pub is_local: bool,
    /// Whether some ranks may run out of batches before others.
    pub is_uneven: bool,
}

impl Default for StepState {
    fn default() -> Self {
        Self {
            sync_gradients: true,
            micro_batches: 0,
            no_sync: 0,
            was_skipped: false,
            batches: Vec::new(),
            batches_taken: 0,
            is_local: false,
            is_uneven: false,
        }
    }
}

impl StepState {
    /// The batch of the innermost loader that is being iterated.
    pub fn batch(&self) -> Option<ActiveBatch> {
        self.batches.last().copied()
    }

    /// A loader gave a batch.
    pub fn enter(&mut self, batch: ActiveBatch) {
        self.batches_taken += 1;
        match self.batches.iter_mut().find(|active| active.loader == batch.loader) {
            Some(active) => *active = batch,
            None => self.batches.push(batch),
        }
    }

    /// A loader is through, or was left.
    pub fn leave(&mut self, loader: u64) {
        self.batches.retain(|active| active.loader != loader);
    }
}

/// A handle to the [`StepState`] of a rank.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedStep(Arc<Mutex<StepState>>);

impl SharedStep {
    pub fn lock(&self) -> MutexGuard<'_, StepState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
