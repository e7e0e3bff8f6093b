//! Locks and threads that the model's scheduler controls, in place of the crate's `sync`.

use shuttle::rand::{Rng, thread_rng};
use std::cell::Cell;
use std::io;
use std::sync::LockResult;

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64};
pub(crate) use shuttle::sync::{Mutex, MutexGuard};

pub(crate) type JoinHandle = shuttle::thread::JoinHandle<()>;

thread_local! {
    /// All of a schedule's threads share the thread that runs it.
    static REFUSALS: Cell<u32> = const { Cell::new(0) };
    static SPURIOUS: Cell<bool> = const { Cell::new(false) };
}

/// Refuses the next `count` threads.
pub(crate) fn refuse_threads(count: u32) {
    REFUSALS.set(count);
}

/// Whether waits may end without a reason, as the system's may.
pub(crate) fn wake_spuriously(yes: bool) {
    SPURIOUS.set(yes);
}

/// Lets another thread run, perhaps.
pub(crate) fn switch() {
    shuttle::thread::sleep(std::time::Duration::ZERO);
}

pub(crate) fn spawn(_name: String, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
    let refusals = REFUSALS.get();
    if refusals > 0 {
        REFUSALS.set(refusals - 1);
        return Err(io::ErrorKind::WouldBlock.into());
    }
    Ok(shuttle::thread::spawn(body))
}

pub(crate) fn lower_priority() {}

/// A condition variable whose waits may end without a reason.
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        if SPURIOUS.get() && thread_rng().gen_ratio(1, 8) {
            // A notification that comes and goes at once.
            return Ok(guard);
        }
        self.0.wait(guard)
    }
}
