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
use outsize::machine::{Machine, load_average};
use outsize::plan::{format_size, parse_size};
use std::path::Path;

/// Share of the processors that others may use without being mentioned.
const BUSY: f64 = 0.5;

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

/// What to read: the files of a model, or one that is made in a folder.
fn disk(place: Option<&Path>, cache: &Path) -> Result<DiskToMeasure, Failure> {
    let Some(place) = place else {
        std::fs::create_dir_all(cache).map_err(|error| {
            Failure::Failed(format!(
                "cannot make the cache folder {}: {error}; set OUTSIZE_CACHE to another",
                cache.display()
            ))
        })?;
        return Ok(DiskToMeasure::Folder(cache.to_path_buf()));
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

/// The same, with the cache folder that is used where no place is named.
fn disk_or_cache(place: Option<&Path>) -> Result<DiskToMeasure, Failure> {
    match place {
        Some(place) => disk(Some(place), Path::new("")),
        None => disk(None, &cache::folder()?),
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

/// Says if others use the processors: then every figure will be low.
fn note_others(machine: &Machine) {
    let threads = machine.processors.threads.value as f64;
    if let Some(load) = load_average().filter(|load| load.value > BUSY * threads) {
        eprintln!(
            "note: other programs were busy in the last minute (load {:.1} on {threads} threads): the figures may be \
             low; measure again when the machine is quiet",
            load.value
        );
    }
}
