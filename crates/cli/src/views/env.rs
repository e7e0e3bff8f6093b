//! What a machine has, as JSON and as text.

use super::table;
use outsize::machine::{DiskFigures, GpuMemory, Machine, Provenance, Sourced, Volume};
use outsize::plan::{HardwareProfile, Processor, Tier, format_size};
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
        let mut rows = vec![
            heading(&format!(
                "outsize {} for {}, computing on {}",
                self.version,
                self.target,
                self.backends.join(", ")
            )),
            Vec::new(),
        ];
        self.processors(&mut rows);
        self.memory(&mut rows);
        self.gpus(&mut rows);
        self.disks(&mut rows);
        rows.push(heading("Budget where none is named"));
        for (tier, share) in &self.budget {
            rows.push(size(&tier.to_string(), share));
        }
        if !self.budget.contains_key(&Tier::Cpu) {
            rows.push(row("cpu", "not known", "name one: --max-memory cpu=SIZE"));
        }
        rows.push(Vec::new());
        self.calibration.rows(&mut rows);
        table::lines(&rows, width).join("\n") + "\n"
    }

    fn processors(&self, rows: &mut Vec<Vec<String>>) {
        let processors = &self.machine.processors;
        rows.push(heading("Processors"));
        rows.push(row("name", &processors.name.value, &processors.name.source));
        let counts = [
            ("cores", &processors.cores),
            ("threads", &processors.logical),
        ];
        for (name, count) in counts {
            if let Some(count) = count {
                rows.push(row(name, &count.value.to_string(), &count.source));
            }
        }
        let allowed = &processors.threads;
        rows.push(row(
            "threads allowed",
            &allowed.value.to_string(),
            &allowed.source,
        ));
        let used = &self.product_threads;
        rows.push(row("threads used", &used.value.to_string(), &used.source));
        rows.push(row(
            "instructions",
            self.instructions.value,
            &self.instructions.source,
        ));
        if let Some(cache) = &processors.cache {
            rows.push(size("largest cache", cache));
        }
        if let Some(pages) = &processors.large_pages {
            let value = match pages.value.as_str() {
                "never" => "never: weights are read more slowly",
                other => other,
            };
            rows.push(row("large pages", value, &pages.source));
        }
        rows.push(Vec::new());
    }

    fn memory(&self, rows: &mut Vec<Vec<String>>) {
        rows.push(heading("Memory"));
        match &self.machine.ram {
            Some(ram) => {
                rows.push(size("total", &ram.total));
                if ram.available.source != ram.system_available.source {
                    rows.push(size("free in all", &ram.system_available));
                }
                rows.push(size("available here", &ram.available));
                if let Some(cgroup) = &ram.cgroup {
                    rows.push(row(
                        "cgroup's limit",
                        &format!(
                            "{}, {} of it in use",
                            format_size(cgroup.limit),
                            format_size(cgroup.usage)
                        ),
                        &cgroup.file.display().to_string(),
                    ));
                }
            }
            None => rows.push(row("total", "not known", "this system does not say")),
        }
        rows.push(Vec::new());
    }

    fn gpus(&self, rows: &mut Vec<Vec<String>>) {
        let gpus = &self.machine.gpus;
        rows.push(heading("GPUs"));
        for gpu in &gpus.found {
            let (memory, source) = match &gpu.memory {
                GpuMemory::Own { total, free } => {
                    let free = free.as_ref().map_or_else(String::new, |free| {
                        format!(", {} free", format_size(free.value))
                    });
                    (
                        format!("{}{free}", format_size(total.value)),
                        total.source.clone(),
                    )
                }
                GpuMemory::Unified { source } => {
                    ("works in the host's memory".to_string(), source.clone())
                }
                GpuMemory::Unknown { reason } => ("memory not known".to_string(), reason.clone()),
            };
            let name = format!("gpu{}", gpu.number);
            rows.push(row(&name, &gpu.name, &gpu.source));
            rows.push(row("", &memory, &source));
        }
        let mut notes = gpus.notes.iter();
        if gpus.found.is_empty() {
            let first = notes.next().map_or("", String::as_str);
            rows.push(row("none", first, ""));
        }
        for note in notes {
            rows.push(row("", note, ""));
        }
        if !gpus.found.is_empty() && self.backends == ["cpu"] {
            rows.push(row("", "this build computes on the processors only", ""));
        }
        rows.push(Vec::new());
    }

    fn disks(&self, rows: &mut Vec<Vec<String>>) {
        rows.push(heading("Disk"));
        for (name, place) in [
            ("cache folder", &self.cache),
            ("this folder", &self.current),
        ] {
            let Some(place) = place else {
                rows.push(row(name, "not known", "set OUTSIZE_CACHE to a folder"));
                continue;
            };
            rows.push(row(name, &place.path.display().to_string(), ""));
            match (&place.free, &place.total) {
                (Some(free), Some(total)) => rows.push(row(
                    "",
                    &format!(
                        "{} free of {}",
                        format_size(free.value),
                        format_size(total.value)
                    ),
                    &free.source,
                )),
                _ => rows.push(row("", "room not known", "")),
            }
            if let Some(mount) = &place.mount {
                rows.push(row("", &place.disk(), &mount.source));
            }
        }
        rows.push(Vec::new());
    }
}

impl Calibrated {
    fn rows(&self, rows: &mut Vec<Vec<String>>) {
        rows.push(heading("Speed, for predictions"));
        rows.push(row("from", &self.provenance.note, ""));
        let figures = &self.figures;
        let Processor {
            memory_bytes_per_second,
            product_bytes_per_second,
            product_flops,
            cache_bytes_per_second,
            block_seconds,
        } = figures.cpu;
        let rate = |rate: f64| format!("{}/s", format_size(rate as u64));
        let short = |seconds: f64| format!("{:.0} µs", seconds * 1e6);
        let list = [
            (
                "disk",
                rate(figures.disk.bytes_per_second),
                "streaming beside products",
            ),
            (
                "",
                short(figures.disk.latency_seconds),
                "until the first byte",
            ),
            (
                "memory",
                rate(memory_bytes_per_second),
                "read by all threads",
            ),
            ("", rate(figures.copy_bytes_per_second), "copied"),
            (
                "",
                rate(figures.first_touch_bytes_per_second),
                "had for the first time",
            ),
            (
                "products",
                rate(product_bytes_per_second),
                "of weights with one row",
            ),
            (
                "",
                format!("{:.0} GFLOP/s", product_flops / 1e9),
                "with many rows",
            ),
            (
                "attention",
                rate(cache_bytes_per_second),
                "of keys and values",
            ),
            (
                "a block",
                short(block_seconds),
                "beside products and attention",
            ),
        ];
        for (name, value, what) in list {
            rows.push(row(name, &value, what));
        }
        for disk in &self.disks {
            let what = format!("{} ({})", disk.device, disk.file_system);
            let day = disk.date.split('T').next().unwrap_or_default();
            rows.push(row(
                "measured disk",
                &rate(disk.streamed.bytes_per_second),
                &format!(
                    "{what} on {day}; plain reads {}",
                    rate(disk.plain_bytes_per_second)
                ),
            ));
        }
        if let Some(file) = &self.file {
            rows.push(row("kept in", &file.display().to_string(), ""));
        }
    }
}

fn heading(text: &str) -> Vec<String> {
    vec![text.to_string()]
}

/// A line beneath a heading; what said so stands in brackets.
fn row(name: &str, value: &str, source: &str) -> Vec<String> {
    let mut row = vec![format!("  {name}"), value.to_string()];
    if !source.is_empty() {
        row.push(format!("({source})"));
    }
    row
}

fn size(name: &str, bytes: &Sourced<u64>) -> Vec<String> {
    row(name, &format_size(bytes.value), &bytes.source)
}
