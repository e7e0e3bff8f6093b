//! How fast this machine does what running a model takes: the figures of the cost model.

use outsize_machine::{CALIBRATION_VERSION, Calibration, Identity, Machine, now};
use outsize_plan::{HardwareProfile, Processor, format_size};
use outsize_stream::MEMORY_THREADS;

use crate::measured::{FIRST_TOUCH, Measured, first_touch, memory_probe};
use crate::options::{CalibrateOptions, DiskToMeasure, Stop, beyond_caches, memory_bytes};
use crate::samples::{Pace, Samples};
use crate::{Error, compute, disk, gpu, prefill};

/// What is being measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrateStep {
    /// Main memory.
    Memory,
    /// Matmuls and layers on the processors.
    Compute,
    /// The GPU of this number.
    Gpu(usize),
    /// A file is written to read.
    Writing,
    /// The disk.
    Disk,
}

/// Measures all that [`HardwareProfile`] holds, in less than 20 seconds unless the machine is very
/// slow, and ten for each GPU that this build computes on. Other work on the machine makes all of
/// it slower. `observe` is told of each step.
///
/// The profile's disk is the one measured; [`Calibration::with_disk`] brings earlier disks back.
///
/// # Errors
/// [`Error`]; [`Error::Stopped`] if `stop` was set.
pub fn calibrate(
    machine: &Machine,
    options: &CalibrateOptions,
    mut observe: impl FnMut(CalibrateStep),
) -> Result<Calibration, Error> {
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
    let layers = compute::layers(bytes.min(beyond_caches(machine)))?;
    compute::measure(&mut measured, &layers, &stop)?;
    let shape = layers.shape;
    drop(layers);
    let block_seconds = measured.of(compute::BLOCK)?;
    let prefill = prefill::measure(&mut measured, shape, block_seconds, &stop)?;
    let gpus = gpu::measure(&mut measured, bytes, &stop, |at| observe(CalibrateStep::Gpu(at)))?;
    observe(CalibrateStep::Disk);
    let disk = probe.measure(&mut measured, &stop)?;

    let cpu = Processor {
        memory_bytes_per_second: measured.of(MEMORY_READ)?,
        product_bytes_per_second: measured.of(compute::GEMV)?,
        product_flops: prefill.f32.flops,
        prefill: Some(prefill),
        cache_bytes_per_second: measured.of(compute::ATTENTION)?,
        block_seconds,
    };
    let calibration = Calibration {
        version: CALIBRATION_VERSION,
        date: now(),
        identity: Identity::of(machine),
        figures: HardwareProfile {
            disk: disk.streamed,
            copy_bytes_per_second: measured.of(MEMORY_COPY)?,
            first_touch_bytes_per_second: measured.of(FIRST_TOUCH)?,
            cpu,
            gpus,
        },
        disks: Vec::new(),
        measurements: measured.list,
    };
    Ok(calibration.with_disk(disk, None))
}

const MEMORY_READ: &str = "memory read";
const MEMORY_COPY: &str = "memory copied";

/// Measures main memory by itself.
fn memory(
    measured: &mut Measured,
    machine: &Machine,
    bytes: u64,
    stop: &Stop,
) -> Result<(), Error> {
    let threads = machine.processors.threads.value as usize;
    // First touch comes first: memory that this process gave back would be had again for less.
    let (rates, touched) = first_touch(bytes, stop)?;
    measured.add_value(
        FIRST_TOUCH,
        "B/s",
        rates.bytes_per_second,
        &touched,
        match rates.prefaulted_bytes {
            0 => format!("touched for the first time by {MEMORY_THREADS} threads"),
            prefaulted => format!(
                "touched for the first time by {MEMORY_THREADS} threads, after {} prefaulted",
                format_size(prefaulted)
            ),
        },
    );
    let bytes = bytes.min(beyond_caches(machine));
    let mut buffers = memory_probe(bytes, threads)?;
    let (mut read, mut copy) = (Samples::default(), Samples::default());
    for _ in Pace::new(5, 9, 0.6) {
        stop.check()?;
        read.push(buffers.read()?);
        copy.push(buffers.copy());
    }
    let size = format_size(bytes);
    measured.add(MEMORY_READ, "B/s", &read, format!("{size} read by {threads} threads"));
    measured.add(MEMORY_COPY, "B/s", &copy, format!("half of {size} copied by {threads} threads"));
    Ok(())
}
