//! How fast this machine is at what running a model takes.

mod compute;
mod disk;
mod error;
mod layers;
mod samples;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outsize_checkpoint::Checkpoint;
use outsize_machine::{
    Bandwidth, CALIBRATION_VERSION, Calibration, Identity, Machine, Measurement, first_touch, now,
};
use outsize_plan::{Figures, Processor};

pub use error::CalibrateError;
use samples::{Pace, Samples};

/// The least memory and disk that is measured with, in bytes: less stays in caches.
pub const LEAST_CALIBRATION_BYTES: u64 = 16 << 20;

/// What to measure, and with how much.
#[derive(Debug, Clone)]
pub struct CalibrateOptions {
    /// The disk to measure.
    pub disk: DiskToMeasure,
    /// The most memory to take, and the most to read from disk at once, in bytes. Less is taken where memory or disk have
    /// no room for it.
    pub bytes: u64,
    /// Once another thread or a signal sets it, measuring ends.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Where the disk is read.
#[derive(Debug, Clone)]
pub enum DiskToMeasure {
    /// A file is made on the file system of this folder, which must exist, and is gone afterwards.
    Folder(PathBuf),
    /// This checkpoint's own tensors are read.
    Checkpoint(Checkpoint),
}

/// What is being measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrateStep {
    /// Main memory.
    Memory,
    /// Products and layers on the processors.
    Compute,
    /// A file is written to read.
    Writing,
    /// The disk.
    Disk,
}

/// Measures all that [`Figures`] holds, in less than 20 seconds unless the machine is very slow. Other work on the machine
/// makes all of it slower. `observe` is told of each step. GPUs are not measured by a program that cannot compute on them.
///
/// The figures' disk is the one measured; earlier disks are brought back by [`Calibration::with_disk`].
///
/// # Errors
/// [`CalibrateError`]; [`CalibrateError::Stopped`] if `stop` was set.
pub fn calibrate(
    machine: &Machine,
    options: &CalibrateOptions,
    mut observe: impl FnMut(CalibrateStep),
) -> Result<Calibration, CalibrateError> {
    let stop = Stop(options.stop.clone());
    // The file before the memory: without a place for it nothing else is worth the time.
    if let DiskToMeasure::Folder(_) = options.disk {
        observe(CalibrateStep::Writing);
    }
    let probe = disk::Probe::new(options, &stop)?;
    let bytes = memory_bytes(machine, options.bytes);
    let mut measured = Measured::default();
    observe(CalibrateStep::Memory);
    memory(&mut measured, machine, bytes, &stop)?;
    observe(CalibrateStep::Compute);
    compute::measure(&mut measured, machine, bytes, &stop)?;
    observe(CalibrateStep::Disk);
    let disk = probe.measure(&mut measured, &stop)?;

    let cpu = Processor {
        memory_bytes_per_second: measured.of(MEMORY_READ)?,
        product_bytes_per_second: measured.of(compute::ONE_ROW)?,
        product_flops: measured.of(compute::MANY_ROWS)?,
        cache_bytes_per_second: measured.of(compute::ATTENTION)?,
        block_seconds: measured.of(compute::BLOCK)?,
    };
    let calibration = Calibration {
        version: CALIBRATION_VERSION,
        date: now(),
        identity: Identity::of(machine),
        figures: Figures {
            disk: disk.streamed,
            copy_bytes_per_second: measured.of(MEMORY_COPY)?,
            first_touch_bytes_per_second: measured.of(FIRST_TOUCH)?,
            cpu,
            gpus: BTreeMap::new(),
        },
        disks: Vec::new(),
        measurements: measured.list,
    };
    Ok(calibration.with_disk(disk, None))
}

const MEMORY_READ: &str = "memory read";
const MEMORY_COPY: &str = "memory copied";
const FIRST_TOUCH: &str = "fresh memory";

/// Several times the largest cache, unless that is more than is asked for or than a quarter of what is free.
fn memory_bytes(machine: &Machine, most: u64) -> u64 {
    let cache = machine.processors.cache.as_ref();
    let wanted = cache
        .map_or(0, |cache| cache.value.saturating_mul(8))
        .max(256 << 20);
    let free = machine
        .ram
        .as_ref()
        .map_or(u64::MAX, |ram| ram.available.value / 4);
    wanted.min(most).min(free).max(LEAST_CALIBRATION_BYTES)
}

/// Main memory by itself.
fn memory(
    measured: &mut Measured,
    machine: &Machine,
    bytes: u64,
    stop: &Stop,
) -> Result<(), CalibrateError> {
    let threads = machine.processors.threads.value as usize;
    let no_memory = |source| outsize_machine::Error::NoMemory { bytes, source };
    let mut buffers = Bandwidth::new(bytes as usize, threads).map_err(no_memory)?;
    let (mut read, mut copy) = (Samples::default(), Samples::default());
    for _ in Pace::new(5, 9, 0.6) {
        stop.check()?;
        read.push(buffers.read());
        copy.push(buffers.copy());
    }
    drop(buffers);
    let size = outsize_plan::format_size(bytes);
    measured.add(
        MEMORY_READ,
        "B/s",
        &read,
        format!("{size} read by {threads} threads"),
    );
    measured.add(
        MEMORY_COPY,
        "B/s",
        &copy,
        format!("half of {size} copied by {threads} threads"),
    );
    let readers = outsize_stream::Options::default().readers;
    let mut touched = Samples::default();
    for _ in Pace::new(3, 5, 0.8) {
        stop.check()?;
        touched.push(first_touch(bytes as usize, readers).map_err(no_memory)?);
    }
    measured.add(
        FIRST_TOUCH,
        "B/s",
        &touched,
        format!("{size} touched for the first time by {readers} threads"),
    );
    Ok(())
}

/// What was measured so far.
#[derive(Debug, Default)]
struct Measured {
    list: Vec<Measurement>,
}

impl Measured {
    fn add(&mut self, name: &str, unit: &str, samples: &Samples, how: String) {
        self.list.push(Measurement {
            name: name.to_string(),
            value: samples.median(),
            unit: unit.to_string(),
            spread: samples.spread(),
            repetitions: samples.count(),
            how,
        });
    }

    /// The median of what was measured under a name.
    fn of(&self, name: &'static str) -> Result<f64, CalibrateError> {
        self.list
            .iter()
            .find(|measurement| measurement.name == name)
            .map(|measurement| measurement.value)
            .filter(|value| value.is_finite() && *value > 0.0)
            .ok_or(CalibrateError::Nothing { what: name })
    }
}

/// What asks for an end.
#[derive(Debug, Clone)]
struct Stop(Option<Arc<AtomicBool>>);

impl Stop {
    fn check(&self) -> Result<(), CalibrateError> {
        match &self.0 {
            Some(flag) if flag.load(Ordering::Relaxed) => Err(CalibrateError::Stopped),
            _ => Ok(()),
        }
    }
}
