//! What this machine has: memory, cgroups, disk speed.
//!
//! Memory is known on Linux; elsewhere every figure is `None`, and the caller asks for a budget instead.
//! Disk speed is measured everywhere, past the page cache on Linux.
#![forbid(unsafe_code)]

mod cgroup;
mod disk;
mod error;
mod memory;
mod proc;

pub use cgroup::{Cgroup, cgroup};
pub use disk::{BUFFER_BYTES, DiskSpeed, direct_read_speed};
pub use error::Error;
pub use memory::{Memory, available, current_rss, memory, peak_rss};
