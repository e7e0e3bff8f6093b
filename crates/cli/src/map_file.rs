//! A device map that a person wrote, or that another software did.

use crate::error::Failure;
use outsize::plan::ManualMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The most bytes of a map that are read: no model has so many modules.
const LARGEST: u64 = 32 << 20;

/// The map in the file of `--device-map`.
///
/// # Errors
/// Bad usage, with the flag and the file named, if it cannot be read or is no map. Whether it is one of the model is found out later.
pub fn read(path: &Path) -> Result<ManualMap, Failure> {
    let wrong =
        |reason: String| Failure::usage(format!("--device-map {}: {reason}", path.display()));
    let text = text(path).map_err(|error| wrong(error.to_string()))?;
    ManualMap::parse(&text).map_err(|error| wrong(error.to_string()))
}

fn text(path: &Path) -> io::Result<String> {
    // A pipe would be waited for, and a device never end.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    let read = File::open(path)?
        .take(LARGEST + 1)
        .read_to_string(&mut text)?;
    match read as u64 > LARGEST {
        true => Err(io::Error::other(format!(
            "it is larger than {LARGEST} bytes"
        ))),
        false => Ok(text),
    }
}
