//! The cache folder.

use crate::error::Failure;
use crate::interrupt;
use outsize::machine::{Machine, Provenance, figures_for, read_figures};
use outsize::plan::HardwareProfile;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// The cache folder, made if it is not there.
pub fn made_folder() -> Result<PathBuf, Failure> {
    let folder = folder()?;
    std::fs::create_dir_all(&folder).map_err(|error| {
        Failure::Failed(format!(
            "cannot create the cache folder {}: {error}; set OUTSIZE_CACHE to another",
            folder.display()
        ))
    })?;
    Ok(folder)
}

/// Waits until no other process has the folder locked, and locks it until the file is dropped; none
/// where folders cannot be locked.
pub fn lock(folder: &Path) -> Result<Option<File>, Failure> {
    let Ok(file) = File::open(folder) else {
        return Ok(None);
    };
    while let Err(TryLockError::WouldBlock) = file.try_lock() {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(Some(file))
}

/// The hardware profile for predicting a model's speed on this machine, and its provenance.
pub fn figures(machine: &Machine, model: &Path) -> (HardwareProfile, Provenance) {
    figures_for(machine, folder().ok().as_deref(), model)
}

/// The hardware profile in the file `given`, or that of this machine; and where it comes from.
pub fn figures_of(
    given: Option<&Path>,
    model: &Path,
    machine: &Machine,
) -> Result<(HardwareProfile, String), Failure> {
    match given {
        Some(path) => {
            let figures = read_figures(path)
                .map_err(|error| Failure::usage(format!("--figures: {error}")))?;
            Ok((figures, format!("of {}", path.display())))
        }
        None => {
            let (figures, source) = figures(machine, model);
            Ok((figures, source.note))
        }
    }
}
