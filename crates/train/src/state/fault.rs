//! What can be wrong with a saved state.

use std::path::PathBuf;

/// Why a state cannot be saved or loaded. [`Error::State`](crate::Error::State) names the folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateFault {
    /// The folder has no list of its contents.
    #[error("it has no state.json, so it is not the folder of a saved state")]
    NotAState,
    /// The state was written in another format.
    #[error(
        "its format is {found} and this version reads format {reads}: load it with the version that saved it"
    )]
    Format {
        /// The format that the state says.
        found: u64,
        /// The format of this version.
        reads: u64,
    },
    /// A file is not what was written.
    #[error("{file} is damaged: {what}. Load an older state")]
    Damaged {
        /// The file in the folder.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {cause}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What the operating system says.
        cause: std::io::Error,
    },
    /// The program asks for what was not saved.
    #[error("it has {found} of the {wanted} {what} to load: save and load the same parts")]
    Missing {
        /// What is missing, in the plural.
        what: &'static str,
        /// How many were saved.
        found: usize,
        /// How many are wanted.
        wanted: usize,
    },
    /// A part of the state belongs to something else than what it is loaded into.
    #[error("{file} does not fit: {what}")]
    Mismatch {
        /// The file in the folder.
        file: String,
        /// What does not fit, and what to do.
        what: String,
    },
    /// The model does not fit, or could not be read or written.
    #[error(transparent)]
    Model(#[from] outsize_core::Error),
    /// The folder could not be made or renamed.
    #[error(transparent)]
    Checkpoint(#[from] outsize_checkpoint::Error),
}

impl StateFault {
    pub(super) fn damaged(file: impl Into<String>, what: impl ToString) -> Self {
        Self::Damaged { file: file.into(), what: what.to_string() }
    }

    pub(super) fn mismatch(file: impl Into<String>, what: impl ToString) -> Self {
        Self::Mismatch { file: file.into(), what: what.to_string() }
    }
}
