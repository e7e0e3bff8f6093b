use std::io;
use std::path::PathBuf;

/// Why a machine could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk or the memory could not be measured.
    #[error(transparent)]
    Machine(#[from] outsize_machine::Error),
    /// Reading through the stream failed.
    #[error("cannot measure the disk: {0}")]
    Stream(#[from] outsize_stream::Error),
    /// A layer could not be run.
    #[error("cannot measure a layer: {0}")]
    Model(#[from] outsize_models::Error),
    /// The file to measure with could not be written.
    #[error("cannot write a file in {folder} to measure the disk with: {source}", folder = .folder.display())]
    Write {
        /// Where it would be.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no room for a file.
    #[error(
        "{folder} has room for {free}, and measuring the disk takes {needed} at least: name a folder with more, \
         or a model to read instead",
        folder = .folder.display(),
        free = outsize_plan::format_size(*.free),
        needed = outsize_plan::format_size(*.needed)
    )]
    NoRoom {
        /// Where it would be.
        folder: PathBuf,
        /// What is free, in bytes.
        free: u64,
        /// The least that is needed, in bytes.
        needed: u64,
    },
    /// A checkpoint that has too little to read.
    #[error(
        "{folder} has {bytes} of matrices in floating point: too little to measure the disk with, {needed} would do; \
         name a folder instead, and a file is made there",
        folder = .folder.display(),
        bytes = outsize_plan::format_size(*.bytes),
        needed = outsize_plan::format_size(*.needed)
    )]
    Small {
        /// The checkpoint.
        folder: PathBuf,
        /// What it has, in bytes.
        bytes: u64,
        /// The least that is needed, in bytes.
        needed: u64,
    },
    /// A GPU failed.
    #[error("cannot measure gpu{number}: {reason}")]
    Gpu {
        /// Its number.
        number: usize,
        /// What it says.
        reason: String,
    },
    /// A measurement gave nothing.
    #[error(
        "measuring gave no figure for {what}: measure again, with more memory and disk if they were few"
    )]
    Nothing {
        /// The measurement.
        what: &'static str,
    },
    /// Work that was timed did not come to what it must come to.
    #[error("{what} came to a wrong result while they were timed: the figures would mean nothing")]
    Wrong {
        /// The work.
        what: &'static str,
    },
    /// It was asked to stop.
    #[error("stopped")]
    Stopped,
}
