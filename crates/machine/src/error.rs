use std::io;
use std::path::{Path, PathBuf};

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file to read cannot be opened.
    #[error("cannot open {path} to measure the disk's speed: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A read of the file failed.
    #[error("cannot read {path} at byte {offset} to measure the disk's speed: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// What the system says.
        source: io::Error,
    },
    /// There is nothing to time.
    #[error(
        "{path} is too small to measure the disk's speed with: take a file of at least one megabyte, better a \
         hundred"
    )]
    TooSmall {
        /// The file.
        path: PathBuf,
    },
    /// Memory holds something else than was written to it.
    #[error(
        "memory holds something else than was written to it: test it, or look for a fault in this program"
    )]
    WrongMemory,
    /// The stored calibration is unusable.
    #[error(
        "{path} is not used: {reason}; `outsize bench --calibrate` makes it anew", path = .path.display()
    )]
    Calibration {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file does not hold a hardware profile.
    #[error("{path} holds no hardware profile: {reason}", path = .path.display())]
    HardwareProfile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file with the machine's figures cannot be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    SaveCalibration {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// No file to measure with can be made.
    #[error(
        "cannot make a file in {folder} to measure the disk with: {source}", folder = .folder.display()
    )]
    Scratch {
        /// Where it would be.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no memory to measure with.
    #[error("cannot allocate {bytes} bytes to measure memory with: {source}")]
    NoMemory {
        /// How much was asked for.
        bytes: u64,
        /// What the system says.
        source: io::Error,
    },
}

impl Error {
    /// What a failure to open a file becomes.
    pub(crate) fn open(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Open { path: path.to_path_buf(), source }
    }
}
