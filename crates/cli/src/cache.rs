//! The cache folder.

use crate::error::Failure;
use outsize::machine::{Machine, Provenance, figures_for};
use outsize::plan::HardwareProfile;
use std::path::{Path, PathBuf};

/// `$OUTSIZE_CACHE`, or the user's cache folder. It need not exist.
pub fn folder() -> Result<PathBuf, Failure> {
    match std::env::var_os("OUTSIZE_CACHE").filter(|path| !path.is_empty()) {
        Some(path) => Ok(PathBuf::from(path)),
        None => dirs::cache_dir().map(|folder| folder.join("outsize")).ok_or_else(|| {
            Failure::Failed(
                "there is no cache folder: set OUTSIZE_CACHE to a folder with 600 MB of room"
                    .to_string(),
            )
        }),
    }
}

/// The hardware profile for predicting a model's speed on this machine, and its provenance.
pub fn figures(machine: &Machine, model: &Path) -> (HardwareProfile, Provenance) {
    figures_for(machine, folder().ok().as_deref(), model)
}
