//! `outsize bench`: how fast this machine is, and how close a model runs to that.

mod budgets;
mod calibrate;
mod child;
mod figures;
mod measure;
mod notes;
mod phases;
mod subject;
mod text;

use crate::args::BenchArgs;
use crate::cache;
use crate::error::Failure;
use outsize::checkpoint::Checkpoint;
use outsize::generate::{DiskToMeasure, LEAST_CALIBRATION_BYTES};
use outsize::plan::{format_size, parse_size};
use std::path::Path;

/// Runs the command.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    match args.calibrate {
        true => calibrate::calibrate_machine(args),
        false => measure::measure(args),
    }
}

/// The most memory and disk to take, in bytes.
fn size(args: &BenchArgs) -> Result<u64, Failure> {
    let bytes =
        parse_size(&args.size).map_err(|error| Failure::usage(format!("--size: {error}")))?;
    if bytes < LEAST_CALIBRATION_BYTES {
        return Err(Failure::usage(format!(
            "--size: {} is too little to measure with; {} is the least",
            args.size,
            format_size(LEAST_CALIBRATION_BYTES)
        )));
    }
    Ok(bytes)
}

/// What to read: the files of a model, or one that is made in a folder, in the cache folder if none is named.
fn disk(place: Option<&Path>) -> Result<DiskToMeasure, Failure> {
    let Some(place) = place else {
        let cache = cache::folder()?;
        std::fs::create_dir_all(&cache).map_err(|error| {
            Failure::Failed(format!(
                "cannot make the cache folder {}: {error}; set OUTSIZE_CACHE to another",
                cache.display()
            ))
        })?;
        return Ok(DiskToMeasure::Folder(cache));
    };
    if !place.is_dir() {
        return Err(Failure::usage(format!(
            "{} is no folder: name a model's folder, or any folder on the disk to measure",
            place.display()
        )));
    }
    if has_weights(place) {
        Ok(DiskToMeasure::Checkpoint(Checkpoint::open(place)?))
    } else {
        Ok(DiskToMeasure::Folder(place.to_path_buf()))
    }
}

/// Whether there is a file of weights in the folder.
fn has_weights(folder: &Path) -> bool {
    folder.read_dir().is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let path = entry.path();
            path.extension().is_some_and(|end| end == "safetensors") && path.is_file()
        })
    })
}
