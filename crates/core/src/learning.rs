//! Passes in which a dispatched module's own weights learn.

use crate::tape::{GradientSink, Tape};
use crate::{Dispatched, Error, PassKind};
use burn::tensor::Gradients;
use std::sync::Arc;

/// A pass whose gradients somebody takes: see [`Dispatched::run_learning`].
pub struct Learning<'a> {
    tape: &'a Tape,
    sink: &'a Arc<dyn GradientSink>,
}

impl Learning<'_> {
    /// Runs `work`, in which every value that the module asks for is a leaf of Burn's graph and
    /// every matrix that is multiplied learns, and hands the gradients over that it gives.
    ///
    /// # Errors
    /// That of `work`.
    ///
    /// # Unwinds
    /// To [`Dispatched::run_learning`] with what the sink said.
    pub fn record<R, E>(&self, work: impl FnOnce() -> Result<(R, Gradients), E>) -> Result<R, E> {
        let recording = self.tape.record(self.sink.clone());
        let (result, mut found) = work()?;
        recording.take_leaves().into_iter().for_each(|leaf| leaf(&mut found));
        Ok(result)
    }
}

impl<M> Dispatched<M> {
    /// [`run`](Self::run) of a pass in which the module's weights learn: what `pass`
    /// [records](Learning::record) gives gradients, which go to `sink` in f32. For modules on
    /// processors whose weights are floats.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`Error::Gradient`] with what the sink said; [`Error::Misuse`] for a
    /// parameter in blocks, or stored with its axes the other way round.
    ///
    /// # Panics
    /// As there.
    pub fn run_learning<R>(
        &self,
        sink: &Arc<dyn GradientSink>,
        pass: impl FnOnce(&M, &Learning<'_>) -> R,
    ) -> Result<R, Error> {
        self.run_kind(PassKind::Prefill, |module| {
            pass(module, &Learning { tape: self.tape(), sink })
        })
    }
}
