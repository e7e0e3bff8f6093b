//! What this machine has and how fast it is: memory, cgroups, processors, GPUs, disks, measured
//! bandwidths.
//!
//! [`Machine::detect`] looks at all of it without ever failing; each figure is a [`Sourced`], which
//! says what file, library or call it came from. Memory and processors are known on Linux;
//! elsewhere `ram` is `None`, and the caller asks for a budget instead. GPUs are found by NVIDIA's
//! library, which is loaded when there is one, and by what Linux writes in `/sys`.
//!
//! [`figures_for`] gives what a prediction is made of: what a [`Calibration`] measured on this
//! machine, or defaults.
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
mod known;
mod load;
mod memory;
mod proc;
mod processor;
mod region;
mod scratch;
mod sequential;
mod system;
mod usage;
mod volume;

pub use bandwidth::{FirstTouchProbe, FirstTouchRates, MemoryProbe};
pub use budget::{DETECTED_SHARE, complete_budget, detected_budget};
pub use cached::forget_cached;
pub use calibration::{
    CALIBRATION_FILE, CALIBRATION_VERSION, Calibration, DiskFigures, Identity, Measurement,
    Provenance, figures_for, now,
};
pub use cgroup::{Cgroup, cgroup};
pub use detect::Machine;
pub use disk::{BUFFER_BYTES, DiskSpeed, direct_read_speed, read_latency};
pub use error::Error;
pub use figures_file::read_figures;
pub use gpu::{GpuInfo, GpuMemory, Gpus};
pub use known::Sourced;
pub use load::load_average;
pub use memory::{Memory, Ram, available, current_rss, memory, peak_rss};
pub use processor::Processors;
pub use region::Region;
pub use scratch::Scratch;
pub use sequential::{ReadShape, SequentialReads};
pub use usage::{Usage, usage};
pub use volume::{MountInfo, Volume, volume};
