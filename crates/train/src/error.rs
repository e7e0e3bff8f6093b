//! What can go wrong in a training run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::state::StateFault;

/// Why a training run cannot start or go on. Every message says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The environment describes several ranks, and this build cannot reach the others.
    #[error(
        "{variable}={size} announces {size} ranks, but this program was built without the feature `mpi` and would \
         train {size} separate models: build it with `--features mpi`, or start it once"
    )]
    NeedsMpi {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        size: usize,
    },
    /// The environment describes several ranks in the way of a launcher other than MPI's.
    #[error(
        "{variable}={size} announces {size} ranks, but no MPI world of {size} was found: start the program \
         with `mpirun -n {size} PROGRAM` or `srun --mpi=pmix -n {size} PROGRAM` (torchrun starts Python programs)"
    )]
    NoMpiWorld {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        size: usize,
    },
    /// Another rank failed, so this one cannot go on.
    #[error("rank {rank} failed: {reason}")]
    RankFailed {
        /// The rank that failed first.
        rank: usize,
        /// What it said.
        reason: String,
    },
    /// Ranks disagree on what they exchange.
    #[error(
        "rank {rank} calls {found}, while rank {reference} calls {expected}: all ranks must make the same calls in the same order"
    )]
    RankDiffers {
        /// The rank that differs.
        rank: usize,
        /// What it calls.
        found: String,
        /// A rank that most others agree with.
        reference: usize,
        /// What that one calls.
        expected: String,
    },
    /// Other ranks did not come to a collective in time.
    #[error(
        "{} did not reach {operation} within {} s: they may wait elsewhere; a longer `timeout` helps if they are only \
         slow",
        if missing.is_empty() { "other ranks".to_owned() } else { format!("ranks {missing:?}") },
        timeout.as_secs_f32()
    )]
    Timeout {
        /// What was called.
        operation: String,
        /// The ranks that did not come, where the engine knows them.
        missing: Vec<usize>,
        /// How long this rank waited.
        timeout: Duration,
    },
    /// A tensor of another rank does not go with this rank's.
    #[error("tensors of ranks do not go together: {0}")]
    Wire(String),
    /// A model cannot be computed in a lower precision.
    #[error(
        "{model} cannot be computed in {precision}: {reason}; train it in float32, or cast inside the module"
    )]
    Precision {
        /// The module, by its path or type.
        model: String,
        /// What was asked for.
        precision: &'static str,
        /// Why not.
        reason: String,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A state could not be saved or loaded.
    #[error("the state {}: {fault}", folder.display())]
    State {
        /// The folder of the state.
        folder: PathBuf,
        /// What is wrong.
        fault: Box<StateFault>,
    },
    /// The checkpoint, the plan or a read failed.
    #[error(transparent)]
    Core(#[from] outsize_core::Error),
    /// A small file beside the weights cannot be used.
    #[error(transparent)]
    ConfigFile(#[from] outsize_checkpoint::ConfigFileError),
    /// Only floats can learn.
    #[error(
        "{} has {what}, and weights can only learn in f32, f16 or bf16: take the original weights, or let an adapter \
         learn on these",
        path.display()
    )]
    NotFloats {
        /// The checkpoint.
        path: PathBuf,
        /// What it has.
        what: String,
    },
    /// The disk is too small for what weights learn in.
    #[error(
        "{} needs {needed} bytes of disk for weights, moments of AdamW, gradients and the checkpoint, and {free} are free there",
        folder.display()
    )]
    Disk {
        /// The folder of states.
        folder: PathBuf,
        /// Bytes that are to be written.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// States on the disk in which weights learn cannot be used.
    #[error("{} cannot be used to go on: {reason}; remove it to begin anew", folder.display())]
    OffloadedStates {
        /// Their folder.
        folder: PathBuf,
        /// What is wrong with them.
        reason: String,
    },
    /// A file of such states cannot be read or written.
    #[error("{}: {source}", path.display())]
    OffloadedFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// States are of another training.
    #[error(
        "{} has the state of a training with other settings or examples: go on with those, or remove the folder to begin anew",
        folder.display()
    )]
    OtherTraining {
        /// The folder of states.
        folder: PathBuf,
    },
    /// A step failed before it was complete.
    #[error("a step failed and is not complete: open the model again to go on")]
    HalfStep,
    /// A step was asked for without gradients.
    #[error("there are no gradients of step {step}: call `backward` before `step`")]
    NoGradients {
        /// The step, counted from 1.
        step: usize,
    },
    /// Gradients are no numbers.
    #[error(
        "the gradients of step {step} are not finite: nothing is learned from them; take a smaller learning rate, and \
         look at the examples"
    )]
    Gradients {
        /// The step, counted from 1.
        step: usize,
    },
    /// The loss is no number.
    #[error(
        "the loss of step {step} is {loss}: nothing is learned from it; take a smaller learning rate, and look at the \
         examples"
    )]
    Loss {
        /// The step, counted from 1.
        step: usize,
        /// What it came to.
        loss: f64,
    },
    /// The caller wanted the work to end.
    #[error("stopped")]
    Stopped,
    /// A setting cannot be met.
    #[error("{0}")]
    Setting(String),
    /// An object could not be sent to other ranks.
    #[error(
        "an object could not be written as MessagePack for other ranks, or read from them: {0}"
    )]
    Object(String),
}

impl Error {
    pub(crate) fn state(folder: &Path, fault: StateFault) -> Self {
        Self::State { folder: folder.to_owned(), fault: Box::new(fault) }
    }
}
