//! How fast this machine is at what running a model takes.

mod compute;
mod disk;
mod error;
mod files;
mod layers;
mod limits;
mod samples;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use outsize_checkpoint::Checkpoint;
use outsize_machine::{
    CALIBRATION_VERSION, Calibration, FreshMemory, FreshRates, Identity, Machine, Measurement,
    MemoryProbe, now,
};
use outsize_plan::{HardwareProfile, Processor, format_size};
use outsize_stream::MEMORY_THREADS;

pub use error::CalibrateError;
pub use limits::{LIMIT_ROWS, LimitDisk, LimitSample, Limits, ProductSample};
use samples::{Pace, Samples};

/// The least memory and disk that is measured with, in bytes: less stays in caches.
pub const LEAST_CALIBRATION_BYTES: u64 = 16 << 20;

/// What to measure, and with how much.
#[derive(Debug, Clone)]
pub struct CalibrateOptions {
    /// The disk to measure.
    pub disk: DiskToMeasure,
    /// The most memory to take at once, in bytes, and the most to write to disk. Less is taken where memory or disk have no
    /// room for it, or where more says no more.
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
    ActivationDtype,
    /// A file is written to read.
    Writing,
    /// The disk.
    Disk,
}

/// Measures all that [`HardwareProfile`] holds, in less than 20 seconds unless the machine is very slow. Other work on the machine
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
    observe(CalibrateStep::ActivationDtype);
    compute::measure(&mut measured, bytes.min(beyond_caches(machine)), &stop)?;
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
        figures: HardwareProfile {
            disk: disk.streamed,
            copy_bytes_per_second: measured.of(MEMORY_COPY)?,
            first_touch_bytes_per_second: measured.of(FIRST_TOUCH)?,
            at_hand_bytes: measured.at_hand_bytes,
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

/// What of it is touched at a time, in bytes.
const PIECE: u64 = 64 << 20;

/// How long memory is touched for the first time at most, in seconds.
const FRESH: f64 = 5.0;

/// Bytes that no cache keeps.
fn beyond_caches(machine: &Machine) -> u64 {
    let cache = machine.processors.cache.as_ref();
    cache
        .map_or(0, |cache| cache.value.saturating_mul(8))
        .max(256 << 20)
}

/// What may be taken: what is asked for, unless that is more than a quarter of what is free.
fn memory_bytes(machine: &Machine, most: u64) -> u64 {
    let free = machine
        .ram
        .as_ref()
        .map_or(u64::MAX, |ram| ram.available.value / 4);
    most.min(free).max(LEAST_CALIBRATION_BYTES)
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
    // First of all, while this program has given nothing back that it would get again for less.
    let (rates, touched) = fresh(bytes, stop)?;
    measured.at_hand_bytes = rates.at_hand_bytes;
    measured.add_value(
        FIRST_TOUCH,
        "B/s",
        rates.bytes_per_second,
        &touched,
        match rates.at_hand_bytes {
            0 => format!("touched for the first time by {MEMORY_THREADS} threads"),
            at_hand => format!(
                "touched for the first time by {MEMORY_THREADS} threads, behind {} that were at hand",
                format_size(at_hand)
            ),
        },
    );
    let bytes = bytes.min(beyond_caches(machine));
    let mut buffers = MemoryProbe::new(bytes as usize, threads).map_err(no_memory)?;
    let (mut read, mut copy) = (Samples::default(), Samples::default());
    for _ in Pace::new(5, 9, 0.6) {
        stop.check()?;
        read.push(buffers.read()?);
        copy.push(buffers.copy());
    }
    let size = format_size(bytes);
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
    Ok(())
}

/// Touches up to so many bytes for the first time: how fast they were had, and how fast each piece.
fn fresh(bytes: u64, stop: &Stop) -> Result<(FreshRates, Samples), CalibrateError> {
    let piece = bytes.min(PIECE);
    let pieces = (bytes / PIECE).max(1);
    let mut fresh = FreshMemory::new(piece as usize);
    let mut touched = Samples::default();
    let began = Instant::now();
    while u64::from(touched.count()) < pieces && began.elapsed().as_secs_f64() < FRESH {
        stop.check()?;
        let rate = fresh.touch(MEMORY_THREADS);
        touched.push(rate.map_err(|source| outsize_machine::Error::NoMemory { bytes, source })?);
    }
    let rates = fresh.rates();
    Ok((
        rates.ok_or(CalibrateError::Nothing { what: FIRST_TOUCH })?,
        touched,
    ))
}

/// What was measured so far.
#[derive(Debug, Default)]
struct Measured {
    list: Vec<Measurement>,
    /// Fresh memory that was at hand, in bytes.
    at_hand_bytes: u64,
}

impl Measured {
    /// The median of what something came to.
    fn add(&mut self, name: &str, unit: &str, samples: &Samples, how: String) {
        self.add_value(name, unit, samples.median(), samples, how);
    }

    fn add_value(&mut self, name: &str, unit: &str, value: f64, samples: &Samples, how: String) {
        self.list.push(Measurement {
            name: name.to_string(),
            value,
            unit: unit.to_string(),
            spread: samples.spread(),
            repetitions: samples.count(),
            how,
        });
    }

    /// What was measured under a name.
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
