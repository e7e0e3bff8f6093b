//! What this machine can do at most, measured again and again beside the work that is compared with
//! it.

use std::path::PathBuf;
use std::time::Instant;

use burn::tensor::Tensor;
use outsize_kernels::{ActivationDtype, linear_with, peak};
use outsize_machine::{FirstTouchRates, Machine, Volume, read_latency, volume};
use serde::Serialize;

use crate::Error;
use crate::compute::{LAYER, SMALL_LAYER, inputs};
use crate::files::{Files, longest};
use crate::layers::{Layers, Shape};
use crate::measured::{first_touch, memory_probe};
use crate::options::{CalibrateOptions, Stop, beyond_caches, memory_bytes};
use crate::plain_reads::PlainReads;
use crate::samples::{Pace, Samples};

/// How long multiply-adds run, in seconds, and how many times in each sample. The best counts, as
/// two threads may begin on one processor.
const PEAK: f64 = 0.02;
const PEAKS: usize = 4;

/// Single pages that each sample reads.
const PAGES: usize = 24;

/// Rows of activations of [`Limits::products`].
pub const LIMIT_ROWS: usize = 512;

/// The limits, measured once. Rates are in bytes or operations per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LimitSample {
    /// The disk, read from one end to the other past the page cache, with nothing beside it.
    pub disk_bytes_per_second: f64,
    /// One page read from the disk, with nothing else in flight; the median.
    pub disk_latency_seconds: f64,
    /// Main memory read by all threads; the median.
    pub memory_bytes_per_second: f64,
    /// Main memory copied by all threads, bytes written; the median.
    pub copy_bytes_per_second: f64,
    /// Memory touched for the first time, page faults included, by as many threads as touch that
    /// of weights.
    #[serde(rename = "fresh_bytes_per_second")]
    pub first_touch_bytes_per_second: f64,
    /// Bytes of it that were prefaulted; zero if all of it came at one speed.
    #[serde(rename = "at_hand_bytes")]
    pub prefaulted_bytes: u64,
    /// The same of these.
    #[serde(rename = "at_hand_bytes_per_second")]
    pub prefaulted_bytes_per_second: f64,
    /// Multiply-adds of f32 on registers, two operations each.
    pub f32_flops: f64,
    /// Multiply-adds of pairs of bf16, if the processor has them.
    pub bf16_flops: f64,
}

impl LimitSample {
    /// Seconds that the first touch of some bytes takes.
    pub fn first_touch_seconds(&self, bytes: f64) -> f64 {
        let rates = FirstTouchRates {
            prefaulted_bytes: self.prefaulted_bytes,
            prefaulted_bytes_per_second: self.prefaulted_bytes_per_second,
            bytes_per_second: self.first_touch_bytes_per_second,
        };
        rates.seconds(bytes)
    }
}

/// The speed of this program's matmuls, each beside its limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ProductSample {
    /// One row of activations times several layers of bf16 weights: bytes of these per second.
    pub one_row_bytes_per_second: f64,
    /// Main memory read right after it.
    pub memory_bytes_per_second: f64,
    /// 512 rows of f32 activations times one layer of bf16 weights: operations per second.
    pub f32_rows_flops: f64,
    /// Multiply-adds of f32 right after it.
    pub f32_flops: f64,
    /// The same with activations rounded to bf16.
    pub bf16_rows_flops: f64,
    /// Multiply-adds of pairs of bf16 right after it.
    pub bf16_flops: f64,
}

/// How a disk is read when it is measured.
#[derive(Debug, Clone, Serialize)]
pub struct LimitDisk {
    /// The folder whose files are read.
    pub folder: PathBuf,
    /// What they are: `the model's own tensors`.
    pub files: &'static str,
    /// What the file system is on, and its kind: `/dev/vda (ext4)`.
    pub disk: String,
    /// Whether the reads bypass the page cache. If not, they may measure memory.
    pub direct: bool,
    /// Reads in flight in the fastest way at first. Each sample tries this and the two next best.
    pub in_flight: usize,
    /// Bytes of one read.
    pub block: usize,
}

/// Measures the limits of a machine. Between two samples nothing runs, and the only memory held is
/// what the disk is read into.
#[derive(Debug)]
pub struct Limits {
    stop: Stop,
    files: Files,
    folder: PathBuf,
    volume: Volume,
    disk: PlainReads,
    /// The file that single pages are read from.
    paged: PathBuf,
    threads: usize,
    /// The most memory to take at once.
    bytes: u64,
    caches: u64,
}

impl Limits {
    /// Writes a file, or takes those of a checkpoint, and finds the fastest way to read them.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Stopped`] if `stop` was set.
    pub fn new(machine: &Machine, options: &CalibrateOptions) -> Result<Self, Error> {
        let stop = Stop(options.stop.clone());
        let (folder, files) = Files::new(options, &stop)?;
        let paths = files.paths();
        let disk = PlainReads::new(&paths, &stop)?;
        Ok(Self {
            volume: volume(&folder),
            paged: longest(&paths),
            threads: machine.processors.threads.value as usize,
            bytes: memory_bytes(machine, options.bytes),
            caches: beyond_caches(machine),
            stop,
            files,
            folder,
            disk,
        })
    }

    /// How the disk is read.
    pub fn disk(&self) -> LimitDisk {
        LimitDisk {
            folder: self.folder.clone(),
            files: self.files.name(),
            disk: self.volume.disk(),
            direct: self.disk.direct,
            in_flight: self.disk.shapes[0].in_flight,
            block: self.disk.shapes[0].block,
        }
    }

    /// Bytes of memory that are read.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes.min(self.caches)
    }

    /// Measures once, in about three seconds and the time of the first touch of `fresh` bytes, or
    /// of as many as may be taken. The disk is read on from where the last sample ended.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Stopped`] if `stop` was set.
    pub fn sample(&mut self, fresh: u64) -> Result<LimitSample, Error> {
        // First touch comes first: memory that this process gave back would be had again for less.
        let (touch, _) = first_touch(fresh.min(self.bytes), &self.stop)?;
        let (memory, copy) = self.memory()?;
        let f32_flops = flops(ActivationDtype::F32)?;
        let bf16_flops = flops(ActivationDtype::Bf16)?;
        self.stop.check()?;
        let disk = self.disk.sample(&self.stop)?;
        let len = std::fs::metadata(&self.paged).map_or(0, |data| data.len());
        let latency = Samples::from_iter(read_latency(&self.paged, 0..len, PAGES)?);
        self.stop.check()?;
        Ok(LimitSample {
            disk_bytes_per_second: disk,
            disk_latency_seconds: latency.median(),
            memory_bytes_per_second: memory,
            copy_bytes_per_second: copy,
            first_touch_bytes_per_second: touch.bytes_per_second,
            prefaulted_bytes: touch.prefaulted_bytes,
            prefaulted_bytes_per_second: touch.prefaulted_bytes_per_second,
            f32_flops,
            bf16_flops,
        })
    }

    /// The bandwidth of memory, read and copied.
    fn memory(&self) -> Result<(f64, f64), Error> {
        let bytes = self.memory_bytes();
        let mut buffers = memory_probe(bytes, self.threads)?;
        let (mut read, mut copy) = (Samples::default(), Samples::default());
        for _ in 0..7 {
            self.stop.check()?;
            read.push(buffers.read()?);
            // Which of the two is faster depends on the machine.
            copy.push(buffers.copy().max(buffers.copy_with(peak::copy)));
        }
        Ok((read.median(), copy.median()))
    }

    /// Measures this program's matmuls beside their limits, `rounds` times.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Stopped`] if `stop` was set.
    pub fn products(&self, rounds: usize) -> Result<Vec<ProductSample>, Error> {
        let bytes = self.memory_bytes();
        let shape = if bytes < LAYER.layer_bytes() { SMALL_LAYER } else { LAYER };
        let layers = bytes.div_ceil(shape.layer_bytes()).clamp(1, 64) as usize;
        let layers = Shape { layers, ..shape }.make(ActivationDtype::F32)?;
        self.stop.check()?;
        let mut buffers = memory_probe(bytes, self.threads)?;
        let mut samples = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let (mut one, mut memory) = (Samples::default(), Samples::default());
            for _ in Pace::new(3, 7, 0.1) {
                self.stop.check()?;
                one.push(
                    layers.bytes as f64 / run(&layers, &layers.matrices, 1, ActivationDtype::F32)?,
                );
                memory.push(buffers.read()?);
            }
            let (f32_rows_flops, f32_flops) = rows(&layers, ActivationDtype::F32)?;
            self.stop.check()?;
            let (bf16_rows_flops, bf16_flops) = rows(&layers, ActivationDtype::Bf16)?;
            self.stop.check()?;
            samples.push(ProductSample {
                one_row_bytes_per_second: one.median(),
                memory_bytes_per_second: memory.median(),
                f32_rows_flops,
                f32_flops,
                bf16_rows_flops,
                bf16_flops,
            });
        }
        Ok(samples)
    }
}

/// The speed of many rows times one layer, and its limit, in operations per second.
fn rows(layers: &Layers, compute: ActivationDtype) -> Result<(f64, f64), Error> {
    let one = layers.matrices.len() / layers.count();
    let matrices = &layers.matrices[..one];
    let values: usize = matrices.iter().map(|m| m.shape().num_elements()).sum();
    let seconds = run(layers, matrices, LIMIT_ROWS, compute)?;
    let operations = (2 * LIMIT_ROWS * values) as f64;
    Ok((operations / seconds, flops(compute)?))
}

/// Multiplies rows of activations with each matrix and returns the seconds that it took. The
/// results must be finite.
fn run(
    layers: &Layers,
    matrices: &[Tensor<2>],
    rows: usize,
    compute: ActivationDtype,
) -> Result<f64, Error> {
    let inputs = inputs(layers, rows);
    let began = Instant::now();
    let outputs: Vec<_> = matrices
        .iter()
        .filter_map(|matrix| {
            let x = inputs.get(&matrix.dims()[1])?;
            Some(linear_with(compute, x.clone(), matrix.clone()))
        })
        .collect();
    let seconds = began.elapsed().as_secs_f64();
    // Afterwards: summing in between would let the threads of the matmuls fall asleep.
    for y in outputs {
        let sum: f32 = y.sum().into_scalar();
        if !sum.is_finite() {
            return Err(Error::Wrong { what: "products" });
        }
    }
    Ok(seconds.max(1e-9))
}

/// What all threads compute on registers, in operations per second: the best of several looks.
pub(crate) fn flops(compute: ActivationDtype) -> Result<f64, Error> {
    let mut best = 0.0;
    for _ in 0..PEAKS {
        let rate = peak::flops(compute, PEAK);
        best = rate.map_or(f64::NAN, |rate| rate.max(best));
    }
    match best > 0.0 {
        true => Ok(best),
        false => Err(Error::Wrong { what: "multiply-adds" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{DiskToMeasure, LEAST_CALIBRATION_BYTES};

    #[test]
    fn little_memory_and_disk_give_figures_too() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let options = CalibrateOptions {
            disk: DiskToMeasure::Folder(folder.path().to_path_buf()),
            bytes: LEAST_CALIBRATION_BYTES,
            stop: None,
        };
        let mut limits = Limits::new(&Machine::detect(), &options).unwrap();
        let sample = serde_json::to_value(limits.sample(LEAST_CALIBRATION_BYTES).unwrap()).unwrap();
        let product = serde_json::to_value(limits.products(2).unwrap()[1]).unwrap();
        for (name, value) in [&sample, &product]
            .into_iter()
            .flat_map(|v| v.as_object().unwrap())
            // May be zero.
            .filter(|(name, _)| *name != "at_hand_bytes")
        {
            assert!(value.as_f64().is_some_and(|value| value > 0.0), "{name}: {value}");
        }
        assert!(limits.disk().in_flight > 0);
        drop(limits);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_wish_to_stop_is_followed() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let options = CalibrateOptions {
            disk: DiskToMeasure::Folder(folder.path().to_path_buf()),
            bytes: LEAST_CALIBRATION_BYTES,
            stop: Some(stop.clone()),
        };
        let mut limits = Limits::new(&Machine::detect(), &options).unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(matches!(limits.sample(0), Err(Error::Stopped)));
        assert!(matches!(limits.products(1), Err(Error::Stopped)));
    }
}
