//! What a machine has, as JSON and as text.

use super::human::{bandwidth, time};
use super::table::Table;
use crate::commands::config::{SettingsByName, rows};
use outsize::bench::RateUnit::{Bytes, Operations};
use outsize::kernels::gpu::{GpuDevice, SOFTWARE_VARIABLE};
use outsize::machine::{DiskFigures, GpuMemory, Machine, Provenance, Sourced, Volume};
use outsize::plan::{HardwareProfile, Tier, format_size};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What the command prints with `--json`. Sizes in bytes, rates in bytes or operations per second,
/// times in seconds; each `{"value": …, "source": …}` says what the value came from. What is not
/// known is `null`. Keys are only ever added.
#[derive(Debug, Serialize)]
pub struct Env {
    /// Of this program.
    pub version: &'static str,
    /// The kind of machine that it was built for: `x86_64-linux`.
    pub target: String,
    /// What it can compute on.
    pub backends: Vec<&'static str>,
    /// The vector instructions of matmuls.
    pub instructions: Sourced<&'static str>,
    /// Threads of matmuls.
    pub product_threads: Sourced<usize>,
    /// What this machine has.
    pub machine: Machine,
    /// The GPUs that this build can compute on, by the numbers that budgets name them with.
    pub gpus: Vec<ComputeGpu>,
    /// The default budget of each device.
    pub budget: BTreeMap<Tier, Sourced<u64>>,
    /// The file system of the cache folder; null if there is none.
    pub cache: Option<Volume>,
    /// The file system of the current folder.
    pub current: Option<Volume>,
    /// How fast the machine was measured to be.
    pub calibration: Calibrated,
    /// How programs are started: the settings that hold.
    pub training: SettingsByName,
    /// The version of the mpirun that is found.
    pub mpi: Option<Sourced<String>>,
}

/// A GPU as Burn sees it.
#[derive(Debug, Serialize)]
pub struct ComputeGpu {
    /// Its number: `gpu0` has 0.
    pub number: usize,
    /// Its name, as its driver gives it.
    pub name: String,
    /// The backend that computes on it.
    pub backend: &'static str,
    /// Bytes of its memory; null if the backend does not know.
    pub memory: Option<u64>,
    /// Free bytes before this program opened it; null if no driver tells.
    pub free: Option<u64>,
    /// Bytes that its driver took for this program; null if no driver tells.
    pub driver: Option<u64>,
    /// Bytes of the largest tensor.
    pub largest_buffer: u64,
    /// Whether it is a processor that acts as a GPU.
    pub software: bool,
    /// 16-bit types that tensors can have there.
    pub holds: Vec<&'static str>,
    /// 16-bit types that it computes in.
    pub computes: Vec<&'static str>,
}

impl From<&GpuDevice> for ComputeGpu {
    fn from(gpu: &GpuDevice) -> Self {
        Self {
            number: gpu.number,
            name: gpu.name.clone(),
            backend: gpu.backend,
            memory: gpu.memory,
            free: None,
            driver: None,
            largest_buffer: gpu.largest_buffer,
            software: gpu.is_software,
            holds: gpu.holds.clone(),
            computes: gpu.computes.clone(),
        }
    }
}

/// What predictions are made of.
#[derive(Debug, Serialize)]
pub struct Calibrated {
    /// The file that the figures are kept in.
    pub file: Option<PathBuf>,
    /// Where they came from.
    pub provenance: Provenance,
    /// The figures, measured or not, for a model in the cache folder.
    pub figures: HardwareProfile,
    /// The disks that were measured.
    pub disks: Vec<DiskFigures>,
}

impl Env {
    /// For a person, in lines of at most `width` columns.
    pub fn text(&self, width: usize) -> String {
        let mut table = Table::default();
        let backends = self.backends.join(", ");
        let (version, target) = (self.version, &self.target);
        table.heading(&format!("outsize {version} for {target}, computing on {backends}"));
        self.processors(&mut table);
        self.memory(&mut table);
        self.gpus(&mut table);
        self.disks(&mut table);
        table.heading("Default budget");
        for (tier, share) in &self.budget {
            size(&mut table, &tier.to_string(), share);
        }
        if !self.budget.contains_key(&Tier::Cpu) {
            table.entry("cpu", "unknown", "give one: --max-memory cpu=SIZE");
        }
        self.calibration.rows(&mut table);
        table.heading("Training");
        rows(&mut table, &self.training);
        match &self.mpi {
            Some(_) => sourced(&mut table, "MPI", &self.mpi),
            None => table.entry("MPI", "not found", "no mpirun in PATH"),
        }
        table.text(width)
    }

    fn processors(&self, table: &mut Table) {
        let processors = &self.machine.processors;
        table.heading("Processors");
        sourced(table, "name", &processors.name);
        sourced(table, "cores", &processors.cores);
        sourced(table, "threads", &processors.logical);
        sourced(table, "threads allowed", &processors.threads);
        sourced(table, "threads used", &self.product_threads);
        sourced(table, "instructions", &self.instructions);
        size(table, "largest cache", &processors.cache);
        if let Some(pages) = &processors.large_pages {
            let value = match pages.value.as_str() {
                "never" => "never: weights are read more slowly",
                other => other,
            };
            table.entry("large pages", value, &pages.source);
        }
    }

    fn memory(&self, table: &mut Table) {
        table.heading("Memory");
        let Some(ram) = &self.machine.ram else {
            table.entry("total", "unknown", "not reported by this system");
            return;
        };
        size(table, "total", &ram.total);
        if ram.available.source != ram.system_available.source {
            size(table, "free in all", &ram.system_available);
        }
        size(table, "available here", &ram.available);
        if let Some(cgroup) = &ram.cgroup {
            let (limit, usage) = (format_size(cgroup.limit), format_size(cgroup.usage));
            let value = format!("{limit}, {usage} of it in use");
            table.entry("cgroup's limit", &value, &cgroup.file.display().to_string());
        }
    }

    fn gpus(&self, table: &mut Table) {
        let gpus = &self.machine.gpus;
        table.heading("GPUs");
        for gpu in &gpus.found {
            table.entry(&format!("gpu{}", gpu.number), &gpu.name, &gpu.source);
            match &gpu.memory {
                GpuMemory::Own { total, free: None } => size(table, "", total),
                GpuMemory::Own { total, free: Some(free) } => {
                    let (all, free) = (format_size(total.value), format_size(free.value));
                    table.entry("", &format!("{all}, {free} free"), &total.source);
                }
                GpuMemory::Unified { source } => {
                    table.entry("", "shares the host's memory", source)
                }
                GpuMemory::Unknown { reason } => table.entry("", "memory unknown", reason),
            }
        }
        let mut notes = gpus.notes.iter();
        if gpus.found.is_empty() {
            let first = notes.next().map_or("", String::as_str);
            table.entry("none", first, "");
        }
        for note in notes {
            table.entry("", note, "");
        }
        if self.backends == ["cpu"] {
            if !gpus.found.is_empty() {
                table.entry("", "this build computes on the processors only", "");
            }
            return;
        }
        table.heading("GPUs to compute on");
        for gpu in &self.gpus {
            table.entry(&format!("gpu{}", gpu.number), &gpu.name, gpu.backend);
            match gpu.memory {
                Some(bytes) => table.entry("", &format_size(bytes), "in all, says the driver"),
                None => table.entry("", "memory unknown", "give a budget: --max-memory"),
            }
            if let Some(free) = gpu.free {
                table.entry("", &format_size(free), "free, says the driver");
            }
            if let Some(taken) = gpu.driver {
                table.entry("", &format_size(taken), "of it the driver takes for a process");
            }
            let types = |types: &[&str]| {
                if types.is_empty() { "f32 only".into() } else { types.join(", ") }
            };
            table.entry("", &types(&gpu.holds), "holds, beside f32");
            table.entry("", &types(&gpu.computes), "computes in, beside f32");
            if gpu.software {
                table.entry("", "a processor that acts as a GPU", SOFTWARE_VARIABLE);
            }
        }
        if self.gpus.is_empty() {
            table.entry("none", "Burn finds none", &self.backends[1..].join(", "));
        }
    }

    fn disks(&self, table: &mut Table) {
        table.heading("Disk");
        for (name, place) in [("cache folder", &self.cache), ("this folder", &self.current)] {
            let Some(place) = place else {
                table.entry(name, "unknown", "set OUTSIZE_CACHE to a folder");
                continue;
            };
            table.entry(name, &place.path.display().to_string(), "");
            match (&place.free, &place.total) {
                (Some(free), Some(total)) => {
                    let (bytes, all) = (format_size(free.value), format_size(total.value));
                    table.entry("", &format!("{bytes} free of {all}"), &free.source);
                }
                _ => table.entry("", "free space unknown", ""),
            }
            if let Some(mount) = &place.mount {
                table.entry("", &place.disk(), &mount.source);
            }
        }
    }
}

impl Calibrated {
    fn rows(&self, table: &mut Table) {
        table.heading("Speed, for predictions");
        table.entry("from", &self.provenance.note, "");
        let (figures, cpu) = (&self.figures, &self.figures.cpu);
        for (name, rate, what) in [
            ("disk", figures.disk.bytes_per_second, "streaming beside matmuls"),
            ("memory", cpu.memory_bytes_per_second, "read by all threads"),
            ("", figures.copy_bytes_per_second, "copied"),
            ("", figures.first_touch_bytes_per_second, "first touch"),
            ("gemv", cpu.product_bytes_per_second, "of weights, one row"),
            ("attention", cpu.cache_bytes_per_second, "of keys and values"),
        ] {
            table.entry(name, &bandwidth(Bytes, rate), what);
        }
        table.entry("gemm", &bandwidth(Operations, cpu.product_flops), "many rows");
        table.entry("a block", &time(cpu.block_seconds), "beside matmuls and attention");
        table.entry("disk latency", &time(figures.disk.latency_seconds), "until the first byte");
        for (number, gpu) in &figures.gpus {
            let (to, from) = (gpu.upload.bytes_per_second, gpu.download().bytes_per_second);
            let on = &gpu.processor;
            let name = format!("gpu{number}");
            table.entry(&name, &bandwidth(Bytes, to), "copied to it");
            table.entry("", &bandwidth(Bytes, from), "copied from it");
            table.entry("", &bandwidth(Bytes, on.memory_bytes_per_second), "its memory");
            table.entry("", &bandwidth(Bytes, on.product_bytes_per_second), "of weights, one row");
            table.entry("", &bandwidth(Operations, on.product_flops), "many rows");
        }
        for disk in &self.disks {
            let day = disk.date.split('T').next().unwrap_or_default();
            let plain = bandwidth(Bytes, disk.plain_bytes_per_second);
            let what =
                format!("{} ({}) on {day}; plain reads {plain}", disk.device, disk.file_system);
            table.entry("measured disk", &bandwidth(Bytes, disk.streamed.bytes_per_second), &what);
        }
        if let Some(file) = &self.file {
            table.entry("stored in", &file.display().to_string(), "");
        }
    }
}

/// A row of a value, if it is known.
fn sourced<'a, T: ToString + 'a>(
    table: &mut Table,
    name: &str,
    value: impl Into<Option<&'a Sourced<T>>>,
) {
    if let Some(value) = value.into() {
        table.entry(name, &value.value.to_string(), &value.source);
    }
}

/// A row of a size in bytes, if it is known.
fn size<'a>(table: &mut Table, name: &str, bytes: impl Into<Option<&'a Sourced<u64>>>) {
    if let Some(bytes) = bytes.into() {
        table.entry(name, &format_size(bytes.value), &bytes.source);
    }
}
