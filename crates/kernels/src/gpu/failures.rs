//! What GPUs refused: where their memory is full, for one.
//!
//! Work is given to a GPU without waiting for it, so an operation that asks for too much has
//! returned by then. wgpu's kinds of GPUs tell a handler, and CubeCL's own panics with it in a
//! thread that is not the caller's. This one notes what was refused and unwinds silently instead; a
//! [`Fence`](super::Fence) returns the note.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;

/// A device, and what it refused first.
static NOTED: Mutex<Vec<(Device, String)>> = Mutex::new(Vec::new());

fn noted() -> MutexGuard<'static, Vec<(Device, String)>> {
    NOTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a GPU refused since this was asked last, if anything: values that were made meanwhile may
/// be missing.
pub fn failure(device: &Device) -> Option<String> {
    let mut noted = noted();
    let at = noted.iter().position(|(failed, _)| failed == device)?;
    Some(noted.swap_remove(at).1)
}

/// Notes what an opened device refuses.
#[cfg(any(feature = "vulkan", feature = "metal", feature = "wgpu"))]
pub(super) fn listen(device: &Device, opened: &burn_cubecl::cubecl::wgpu::wgpu::Device) {
    let device = device.clone();
    opened.on_uncaptured_error(std::sync::Arc::new(move |error| {
        let reason = error.to_string();
        tracing::debug!(?device, reason, "refused");
        let mut noted = noted();
        if noted.iter().all(|(failed, _)| *failed != device) {
            noted.push((device.clone(), reason.clone()));
        }
        drop(noted);
        // Not `panic!`: this is no bug, and no panic message belongs on the user's screen.
        std::panic::resume_unwind(Box::new(reason))
    }));
}
