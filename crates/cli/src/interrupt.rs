//! Ctrl-C: the first one ends the work in order, the second one at once.

use crate::error::Failure;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Exit status of a program ended by an interrupt, as shells count it.
const INTERRUPTED: i32 = 130;

/// Begins to listen.
pub fn watch() -> Result<(), Failure> {
    LazyLock::force(&ASKED); // not first in the handler
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
    })
    .map_err(|error| Failure::Failed(format!("cannot listen for interrupts: {error}")))
}

/// What is set when the work should end.
pub fn flag() -> Arc<AtomicBool> {
    ASKED.clone()
}

/// Whether the work should end.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// An error if the work should end.
pub fn check() -> Result<(), Failure> {
    if asked() {
        Err(Failure::Interrupted)
    } else {
        Ok(())
    }
}
