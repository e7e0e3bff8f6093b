//! Passes in which somebody is shown what a dispatched module's matrices are multiplied with.

use crate::tape::InputObserver;
use crate::{Dispatched, Error, PassKind, Streamed};
use burn::tensor::Tensor;
use std::sync::Arc;

impl<M> Dispatched<M> {
    /// [`run`](Self::run) of a pass in which `observer` is shown what goes into every matrix whose
    /// layer [tells](Streamed::observe).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
    /// As there.
    pub fn run_observed<R>(
        &self,
        observer: &Arc<dyn InputObserver>,
        pass: impl FnOnce(&M) -> R,
    ) -> Result<R, Error> {
        let _showing = self.tape().show(observer.clone());
        self.run_kind(PassKind::Prefill, pass)
    }
}

impl Streamed {
    /// Whether somebody wants to know what this is multiplied with.
    pub fn is_observed(&self) -> bool {
        self.inner.tape.observer().is_some()
    }

    /// Tells who wants to know that `x`, `[.., columns]`, is multiplied with this.
    pub fn observe<const D: usize>(&self, x: &Tensor<D>) {
        if let Some(observer) = self.inner.tape.observer() {
            let columns = x.dims()[D - 1];
            let data = x.to_data();
            match data.as_slice::<f32>() {
                Ok(rows) => observer.observe(&self.inner.path, rows, columns),
                Err(_) => {
                    let rows: Vec<f32> = data.iter().collect();
                    observer.observe(&self.inner.path, &rows, columns);
                }
            }
        }
    }
}
