//! What a machine has, as JSON and as text.

use super::table;
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
    /// The default budget of each device.
    pub budget: BTreeMap<Tier, Sourced<u64>>,
    /// The file system of the cache folder; null if there is none.
    pub cache: Option<Volume>,
    /// The file system of the current folder.
    pub current: Option<Volume>,
    /// How fast the machine was measured to be.
    pub calibration: Calibrated,
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
        let mut rows = Rows::default();
        let backends = self.backends.join(", ");
        let (version, target) = (self.version, &self.target);
        rows.heading(&format!("outsize {version} for {target}, computing on {backends}"));
        rows.blank();
        self.processors(&mut rows);
        self.memory(&mut rows);
        self.gpus(&mut rows);
        self.disks(&mut rows);
        rows.heading("Default budget");
        for (tier, share) in &self.budget {
            rows.size(&tier.to_string(), share);
        }
        if !self.budget.contains_key(&Tier::Cpu) {
            rows.row("cpu", "unknown", "give one: --max-memory cpu=SIZE");
        }
        rows.blank();
        self.calibration.rows(&mut rows);
        table::lines(&rows.0, width).join("\n") + "\n"
    }

    fn processors(&self, rows: &mut Rows) {
        let processors = &self.machine.processors;
        rows.heading("Processors");
        rows.sourced("name", &processors.name);
        if let Some(cores) = &processors.cores {
            rows.sourced("cores", cores);
        }
        if let Some(threads) = &processors.logical {
            rows.sourced("threads", threads);
        }
        rows.sourced("threads allowed", &processors.threads);
        rows.sourced("threads used", &self.product_threads);
        rows.sourced("instructions", &self.instructions);
        if let Some(cache) = &processors.cache {
            rows.size("largest cache", cache);
        }
        if let Some(pages) = &processors.large_pages {
            let value = match pages.value.as_str() {
                "never" => "never: weights are read more slowly",
                other => other,
            };
            rows.row("large pages", value, &pages.source);
        }
        rows.blank();
    }

    fn memory(&self, rows: &mut Rows) {
        rows.heading("Memory");
        let Some(ram) = &self.machine.ram else {
            rows.row("total", "unknown", "not reported by this system");
            return rows.blank();
        };
        rows.size("total", &ram.total);
        if ram.available.source != ram.system_available.source {
            rows.size("free in all", &ram.system_available);
        }
        rows.size("available here", &ram.available);
        if let Some(cgroup) = &ram.cgroup {
            let (limit, usage) = (format_size(cgroup.limit), format_size(cgroup.usage));
            let value = format!("{limit}, {usage} of it in use");
            rows.row("cgroup's limit", &value, &cgroup.file.display().to_string());
        }
        rows.blank();
    }

    fn gpus(&self, rows: &mut Rows) {
        let gpus = &self.machine.gpus;
        rows.heading("GPUs");
        for gpu in &gpus.found {
            rows.row(&format!("gpu{}", gpu.number), &gpu.name, &gpu.source);
            match &gpu.memory {
                GpuMemory::Own { total, free: None } => rows.size("", total),
                GpuMemory::Own { total, free: Some(free) } => {
                    let (all, free) = (format_size(total.value), format_size(free.value));
                    rows.row("", &format!("{all}, {free} free"), &total.source);
                }
                GpuMemory::Unified { source } => rows.row("", "shares the host's memory", source),
                GpuMemory::Unknown { reason } => rows.row("", "memory unknown", reason),
            }
        }
        let mut notes = gpus.notes.iter();
        if gpus.found.is_empty() {
            let first = notes.next().map_or("", String::as_str);
            rows.row("none", first, "");
        }
        for note in notes {
            rows.row("", note, "");
        }
        if !gpus.found.is_empty() && self.backends == ["cpu"] {
            rows.row("", "this build computes on the processors only", "");
        }
        rows.blank();
    }

    fn disks(&self, rows: &mut Rows) {
        rows.heading("Disk");
        for (name, place) in [("cache folder", &self.cache), ("this folder", &self.current)] {
            let Some(place) = place else {
                rows.row(name, "unknown", "set OUTSIZE_CACHE to a folder");
                continue;
            };
            rows.row(name, &place.path.display().to_string(), "");
            match (&place.free, &place.total) {
                (Some(free), Some(total)) => {
                    let (bytes, all) = (format_size(free.value), format_size(total.value));
                    rows.row("", &format!("{bytes} free of {all}"), &free.source);
                }
                _ => rows.row("", "free space unknown", ""),
            }
            if let Some(mount) = &place.mount {
                rows.row("", &place.disk(), &mount.source);
            }
        }
        rows.blank();
    }
}

impl Calibrated {
    fn rows(&self, rows: &mut Rows) {
        rows.heading("Speed, for predictions");
        rows.row("from", &self.provenance.note, "");
        let (figures, cpu) = (&self.figures, &self.figures.cpu);
        let mut rate = |name, rate: f64, what| {
            rows.row(name, &format!("{}/s", format_size(rate as u64)), what);
        };
        rate("disk", figures.disk.bytes_per_second, "streaming beside matmuls");
        rate("memory", cpu.memory_bytes_per_second, "read by all threads");
        rate("", figures.copy_bytes_per_second, "copied");
        rate("", figures.first_touch_bytes_per_second, "first touch");
        rate("gemv", cpu.product_bytes_per_second, "of weights, one row");
        rate("attention", cpu.cache_bytes_per_second, "of keys and values");
        let flops = format!("{:.0} GFLOP/s", cpu.product_flops / 1e9);
        rows.row("gemm", &flops, "many rows");
        let short = |seconds: f64| format!("{:.0} µs", seconds * 1e6);
        rows.row("a block", &short(cpu.block_seconds), "beside matmuls and attention");
        let latency = short(figures.disk.latency_seconds);
        rows.row("disk latency", &latency, "until the first byte");
        for disk in &self.disks {
            let day = disk.date.split('T').next().unwrap_or_default();
            let rate = |rate: f64| format!("{}/s", format_size(rate as u64));
            let plain = rate(disk.plain_bytes_per_second);
            let what =
                format!("{} ({}) on {day}; plain reads {plain}", disk.device, disk.file_system);
            rows.row("measured disk", &rate(disk.streamed.bytes_per_second), &what);
        }
        if let Some(file) = &self.file {
            rows.row("stored in", &file.display().to_string(), "");
        }
    }
}

/// The rows of the table.
#[derive(Default)]
struct Rows(Vec<Vec<String>>);

impl Rows {
    fn heading(&mut self, text: &str) {
        self.0.push(vec![text.to_string()]);
    }

    fn blank(&mut self) {
        self.0.push(Vec::new());
    }

    /// A line beneath a heading, with its source in brackets.
    fn row(&mut self, name: &str, value: &str, source: &str) {
        let source = (!source.is_empty()).then(|| format!("({source})"));
        let cells = [format!("  {name}"), value.to_string()];
        self.0.push(cells.into_iter().chain(source).collect());
    }

    fn sourced(&mut self, name: &str, value: &Sourced<impl ToString>) {
        self.row(name, &value.value.to_string(), &value.source);
    }

    fn size(&mut self, name: &str, bytes: &Sourced<u64>) {
        self.row(name, &format_size(bytes.value), &bytes.source);
    }
}
