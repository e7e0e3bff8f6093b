//! Saving and resuming a training run.
