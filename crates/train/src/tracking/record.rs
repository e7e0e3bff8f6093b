//! What is logged, and who takes it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::Error;

/// Takes the metrics of a run.
pub trait Tracker: Send {
    /// Begins: opens files and writes what the run is. Called once, before any record.
    ///
    /// # Errors
    ///
    /// Nothing can be written there.
    fn start(&mut self, project: &str, config: &Value) -> Result<(), Error>;

    /// Writes a record, so that it is not lost when the process is killed after.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    fn log(&mut self, record: &MetricRecord<'_>) -> Result<(), Error>;

    /// Ends the run.
    ///
    /// # Errors
    ///
    /// Something is left that cannot be written.
    fn finish(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// What is logged at once.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricRecord<'a> {
    /// The training step.
    pub step: u64,
    /// Seconds since 1970.
    pub time: f64,
    /// Names and values.
    pub values: Vec<(&'a str, MetricValue)>,
}

impl<'a> MetricRecord<'a> {
    /// A record of now.
    #[must_use]
    pub fn new(step: u64, values: Vec<(&'a str, MetricValue)>) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        Self { step, time: time.map_or(0.0, |time| time.as_secs_f64()), values }
    }

    /// The number of this name.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        self.values.iter().find_map(|(other, value)| match value {
            MetricValue::Number(number) if *other == name => Some(*number),
            _ => None,
        })
    }
}

/// A value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub enum MetricValue {
    /// A number, which may be infinite or NaN.
    Number(f64),
    /// A text.
    Text(String),
}

impl From<f64> for MetricValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<f32> for MetricValue {
    fn from(number: f32) -> Self {
        Self::Number(number.into())
    }
}

impl From<&str> for MetricValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}
