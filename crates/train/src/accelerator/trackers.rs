//! Logging metrics on the main rank.

use serde::Serialize;

use super::Accelerator;
use crate::Error;
use crate::tracking::{MetricRecord, MetricValue, Tracker};

impl Accelerator {
    /// Begins to track a run with these trackers, on the main rank alone: no other rank opens a
    /// file. Trackers write `config`, what the run is set to, where they can.
    ///
    /// # Errors
    ///
    /// A tracker cannot write; `config` cannot be written as JSON.
    pub fn init_trackers(
        &self,
        project: &str,
        config: &impl Serialize,
        trackers: Vec<Box<dyn Tracker>>,
    ) -> Result<(), Error> {
        let start = || {
            let config = serde_json::to_value(config).map_err(|fault| {
                Error::Setting(format!("the configuration cannot be written as JSON: {fault}"))
            })?;
            self.inner.trackers.start(project, &config, trackers)
        };
        self.on_main_process(start).unwrap_or(Ok(()))
    }

    /// Gives all trackers the values of a step. Does nothing on other ranks than the main one.
    ///
    /// # Errors
    ///
    /// A tracker cannot write; the others have the values nevertheless.
    pub fn log<'a, V: Into<MetricValue>>(
        &self,
        step: u64,
        values: impl IntoIterator<Item = (&'a str, V)>,
    ) -> Result<(), Error> {
        let log = || {
            let values = values.into_iter().map(|(name, value)| (name, value.into())).collect();
            self.inner.trackers.log(&MetricRecord::new(step, values))
        };
        self.on_main_process(log).unwrap_or(Ok(()))
    }

    /// Ends all trackers.
    ///
    /// # Errors
    ///
    /// A tracker cannot write what is left.
    pub fn end_training(&self) -> Result<(), Error> {
        self.inner.trackers.finish()
    }
}
