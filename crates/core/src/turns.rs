//! Modules that take turns in memory.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, ThreadId};

use crate::{Dispatched, Error};

/// Lets modules take turns in memory, such as the text encoder, denoiser and decoder of a
/// text-to-image model: of those that belong to one `Turns`, at most one is dispatched at a time,
/// so that each may have the whole budget. The counterpart of Accelerate's `cpu_offload_with_hook`,
/// for any modules in any order.
///
/// ```no_run
/// # use burn::nn::LinearConfig;
/// # use burn::tensor::{Device, Tensor};
/// # use outsize_core::{Options, Turns, load_checkpoint_and_dispatch};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (device, options) = (Device::flex(), Options::default());
/// let turns = Turns::default();
/// let dispatch = |folder: &str| {
///     load_checkpoint_and_dispatch(LinearConfig::new(64, 64).init(&device), folder, &options)
/// };
/// let first = turns.module(|| dispatch("first"));
/// let second = turns.module(|| dispatch("second"));
/// let x = Tensor::<2>::zeros([1, 64], &device);
/// let x = first.run(|first| first.run(|first| first.forward(x)))??;
/// // The memory of the first comes back before the second is dispatched.
/// let x = second.run(|second| second.run(|second| second.forward(x)))??;
/// # let _ = x;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Turns {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The module that is in memory.
    current: Mutex<Option<Arc<dyn Clear>>>,
    /// The thread whose turn it is.
    owner: Mutex<Option<ThreadId>>,
}

impl Turns {
    /// Adds a module. It is dispatched when it is its turn, perhaps several times.
    pub fn module<'a, M: Send + 'static>(
        &self,
        dispatch: impl Fn() -> Result<Dispatched<M>, Error> + 'a,
    ) -> InTurn<'a, M> {
        InTurn { turns: self.clone(), slot: Arc::default(), dispatch: Box::new(dispatch) }
    }

    /// Gives back the memory of the module whose turn it was.
    ///
    /// # Errors
    /// [`Error::Nested`] while it runs.
    pub fn clear(&self) -> Result<(), Error> {
        if let Some(module) = self.lock()?.take() {
            module.clear();
        }
        Ok(())
    }

    /// Waits while another thread has its turn.
    fn lock(&self) -> Result<Turn<'_>, Error> {
        let Shared { current, owner } = &*self.shared;
        let this = Some(thread::current().id());
        // What panicked was a pass: the module is as good as before.
        let current = match current.try_lock() {
            Ok(current) => current,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) if *unpoisoned(owner) == this => {
                return Err(Error::Nested);
            }
            Err(TryLockError::WouldBlock) => unpoisoned(current),
        };
        *unpoisoned(owner) = this;
        Ok(Turn { current, owner })
    }
}

/// A thread's turn.
struct Turn<'a> {
    current: MutexGuard<'a, Option<Arc<dyn Clear>>>,
    owner: &'a Mutex<Option<ThreadId>>,
}

impl Deref for Turn<'_> {
    type Target = Option<Arc<dyn Clear>>;

    fn deref(&self) -> &Self::Target {
        &self.current
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.current
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *unpoisoned(self.owner) = None;
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turns")
    }
}

/// A module that is in memory when it is its turn.
pub struct InTurn<'a, M> {
    turns: Turns,
    slot: Arc<Slot<M>>,
    dispatch: Box<dyn Fn() -> Result<Dispatched<M>, Error> + 'a>,
}

impl<M: Send + 'static> InTurn<'_, M> {
    /// Runs `work` with the dispatched module. If it was another one's turn before, that one's
    /// memory comes back first; if it was this one's, nothing is dispatched anew. Waits while
    /// another thread has its turn.
    ///
    /// # Errors
    /// What dispatching says; [`Error::Nested`] for a call from within the `work` of any module of
    /// the same [`Turns`].
    pub fn run<R>(&self, work: impl FnOnce(&Dispatched<M>) -> R) -> Result<R, Error> {
        let mut current = self.turns.lock()?;
        let mut slot = self.slot.lock();
        let module = match &mut *slot {
            Some(module) => module,
            empty => {
                if let Some(other) = current.take() {
                    other.clear();
                }
                let module = empty.insert((self.dispatch)()?);
                *current = Some(self.slot.clone());
                module
            }
        };
        Ok(work(module))
    }
}

impl<M> fmt::Debug for InTurn<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InTurn")
    }
}

/// A module, while it is in memory.
struct Slot<M>(Mutex<Option<Dispatched<M>>>);

impl<M> Slot<M> {
    fn lock(&self) -> MutexGuard<'_, Option<Dispatched<M>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Default for Slot<M> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

/// A slot that can be emptied, whatever is in it.
trait Clear: Send + Sync {
    fn clear(&self);
}

impl<M: Send> Clear for Slot<M> {
    fn clear(&self) {
        *self.lock() = None;
    }
}
