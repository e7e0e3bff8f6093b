//! What this machine has and how fast it is: memory, cgroups, processors, GPUs, disks, measured
//! bandwidths.
//!
//! [`Machine::detect`] never fails; each figure is a [`Sourced`] with the file, library or call
//! that it came from. Memory and processors are known on Linux; elsewhere `ram` is `None`, and a
//! budget must be given. GPUs are found by NVML, if it can be loaded, and by files in `/sys`.
//!
//! [`figures_for`] returns the hardware profile of predictions: that of this machine's
//! [`Calibration`], or a default.
#![forbid(unsafe_code)]

mod bandwidth;
mod budget;
mod cached;
mod calibration;
mod cgroup;
mod detect;
mod disk;
mod error;
mod figures_file;
mod gpu;
mod load;
mod memory;
mod proc;
mod processor;
mod region;
mod scratch;
mod sequential;
mod sourced;
mod system;
mod usage;
mod volume;

pub use bandwidth::{FirstTouchProbe, FirstTouchRates, MemoryProbe};
pub use budget::{complete_budget, detected_budget};
pub use cached::forget_cached;
pub use calibration::{
    CALIBRATION_FILE, CALIBRATION_VERSION, Calibration, DiskFigures, Identity, Measurement,
    Provenance, figures_for, now,
};
pub use cgroup::Cgroup;
pub use detect::Machine;
pub use disk::{DiskSpeed, direct_read_speed, read_latency};
pub use error::Error;
pub use figures_file::read_figures;
pub use gpu::{GpuInfo, GpuMemory, Gpus, gpu_free_memory};
pub use load::load_average;
pub use memory::{Ram, begun_rss, current_rss, peak_rss};
pub use processor::Processors;
pub use region::Region;
pub use scratch::Scratch;
pub use sequential::{ReadShape, SequentialReads};
pub use sourced::Sourced;
pub use usage::{Usage, usage};
pub use volume::{MountInfo, Volume, volume};
