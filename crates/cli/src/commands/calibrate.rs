//! `outsize bench --calibrate`: measures the hardware profile and stores it.

use crate::cache;
use crate::error::Failure;
use crate::views::output::say;
use crate::views::style::style;
use crate::views::{calibration, output, progress};
use outsize::bench::{CalibrateOptions, CalibrateStep, calibrate};
use outsize::machine::{Calibration, Machine, load_average};
use serde_json::json;
use std::time::Instant;

/// The share of the processors that other programs may use without a note.
const BUSY: f64 = 0.5;

/// Runs the command.
pub fn calibrate_machine(options: &CalibrateOptions, json: bool) -> Result<(), Failure> {
    let folder = cache::folder()?;
    let machine = Machine::detect();
    let earlier = Calibration::load(&folder).unwrap_or_else(|error| {
        say(format!("note: {error}"));
        None
    });
    note_others(&machine);
    let began = Instant::now();
    let shown = progress::activity();
    let measured = calibrate(&machine, options, |step| {
        shown.set_message(match step {
            CalibrateStep::Writing => "writing a file to read".into(),
            CalibrateStep::Memory => "measuring memory".into(),
            CalibrateStep::Compute => "measuring products and layers".into(),
            CalibrateStep::Gpu(number) => format!("measuring gpu{number}"),
            CalibrateStep::Disk => "measuring the disk".into(),
        });
    });
    shown.finish_and_clear();
    let measured = measured?;
    let seconds = began.elapsed().as_secs_f64();
    let kept = match measured.disks.first().cloned() {
        Some(disk) => measured.with_disk(disk, earlier.as_ref()),
        None => measured,
    };
    let file = kept.save(&folder)?;
    if json {
        let report = json!({ "file": file, "seconds": seconds, "calibration": kept });
        return output::print_json(&report);
    }
    output::print(&calibration::text(&kept, style().width))?;
    output::print(&format!("\nMeasured in {seconds:.0} s and kept in {}.\n", file.display()))
}

/// Warns if other programs use the processors, which makes all figures low.
fn note_others(machine: &Machine) {
    let threads = machine.processors.threads.value as f64;
    if let Some(load) = load_average().filter(|load| load.value > BUSY * threads) {
        say(format!(
            "note: other programs were busy in the last minute (load {:.1} on {threads} threads): the figures may be \
             low; measure again when the machine is quiet",
            load.value
        ));
    }
}
