//! What to measure with, and how to end early.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outsize_checkpoint::Checkpoint;
use outsize_machine::Machine;

use crate::Error;

/// The least memory and disk to measure with, in bytes: less would stay in caches.
pub const LEAST_CALIBRATION_BYTES: u64 = 16 << 20;

/// What to measure, and with how much.
#[derive(Debug, Clone)]
pub struct CalibrateOptions {
    /// The disk to measure.
    pub disk: DiskToMeasure,
    /// The most memory to take at once, in bytes, and the most to write to disk. Less is taken if
    /// memory or disk have no room for it, or if more would not change the result.
    pub bytes: u64,
    /// Measuring ends once another thread or a signal sets this.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Where the disk is read.
#[derive(Debug, Clone)]
pub enum DiskToMeasure {
    /// A temporary file on the file system of this folder, which must exist.
    Folder(PathBuf),
    /// The tensors of this checkpoint.
    Checkpoint(Checkpoint),
}

/// A request to end early.
#[derive(Debug, Clone)]
pub(crate) struct Stop(pub Option<Arc<AtomicBool>>);

impl Stop {
    pub fn check(&self) -> Result<(), Error> {
        match &self.0 {
            Some(flag) if flag.load(Ordering::Relaxed) => Err(Error::Stopped),
            _ => Ok(()),
        }
    }
}

/// More bytes than any cache keeps.
pub(crate) fn beyond_caches(machine: &Machine) -> u64 {
    let cache = machine.processors.cache.as_ref();
    cache.map_or(0, |cache| cache.value.saturating_mul(8)).max(256 << 20)
}

/// Memory to take: `most`, but at most a quarter of what is free.
pub(crate) fn memory_bytes(machine: &Machine, most: u64) -> u64 {
    let free = machine.ram.as_ref().map_or(u64::MAX, |ram| ram.available.value / 4);
    most.min(free).max(LEAST_CALIBRATION_BYTES)
}
