//! What threads share and wait on, in one place: `tests/model` runs the same sources over a
//! scheduler of its own and replaces this file alone.

use std::io;
use std::thread::JoinHandle as StdJoinHandle;

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// A thread to wait for.
pub(crate) type JoinHandle = StdJoinHandle<()>;

/// Bytes of stack for a reader thread, which needs a few of them.
const STACK: usize = 256 << 10;

/// Lets other threads have the processor first, if the system knows of it: what this one does can
/// wait.
pub(crate) fn lower_priority() {
    #[cfg(target_os = "linux")]
    // SAFETY: it changes one number of the calling thread and touches no memory; failure is of no
    // consequence.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 5);
    }
}

/// Starts a thread.
pub(crate) fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
    std::thread::Builder::new().name(name).stack_size(STACK).spawn(body)
}
