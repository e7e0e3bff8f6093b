//! `outsize bench --calibrate`: how fast this machine is, measured and kept.

use super::{disk, size};
use crate::args::BenchArgs;
use crate::error::Failure;
use crate::{cache, interrupt, progress, run, table};
use outsize::bench::{CalibrateOptions, CalibrateStep, calibrate};
use outsize::machine::{Calibration, Machine, Measurement, load_average};
use outsize::plan::format_size;
use std::time::Instant;

/// Share of the processors that others may use without being mentioned.
const BUSY: f64 = 0.5;

/// Runs the command.
pub fn calibrate_machine(args: &BenchArgs) -> Result<(), Failure> {
    let bytes = size(args)?;
    let folder = cache::folder()?;
    let machine = Machine::detect();
    let options = CalibrateOptions {
        disk: disk(args.place.as_deref())?,
        bytes,
        stop: Some(interrupt::flag()),
    };
    let earlier = Calibration::load(&folder).unwrap_or_else(|error| {
        eprintln!("note: {error}");
        None
    });
    note_others(&machine);
    let began = Instant::now();
    let shown = progress::activity();
    let measured = calibrate(&machine, &options, |step| {
        shown.set_message(match step {
            CalibrateStep::Writing => "writing a file to read",
            CalibrateStep::Memory => "measuring memory",
            CalibrateStep::Compute => "measuring products and layers",
            CalibrateStep::Disk => "measuring the disk",
        });
    });
    shown.finish_and_clear();
    let measured = measured?;
    let seconds = began.elapsed().as_secs_f64();
    let calibration = match measured.disks.first().cloned() {
        Some(disk) => measured.with_disk(disk, earlier.as_ref()),
        None => measured,
    };
    let file = calibration.save(&folder)?;
    if args.json {
        let report = serde_json::json!({
            "file": file,
            "seconds": seconds,
            "calibration": calibration,
        });
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    run::print(&text(&calibration, table::width()))?;
    run::print(&format!(
        "\nMeasured in {seconds:.0} s and kept in {}.\n",
        file.display()
    ))
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

/// Each figure, how it was measured and its spread.
fn text(calibration: &Calibration, width: usize) -> String {
    let cells = |cells: [&str; 4]| cells.map(String::from).to_vec();
    let mut rows = vec![cells(["figure", "median", "spread", "how"])];
    for measurement in &calibration.measurements {
        rows.push(cells([
            &measurement.name,
            &value(measurement),
            &format!("{:.0} %", measurement.spread * 100.0),
            &format!("{}, {} times", measurement.how, measurement.repetitions),
        ]));
    }
    if let Some(disk) = calibration.disks.first() {
        rows.push(Vec::new());
        let name = match disk.device.as_str() {
            "" => "The disk".to_string(),
            device => format!("The disk is {device} ({})", disk.file_system),
        };
        let share = disk.streamed.bytes_per_second / disk.plain_bytes_per_second * 100.0;
        rows.push(vec![format!(
            "{name}; streaming gets {share:.0} % of what plain reads do."
        )]);
        if !disk.direct {
            rows.push(vec![
                "Its file system allows no reads past the page cache: these may be figures of the memory."
                    .to_string(),
            ]);
        }
    }
    table::lines(&rows, width).join("\n") + "\n"
}

/// With a unit for people.
fn value(measurement: &Measurement) -> String {
    let value = measurement.value;
    match measurement.unit.as_str() {
        "B/s" => format!("{}/s", format_size(value as u64)),
        "FLOP/s" => format!("{:.0} GFLOP/s", value / 1e9),
        "s" if value >= 1e-3 => format!("{:.1} ms", value * 1e3),
        "s" => format!("{:.0} µs", value * 1e6),
        unit => format!("{value:.3} {unit}"),
    }
}
