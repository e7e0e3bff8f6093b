//! What a pass hands over besides its result: gradients, and what matrices are multiplied with.

use burn::tensor::Gradients;
use outsize_checkpoint::TensorInfo;
use outsize_kernels::FetchedValues;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Takes the gradients of a dispatched module's parameters, as a backward pass finds them.
pub trait GradientSink: Send + Sync {
    /// Adds `gradient` to that of the values from `start` on of a tensor, or of the part of one
    /// that is a parameter, as the checkpoint stores it.
    ///
    /// # Errors
    /// What keeps it from being kept.
    fn add(&self, tensor: &TensorInfo, start: u64, gradient: &[f32]) -> io::Result<()>;
}

/// Is shown what a dispatched module's matrices are multiplied with.
pub trait InputObserver: Send + Sync {
    /// Takes rows of so many `columns` that are multiplied with the matrix at `path`.
    fn observe(&self, path: &str, rows: &[f32], columns: usize);
}

/// Hands over the gradient of a leaf of Burn's graph.
pub(crate) type Leaf = Box<dyn FnOnce(&mut Gradients) + Send>;

/// What is recorded: who takes gradients, which leaves the graph has, and who is shown inputs.
#[derive(Default)]
pub(crate) struct Tape(Mutex<TapeState>);

#[derive(Default)]
struct TapeState {
    /// Nobody while nothing is recorded.
    sink: Option<Arc<dyn GradientSink>>,
    /// If values are fetched anew for the backward pass rather than kept as leaves.
    values: Option<Arc<FetchedValues>>,
    leaves: Vec<Leaf>,
    /// Nobody in most passes.
    observer: Option<Arc<dyn InputObserver>>,
}

impl Tape {
    fn with<R>(&self, work: impl FnOnce(&mut TapeState) -> R) -> R {
        // Nothing under the lock can panic.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records from now on, until that is dropped.
    pub(crate) fn record(&self, sink: Arc<dyn GradientSink>) -> Recording<'_> {
        self.with(|state| state.sink = Some(sink));
        Recording(self)
    }

    /// The same; values are fetched anew for the backward pass, and each hands over its own
    /// gradient.
    pub(crate) fn record_fetching(&self, sink: Arc<dyn GradientSink>) -> Recording<'_> {
        let recording = self.record(sink);
        self.with(|state| state.values = Some(Arc::default()));
        recording
    }

    /// Shows inputs from now on, until that is dropped.
    pub(crate) fn show(&self, observer: Arc<dyn InputObserver>) -> Recording<'_> {
        self.with(|state| state.observer = Some(observer));
        Recording(self)
    }

    /// Who is shown inputs, if anybody is.
    pub(crate) fn observer(&self) -> Option<Arc<dyn InputObserver>> {
        self.with(|state| state.observer.clone())
    }

    /// Does work of which nothing is recorded.
    pub(crate) fn paused<R>(&self, work: impl FnOnce() -> R) -> R {
        self.with_state(TapeState::default(), work)
    }

    /// Does work whose values are those of a graph of its own.
    pub(crate) fn nested<R>(&self, work: impl FnOnce() -> R) -> R {
        let sink = self.sink();
        self.with_state(
            TapeState { sink, values: Some(Arc::default()), ..Default::default() },
            work,
        )
    }

    /// Does work with another state, however it ends.
    fn with_state<R>(&self, state: TapeState, work: impl FnOnce() -> R) -> R {
        struct Back<'a>(&'a Tape, Option<TapeState>);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                if let Some(state) = self.1.take() {
                    // Dropped without the lock.
                    let _left = self.0.with(|now| std::mem::replace(now, state));
                }
            }
        }
        let before = self.with(|now| std::mem::replace(now, state));
        let _back = Back(self, Some(before));
        work()
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.with(|state| state.sink.is_some())
    }

    /// How values are fetched anew, if they are.
    pub(crate) fn values(&self) -> Option<Arc<FetchedValues>> {
        self.with(|state| state.values.clone())
    }

    /// Who takes gradients, if anybody does.
    pub(crate) fn sink(&self) -> Option<Arc<dyn GradientSink>> {
        self.with(|state| state.sink.clone())
    }

    pub(crate) fn add_leaf(&self, leaf: Leaf) {
        self.with(|state| state.leaves.push(leaf));
    }
}

/// Ends what is recorded, however that ends.
pub(crate) struct Recording<'a>(&'a Tape);

impl Recording<'_> {
    pub(crate) fn take_leaves(&self) -> Vec<Leaf> {
        self.0.with(|state| std::mem::take(&mut state.leaves))
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        // Dropped without the lock.
        let _left = self.0.with(std::mem::take);
    }
}
