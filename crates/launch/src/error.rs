use std::io;
use std::path::PathBuf;

/// Why a program was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting has a value that it does not take.
    #[error("{key} is `{value}` ({source_of_value}): {reason}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: String,
        /// The flag, variable or file that it is from.
        source_of_value: String,
        /// What it has to be.
        reason: String,
    },
    /// A configuration file or a hostfile cannot be used.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A program is not there, or not a program.
    #[error("cannot start {}: {reason}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Cargo did not build what was asked for.
    #[error("{0}")]
    Cargo(String),
    /// MPI is needed and not there.
    #[error("{reason}, but there is no mpirun in PATH: install Open MPI (Debian: openmpi-bin)")]
    NoMpirun {
        /// Why it is needed.
        reason: String,
    },
    /// Processes of several machines were asked of a program without MPI.
    #[error(
        "{} is not linked with MPI, so its ranks are threads of one process and cannot run on {place}: build it with \
         the feature `mpi` of outsize-train, or set engine to mpi for a script that starts such a program",
        program.display()
    )]
    NotMpi {
        /// The program.
        program: PathBuf,
        /// Where it was to run.
        place: String,
    },
    /// The system refuses something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system says.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::System { what, source }
    }
}
