//! How a training program is started: its settings, from flags, the environment, a file or the
//! machine; and its processes, from their start to the end of the last one.
//!
//! [`Settings::resolve`] says what holds and why, [`Job::new`] what is to be started, [`Job::run`]
//! starts it.
#![forbid(unsafe_code)]
#![cfg(unix)]

mod allocation;
mod cargo;
mod config_file;
mod environment;
mod error;
mod event;
mod failure;
mod hostfile;
mod job;
mod key;
mod mpirun;
mod output;
mod process_tree;
mod program;
mod settings;
mod tagged;

pub use allocation::Allocation;
pub use cargo::{CargoTarget, build};
pub use config_file::{read_config, write_config};
pub use environment::{RESTART_COUNT, program_environment};
pub use error::Error;
pub use event::{Event, OutputStream};
pub use failure::RankFailure;
pub use job::{Ended, Engine, Job};
pub use key::{Key, SettingKind};
pub use mpirun::find_mpirun;

pub use program::Program;
pub use settings::{Layers, Settings};
