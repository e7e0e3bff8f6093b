//! The trackers of a run.

use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::{MetricRecord, Tracker};
use crate::Error;

/// Trackers that have begun.
#[derive(Default)]
pub(crate) struct Trackers(Mutex<Vec<Box<dyn Tracker>>>);

impl Trackers {
    pub fn start(
        &self,
        project: &str,
        config: &Value,
        mut trackers: Vec<Box<dyn Tracker>>,
    ) -> Result<(), Error> {
        trackers.iter_mut().try_for_each(|tracker| tracker.start(project, config))?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(trackers);
        Ok(())
    }

    /// Gives all the record, and the first error.
    pub fn log(&self, record: &MetricRecord<'_>) -> Result<(), Error> {
        self.each(|tracker| tracker.log(record))
    }

    pub fn finish(&self) -> Result<(), Error> {
        let result = self.each(|tracker| tracker.finish());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
        result
    }

    fn each(
        &self,
        mut call: impl FnMut(&mut dyn Tracker) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut trackers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let results: Vec<_> = trackers.iter_mut().map(|tracker| call(&mut **tracker)).collect();
        results.into_iter().collect()
    }
}
