//! A bar on the terminal.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::{MetricRecord, Tracker};
use crate::Error;

/// Shows the step, what is left, the metric `loss`, and tokens per second of the metric `tokens`,
/// the tokens since the record before. Drawn on standard error, and only if that is a terminal.
pub struct TrainingProgress {
    bar: ProgressBar,
    before: Instant,
}

impl TrainingProgress {
    /// A bar of `steps` steps.
    #[must_use]
    pub fn new(steps: u64) -> Self {
        let style = ProgressStyle::with_template(
            "{prefix} [{bar:30}] {pos} of {len}, {eta} left{wide_msg}",
        );
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Self { bar: ProgressBar::new(steps).with_style(style), before: Instant::now() }
    }
}

impl Tracker for TrainingProgress {
    fn start(&mut self, project: &str, _config: &Value) -> Result<(), Error> {
        self.bar.set_prefix(project.to_owned());
        self.before = Instant::now();
        Ok(())
    }

    fn log(&mut self, record: &MetricRecord<'_>) -> Result<(), Error> {
        let seconds = self.before.elapsed().as_secs_f64();
        if record.number("tokens").is_some() {
            self.before = Instant::now();
        }
        if record.number("loss").is_some() || record.number("tokens").is_some() {
            self.bar.set_message(message(record, seconds));
        }
        self.bar.set_position(record.step);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.bar.abandon();
        Ok(())
    }
}

/// What stands beside the bar.
fn message(record: &MetricRecord<'_>, seconds: f64) -> String {
    let loss = record.number("loss").map(|loss| format!(", loss {loss:.4}"));
    let tokens = record.number("tokens").filter(|_| seconds > 0.0);
    let tokens = tokens.map(|tokens| format!(", {:.0} tokens/s", tokens / seconds));
    [loss, tokens].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_tokens_per_second_are_shown() {
        let record = MetricRecord::new(3, vec![("loss", 2.34567.into()), ("tokens", 512.0.into())]);
        assert_eq!(message(&record, 0.5), ", loss 2.3457, 1024 tokens/s");
        let record = MetricRecord::new(3, vec![("loss", f64::NAN.into()), ("lr", 1.0.into())]);
        assert_eq!(message(&record, 0.5), ", loss NaN");
    }

    #[test]
    fn a_bar_without_a_terminal_shows_nothing() {
        let mut bar = TrainingProgress::new(10);
        bar.start("run", &Value::Null).unwrap();
        bar.log(&MetricRecord::new(4, vec![("loss", 1.0.into())])).unwrap();
        assert_eq!((bar.bar.position(), bar.bar.message().as_str()), (4, ", loss 1.0000"));
        bar.finish().unwrap();
    }
}
