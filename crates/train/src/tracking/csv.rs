//! Metrics as comma-separated values.

use std::path::Path;

use serde_json::Value;

use super::line_file::LineFile;
use super::{MetricRecord, MetricValue, Tracker};
use crate::Error;

/// Writes one line a value, `step,time,name,value` (RFC 4180), so that metrics may come and go.
#[derive(Debug)]
pub struct Csv(LineFile);

impl Csv {
    /// Goes on with the file `path`, or begins it.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self(LineFile::new(path.as_ref()))
    }
}

impl Tracker for Csv {
    fn start(&mut self, _project: &str, _config: &Value) -> Result<(), Error> {
        match self.0.open()? {
            true => self.0.add("step,time,name,value"),
            false => Ok(()),
        }
    }

    fn log(&mut self, record: &MetricRecord<'_>) -> Result<(), Error> {
        let line = |(name, value): &(&str, MetricValue)| {
            let value = match value {
                MetricValue::Number(number) => number.to_string(),
                MetricValue::Text(text) => quoted(text),
            };
            format!("{},{},{},{value}", record.step, record.time, quoted(name))
        };
        let lines: Vec<_> = record.values.iter().map(line).collect();
        match lines.is_empty() {
            true => Ok(()),
            false => self.0.add(&lines.join("\n")),
        }
    }
}

/// A field, on one line: what is a line break becomes a blank, so that a line is a value.
fn quoted(text: &str) -> String {
    let text = text.replace(['\r', '\n'], " ");
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}
