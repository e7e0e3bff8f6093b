//! `outsize env`: what this machine has, with sources.

use crate::args::JsonArgs;
use crate::cache;
use crate::commands::config::held;
use crate::error::Failure;
use crate::views::env::{Calibrated, ComputeGpu, Env};
use crate::views::output;
use crate::views::style::style;
use outsize::generate::gpu_contexts;
use outsize::kernels::gpu::{BACKENDS, GpuDevice, gpus};
use outsize::kernels::{Isa, threads};
use outsize::launch::find_mpirun;
use outsize::machine::{
    CALIBRATION_FILE, Calibration, Machine, Sourced, current_rss, detected_budget, figures_for,
    gpu_free_memory, volume,
};
use std::path::Path;
use std::process::Command;

/// Runs the command. It fails if it cannot print, or if a setting of training is wrong.
pub fn env(args: &JsonArgs) -> Result<(), Failure> {
    let env = Env::new()?;
    match args.json {
        true => output::print(&(serde_json::to_string_pretty(&env)? + "\n")),
        false => output::print(&env.text(style().width)),
    }
}

impl Env {
    fn new() -> Result<Self, Failure> {
        let machine = Machine::detect();
        let folder = cache::folder().ok();
        let budget = detected_budget(&machine, current_rss().unwrap_or(0)).into_iter().collect();
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
            backends: [&["cpu"], BACKENDS].concat(),
            gpus: compute_gpus(),
            instructions: Sourced::new(
                Isa::detected().name(),
                "the processor, asked by cpuid or alike",
            ),
            product_threads: product_threads(&machine),
            budget,
            current: std::env::current_dir().ok().map(|folder| volume(&folder)),
            cache: folder.as_deref().map(volume),
            calibration: Calibrated::new(&machine, folder.as_deref()),
            training: held(None, &machine)?,
            machine,
            mpi: mpi_version(),
        })
    }
}

/// The GPUs that this build computes on.
fn compute_gpus() -> Vec<ComputeGpu> {
    // In this order: opening them takes memory.
    let free = gpu_free_memory();
    let contexts = gpu_contexts();
    let of = |gpu: &GpuDevice| ComputeGpu {
        free: free.get(&gpu.number).copied(),
        driver: contexts.get(&gpu.number).copied(),
        ..gpu.into()
    };
    gpus().iter().map(of).collect()
}

impl Calibrated {
    fn new(machine: &Machine, folder: Option<&Path>) -> Self {
        let place = folder.unwrap_or(Path::new("."));
        let (figures, provenance) = figures_for(machine, folder, place);
        let kept = folder.and_then(|folder| Calibration::load(folder).ok().flatten());
        Self {
            file: folder.map(|folder| folder.join(CALIBRATION_FILE)),
            figures,
            disks: kept.filter(|_| provenance.measured).map_or_else(Vec::new, |kept| kept.disks),
            provenance,
        }
    }
}

/// What the mpirun in `PATH` says of itself.
fn mpi_version() -> Option<Sourced<String>> {
    let mpirun = find_mpirun("").ok()?;
    let said = Command::new(&mpirun).arg("--version").output().ok()?.stdout;
    let line = String::from_utf8_lossy(&said).lines().next()?.trim().to_string();
    Some(Sourced::new(line, mpirun.display().to_string()))
}

/// How many threads matmuls use, and why.
fn product_threads(machine: &Machine) -> Sourced<usize> {
    let source = match std::env::var_os("RAYON_NUM_THREADS") {
        Some(_) => "RAYON_NUM_THREADS",
        None => &machine.processors.threads.source,
    };
    Sourced::new(threads(), source)
}
