//! Device maps from files.

use crate::error::Failure;
use outsize::checkpoint::read_text;
use outsize::plan::ManualMap;
use std::path::Path;

/// The most bytes of a map that are read: no model has so many modules.
const LARGEST: u64 = 32 << 20;

/// The map in the file of `--device-map`.
///
/// # Errors
/// A usage error that names the flag and the file if it cannot be read or is no map. Whether it
/// fits the model is checked later.
pub fn read(path: &Path) -> Result<ManualMap, Failure> {
    let wrong =
        |reason: String| Failure::usage(format!("--device-map {}: {reason}", path.display()));
    let text = read_text(path, LARGEST).map_err(|error| wrong(error.to_string()))?;
    ManualMap::parse(&text).map_err(|error| wrong(error.to_string()))
}
