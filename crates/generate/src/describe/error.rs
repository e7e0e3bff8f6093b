//! What can go wrong when a model is described.

use std::path::PathBuf;

use outsize_models::Error as ModelError;

use crate::error::Error;

/// Why a model could not be described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// There is no such file.
    #[error("{}: no such file; give a model's folder, its config.json, its .safetensors or .bin", path.display())]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// A folder has neither a configuration nor weights.
    #[error(
        "{} describes no model: it has neither config.json nor model.safetensors nor pytorch_model.bin, nor the index of either",
        folder.display()
    )]
    Nothing {
        /// The folder.
        folder: PathBuf,
    },
    /// A configuration that cannot be run, and no weights whose headers would tell the sizes.
    #[error(
        "{}: {}; without weights beside it, sizes are known for the architectures that are built in alone",
        path.display(),
        without_name(source)
    )]
    Unknown {
        /// The configuration.
        path: PathBuf,
        /// What is wrong with it.
        source: ModelError,
    },
    /// A file cannot be read, or is no JSON.
    #[error(transparent)]
    File(#[from] Error),
    /// The tensors cannot be matched with the model.
    #[error(transparent)]
    Core(#[from] outsize_core::Error),
    /// The checkpoint is damaged.
    #[error(transparent)]
    Checkpoint(#[from] outsize_checkpoint::Error),
}

/// What the models say of a configuration begins with the name of its file, which the path has
/// already.
pub(crate) fn without_name(error: &ModelError) -> String {
    let text = error.to_string();
    match text.strip_prefix("config.json: ") {
        Some(reason) => reason.to_owned(),
        None => text,
    }
}
