//! A calibration is read from a file, which anything may have written.

use super::{Calibration, DiskFigures};
use outsize_plan::{Bandwidth, HardwareProfile, Processor};

/// The most disks, GPUs or measurements.
pub(super) const MOST_ENTRIES: usize = 256;

/// The longest text, in bytes.
const LONGEST_TEXT: usize = 1000;

/// Rates that some machine may have, in bytes or operations per second.
const RATES: std::ops::RangeInclusive<f64> = 1.0..=1e18;

/// The longest time that anything measured takes, in seconds.
const LONGEST: f64 = 1000.0;

impl Calibration {
    /// Refuses numbers that no machine has, and texts that are not fit to be shown.
    ///
    /// # Errors
    /// The field at fault and what is wrong with it.
    pub(crate) fn check(&self) -> Result<(), String> {
        text("date", &self.date)?;
        humantime::parse_rfc3339(&self.date)
            .map_err(|_| "date is none such as 2026-03-01T17:05:00Z".to_string())?;
        text("identity.processor", &self.identity.processor)?;
        count("identity.gpus", self.identity.gpus.len())?;
        for name in &self.identity.gpus {
            text("identity.gpus", name)?;
        }
        check_figures(&self.figures)?;
        count("disks", self.disks.len())?;
        for (at, disk) in self.disks.iter().enumerate() {
            disk_figures(&format!("disks[{at}]"), disk)?;
        }
        count("measurements", self.measurements.len())?;
        for (at, measurement) in self.measurements.iter().enumerate() {
            let name = format!("measurements[{at}]");
            for part in [&measurement.name, &measurement.unit, &measurement.how] {
                text(&name, part)?;
            }
            let bounded = measurement.value.is_finite() && measurement.value.abs() <= *RATES.end();
            if !bounded || !(0.0..=1e6).contains(&measurement.spread) {
                return Err(format!("{name} has a number that no measurement gives"));
            }
        }
        Ok(())
    }
}

/// Refuses figures that no machine has.
///
/// # Errors
/// The field at fault and what is wrong with it.
pub(crate) fn check_figures(figures: &HardwareProfile) -> Result<(), String> {
    link("figures.disk", &figures.disk)?;
    rate("figures.copy_bytes_per_second", figures.copy_bytes_per_second)?;
    rate("figures.first_touch_bytes_per_second", figures.first_touch_bytes_per_second)?;
    processor("figures.cpu", &figures.cpu)?;
    count("figures.gpus", figures.gpus.len())?;
    for (number, gpu) in &figures.gpus {
        processor(&format!("figures.gpus.{number}.processor"), &gpu.processor)?;
        link(&format!("figures.gpus.{number}.upload"), &gpu.upload)?;
        link(&format!("figures.gpus.{number}.download"), &gpu.download())?;
    }
    Ok(())
}

fn disk_figures(name: &str, disk: &DiskFigures) -> Result<(), String> {
    text(&format!("{name}.device"), &disk.device)?;
    text(&format!("{name}.file_system"), &disk.file_system)?;
    text(&format!("{name}.date"), &disk.date)?;
    link(&format!("{name}.streamed"), &disk.streamed)?;
    rate(&format!("{name}.plain_bytes_per_second"), disk.plain_bytes_per_second)
}

fn processor(name: &str, processor: &Processor) -> Result<(), String> {
    for (field, value) in [
        ("memory_bytes_per_second", processor.memory_bytes_per_second),
        ("product_bytes_per_second", processor.product_bytes_per_second),
        ("product_flops", processor.product_flops),
        ("cache_bytes_per_second", processor.cache_bytes_per_second),
    ] {
        rate(&format!("{name}.{field}"), value)?;
    }
    if let Some(prefill) = &processor.prefill {
        for (field, value) in [
            ("f32.bytes_per_second", prefill.f32.bytes_per_second),
            ("f32.flops", prefill.f32.flops),
            ("f32.values_per_second", prefill.f32.values_per_second),
            ("bf16.bytes_per_second", prefill.bf16.bytes_per_second),
            ("bf16.flops", prefill.bf16.flops),
            ("bf16.values_per_second", prefill.bf16.values_per_second),
            ("attention_flops", prefill.attention_flops),
        ] {
            rate(&format!("{name}.prefill.{field}"), value)?;
        }
    }
    seconds(&format!("{name}.block_seconds"), processor.block_seconds)
}

fn link(name: &str, link: &Bandwidth) -> Result<(), String> {
    rate(&format!("{name}.bytes_per_second"), link.bytes_per_second)?;
    seconds(&format!("{name}.latency_seconds"), link.latency_seconds)
}

fn rate(name: &str, value: f64) -> Result<(), String> {
    match RATES.contains(&value) {
        true => Ok(()),
        false => Err(format!("{name} is {value:e}, which is no rate of a machine")),
    }
}

fn seconds(name: &str, value: f64) -> Result<(), String> {
    match (0.0..=LONGEST).contains(&value) {
        true => Ok(()),
        false => Err(format!("{name} is {value:e}, which is no time of a machine")),
    }
}

fn text(name: &str, text: &str) -> Result<(), String> {
    if text.len() > LONGEST_TEXT {
        Err(format!("{name} is longer than {LONGEST_TEXT} bytes"))
    } else if text.chars().any(char::is_control) {
        Err(format!("{name} has control characters"))
    } else {
        Ok(())
    }
}

fn count(name: &str, count: usize) -> Result<(), String> {
    match count <= MOST_ENTRIES {
        true => Ok(()),
        false => Err(format!("{name} has more than {MOST_ENTRIES} entries")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn what_no_machine_has_is_refused_by_name() {
        assert_eq!(example().check(), Ok(()));
        type Change = fn(&mut Calibration);
        let changes: [(&str, Change); 14] = [
            ("figures.disk.bytes_per_second", |c| c.figures.disk.bytes_per_second = 0.0),
            ("figures.disk.latency_seconds", |c| c.figures.disk.latency_seconds = -1.0),
            ("figures.copy_bytes_per_second", |c| c.figures.copy_bytes_per_second = f64::NAN),
            ("figures.first_touch", |c| c.figures.first_touch_bytes_per_second = f64::INFINITY),
            ("figures.cpu.product_flops", |c| c.figures.cpu.product_flops = 1e19),
            ("figures.cpu.block_seconds", |c| c.figures.cpu.block_seconds = f64::NAN),
            ("figures.gpus.3.upload", |c| {
                let mut gpu = outsize_plan::Gpu::default();
                gpu.upload.bytes_per_second = -5.0;
                c.figures.gpus.insert(3, gpu);
            }),
            ("disks[0].streamed", |c| c.disks[0].streamed.bytes_per_second = 1e-3),
            ("disks[0].device", |c| c.disks[0].device = "\u{1b}[2J".to_string()),
            ("measurements[0]", |c| c.measurements[0].spread = f64::NAN),
            ("measurements[0]", |c| c.measurements[0].how = "x".repeat(2000)),
            ("date", |c| c.date = "yesterday".to_string()),
            ("identity.processor", |c| c.identity.processor = "a\nb".to_string()),
            ("identity.gpus", |c| c.identity.gpus = vec![String::new(); 257]),
        ];
        for (name, change) in changes {
            let mut changed = example();
            change(&mut changed);
            let error = changed.check().unwrap_err();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
