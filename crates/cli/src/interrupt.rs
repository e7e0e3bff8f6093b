//! Ctrl-C: the first one stops in order, the second one at once.

use crate::error::Failure;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// How often an interrupt came, for who ends others in order and counts.
static TIMES: AtomicUsize = AtomicUsize::new(0);

/// Whether the second interrupt is for somebody who counts.
static COUNTED: AtomicBool = AtomicBool::new(false);

/// Exit status of a program ended by an interrupt, as shells count it.
pub const STATUS: u8 = 130;

/// Installs the handler.
pub fn watch() -> Result<(), Failure> {
    LazyLock::force(&ASKED); // not first in the handler
    ctrlc::set_handler(|| {
        TIMES.fetch_add(1, Ordering::Relaxed);
        if ASKED.swap(true, Ordering::Relaxed) && !COUNTED.load(Ordering::Relaxed) {
            std::process::exit(STATUS.into());
        }
    })
    .map_err(|error| Failure::Failed(format!("cannot listen for interrupts: {error}")))
}

/// The flag that an interrupt sets.
pub fn flag() -> Arc<AtomicBool> {
    ASKED.clone()
}

/// How often an interrupt came. From the first call on, a second one does not end this process.
pub fn times() -> usize {
    COUNTED.store(true, Ordering::Relaxed);
    TIMES.load(Ordering::Relaxed)
}

/// Whether there was an interrupt.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Forgets the interrupts so far, for who goes on after one: the next one is the first again.
pub fn forget() {
    ASKED.store(false, Ordering::Relaxed);
}

/// An error if there was an interrupt.
pub fn check() -> Result<(), Failure> {
    if asked() { Err(Failure::Interrupted) } else { Ok(()) }
}
