use crate::Error;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

/// A kind of pass. A block may compute on another device in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PassKind {
    /// Many tokens of each sequence.
    Prefill,
    /// The same of a text that goes on in the next pass, where this one leaves out what only the
    /// text's end needs.
    PrefillPart,
    /// One token of each sequence; and any pass of a model that knows no difference.
    #[default]
    Decode,
}

/// The pass that a dispatched module is making, if any: whose turn it is, and what went wrong.
///
/// Burn's hooks cannot return errors. A failure is noted here and the thread that met it unwinds;
/// whatever becomes of that unwinding on its way through the module (a scope of threads replaces
/// the payload, a `join` may drop it), the pass ends with the error that was noted.
#[derive(Default)]
pub(crate) struct Pass {
    /// Passes do not interleave: the schedule and the ring are made for one at a time.
    turn: Mutex<()>,
    state: Mutex<State>,
    /// Set when a pass should end.
    stop: Option<Arc<AtomicBool>>,
    /// Whether it is of one token.
    decodes: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The thread that called `run`.
    owner: Option<ThreadId>,
    fault: Option<Error>,
}

/// The panic payload of a thread that met a failure.
struct Raised;

impl Pass {
    pub(crate) fn new(stop: Option<Arc<AtomicBool>>) -> Self {
        Self { stop, ..Self::default() }
    }

    /// Says what kind of pass this is.
    pub(crate) fn set_kind(&self, kind: PassKind) {
        self.decodes.store(kind == PassKind::Decode, Ordering::Relaxed);
    }

    /// Whether this pass is of one token.
    pub(crate) fn decodes(&self) -> bool {
        self.decodes.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `pass` when it is its turn.
    pub(crate) fn run<R>(&self, kind: PassKind, pass: impl FnOnce() -> R) -> Result<R, Error> {
        let caller = thread::current().id();
        if self.state().owner == Some(caller) {
            return Err(Error::Nested);
        }
        // A pass that panicked left nothing behind that the next would see.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.state().owner = Some(caller);
        self.set_kind(kind);
        let outcome = catch_unwind(AssertUnwindSafe(pass));
        let fault = {
            let mut state = self.state();
            state.owner = None;
            state.fault.take()
        };
        match (outcome, fault) {
            // Even if `pass` went on without the weight: what it made of it is worth nothing.
            (_, Some(error)) => Err(error),
            (Ok(result), None) => Ok(result),
            (Err(payload), None) => resume_unwind(payload),
        }
    }

    /// Refuses use outside of a pass, and in one that should end.
    pub(crate) fn check(&self, path: &str) {
        if self.state().owner.is_none() {
            outside(Error::OutsideRun { path: path.to_string() });
        }
        let stop = self.stop.as_ref();
        if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            self.raise(Error::Stopped);
        }
    }

    /// Ends the pass with `error`.
    pub(crate) fn raise(&self, error: Error) -> ! {
        let mut state = self.state();
        if state.owner.is_none() {
            drop(state);
            outside(error);
        }
        // The first one is the cause of those that follow.
        state.fault.get_or_insert(error);
        drop(state);
        // Not `panic!`: this is no bug, and no panic message belongs on the user's screen.
        resume_unwind(Box::new(Raised))
    }
}

/// Nobody is there to return the error to: a clone of the module escaped from `run`.
fn outside(error: Error) -> ! {
    panic!("{error}")
}
