//! The figures of a calibration.

use super::table;
use outsize::machine::{Calibration, Measurement};
use outsize::plan::format_size;

/// Each figure, its spread and how it was measured.
pub fn text(calibration: &Calibration, width: usize) -> String {
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
        rows.push(vec![format!("{name}; streaming gets {share:.0} % of what plain reads do.")]);
        if !disk.direct {
            rows.push(vec![
                "Its file system allows no reads past the page cache: these may be figures of the memory."
                    .to_string(),
            ]);
        }
    }
    table::lines(&rows, width).join("\n") + "\n"
}

/// A value in a unit that suits it.
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
