//! Metrics as JSON, one object a line.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::line_file::LineFile;
use super::{MetricRecord, MetricValue, Tracker};
use crate::Error;

/// Writes `{"step":1,"time":…,"loss":0.5}` a record, and the run's project and configuration in
/// front. Numbers that JSON does not have are the texts `"NaN"`, `"inf"` and `"-inf"`.
#[derive(Debug)]
pub struct JsonLines(LineFile);

impl JsonLines {
    /// Goes on with the file `path`, or begins it.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self(LineFile::new(path.as_ref()))
    }
}

impl Tracker for JsonLines {
    fn start(&mut self, project: &str, config: &Value) -> Result<(), Error> {
        self.0.open()?;
        self.0.add(&json!({ "project": project, "config": config }).to_string())
    }

    fn log(&mut self, record: &MetricRecord<'_>) -> Result<(), Error> {
        let value = |value: &MetricValue| match value {
            MetricValue::Number(number) if number.is_finite() => json!(number),
            MetricValue::Number(number) => json!(number.to_string()),
            MetricValue::Text(text) => json!(text),
        };
        let values = record.values.iter().map(|(name, own)| ((*name).to_owned(), value(own)));
        let mut object: Map<String, Value> = values.collect();
        object.insert("step".into(), json!(record.step));
        object.insert("time".into(), json!(record.time));
        self.0.add(&Value::from(object).to_string())
    }
}
