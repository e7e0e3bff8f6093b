//! The figures of a calibration.

use super::human::{bandwidth, share, time};
use super::table::Table;
use outsize::bench::RateUnit;
use outsize::machine::{Calibration, Measurement};

/// Each figure, its spread and how it was measured.
pub fn text(calibration: &Calibration, width: usize) -> String {
    let mut table = Table::default();
    table.row(["figure", "median", "spread", "how"]);
    for measurement in &calibration.measurements {
        table.row([
            measurement.name.clone(),
            value(measurement),
            share(measurement.spread),
            format!("{}, {} times", measurement.how, measurement.repetitions),
        ]);
    }
    if let Some(disk) = calibration.disks.first() {
        let name = match disk.device.as_str() {
            "" => "The disk".to_string(),
            device => format!("The disk is {device} ({})", disk.file_system),
        };
        let streamed = share(disk.streamed.bytes_per_second / disk.plain_bytes_per_second);
        table.heading(&format!("{name}; streaming gets {streamed} of what plain reads do."));
        if !disk.direct {
            table.row([
                "Its file system allows no reads past the page cache: these may be figures of the memory.",
            ]);
        }
    }
    table.text(width)
}

/// A value in a unit that suits it.
fn value(measurement: &Measurement) -> String {
    let value = measurement.value;
    match measurement.unit.as_str() {
        "B/s" => bandwidth(RateUnit::Bytes, value),
        "FLOP/s" => bandwidth(RateUnit::Operations, value),
        "s" => time(value),
        unit => format!("{value:.3} {unit}"),
    }
}
