//! Event files of TensorBoard.
//!
//! A file is a sequence of TFRecords: length, masked CRC-32C of the length, data, masked CRC-32C
//! of the data, numbers in little endian. The data are messages `Event` of TensorFlow's
//! `event.proto`, of which only the fields that are needed are written here.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use super::{MetricRecord, MetricValue, Tracker};
use crate::Error;

/// Writes event files to a folder of the project's name. A run that goes on begins a new file,
/// which replaces what earlier files have of its first step and later ones.
#[derive(Debug)]
pub struct TensorBoard {
    folder: PathBuf,
    output: Option<(PathBuf, File)>,
    /// The configuration, until the first record.
    config: Option<String>,
    is_first: bool,
}

impl TensorBoard {
    /// Writes below the folder `logs`, which TensorBoard is to be shown.
    #[must_use]
    pub fn new(logs: impl AsRef<Path>) -> Self {
        Self { folder: logs.as_ref().to_owned(), output: None, config: None, is_first: true }
    }

    fn add(&mut self, event: Message) -> Result<(), Error> {
        let Some((path, file)) = &mut self.output else { return Ok(()) };
        let written = file.write_all(&tf_record(&event.0));
        written.map_err(|source| Error::Write { path: path.clone(), source })
    }
}

impl Tracker for TensorBoard {
    fn start(&mut self, project: &str, config: &Value) -> Result<(), Error> {
        static FILES: AtomicU64 = AtomicU64::new(0);
        let first = MetricRecord::new(0, Vec::new());
        // TensorBoard reads files in the order of their names.
        let (time, process) = (first.time as u64, std::process::id());
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("events.out.tfevents.{time:010}.outsize.{process}.{number}");
        let folder = self.folder.join(project);
        let path = folder.join(name);
        let file = fs::create_dir_all(&folder).and_then(|()| File::create_new(&path));
        let file = file.map_err(|source| Error::Write { path: path.clone(), source })?;
        self.output = Some((path, file));
        self.config = (!config.is_null()).then(|| format!("```\n{config:#}\n```"));
        self.add(event(&first).bytes(FILE_VERSION, b"brain.Event:2"))
    }

    fn log(&mut self, record: &MetricRecord<'_>) -> Result<(), Error> {
        let mut summary = Message::default();
        if std::mem::take(&mut self.is_first) {
            let start = Message::default().varint(SESSION_STATUS, SESSION_START);
            self.add(event(record).bytes(SESSION_LOG, &start.0))?;
            if let Some(config) = self.config.take() {
                summary = summary.bytes(SUMMARY_VALUE, &text("config", &config).0);
            }
        }
        for (name, value) in &record.values {
            let value = match value {
                MetricValue::Number(number) => Message::default()
                    .bytes(VALUE_TAG, name.as_bytes())
                    .float(VALUE_SIMPLE, *number as f32),
                MetricValue::Text(value) => text(name, value),
            };
            summary = summary.bytes(SUMMARY_VALUE, &value.0);
        }
        self.add(event(record).bytes(SUMMARY, &summary.0))
    }
}

// Numbers of fields in `event.proto`, `summary.proto` and `tensor.proto`.
const WALL_TIME: u8 = 1;
const STEP: u8 = 2;
const FILE_VERSION: u8 = 3;
const SUMMARY: u8 = 5;
const SESSION_LOG: u8 = 7;
const SESSION_STATUS: u8 = 1;
const SESSION_START: u64 = 1;
const SUMMARY_VALUE: u8 = 1;
const VALUE_TAG: u8 = 1;
const VALUE_SIMPLE: u8 = 2;
const VALUE_TENSOR: u8 = 8;
const VALUE_METADATA: u8 = 9;
const METADATA_PLUGIN: u8 = 1;
const PLUGIN_NAME: u8 = 1;
const TENSOR_DTYPE: u8 = 1;
const DTYPE_STRING: u64 = 7;
const TENSOR_SHAPE: u8 = 2;
const SHAPE_DIM: u8 = 2;
const DIM_SIZE: u8 = 1;
const TENSOR_STRINGS: u8 = 8;

/// An event without what has happened.
fn event(record: &MetricRecord<'_>) -> Message {
    Message::default().double(WALL_TIME, record.time).varint(STEP, record.step)
}

/// A text, as TensorBoard's text plugin wants it.
fn text(name: &str, value: &str) -> Message {
    let plugin = Message::default().bytes(PLUGIN_NAME, b"text");
    let dim = Message::default().varint(DIM_SIZE, 1);
    let tensor = Message::default()
        .varint(TENSOR_DTYPE, DTYPE_STRING)
        .bytes(TENSOR_SHAPE, &Message::default().bytes(SHAPE_DIM, &dim.0).0)
        .bytes(TENSOR_STRINGS, value.as_bytes());
    Message::default()
        .bytes(VALUE_TAG, format!("{name}/text_summary").as_bytes())
        .bytes(VALUE_TENSOR, &tensor.0)
        .bytes(VALUE_METADATA, &Message::default().bytes(METADATA_PLUGIN, &plugin.0).0)
}

/// A message of protocol buffers in its wire format; numbers of fields are below 16.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(mut self, field: u8, value: u64) -> Self {
        self.0.push(field << 3);
        self.raw_varint(value)
    }

    fn double(mut self, field: u8, value: f64) -> Self {
        self.0.push(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u8, value: &[u8]) -> Self {
        self.0.push(field << 3 | 2);
        self = self.raw_varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    fn float(mut self, field: u8, value: f32) -> Self {
        self.0.push(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn raw_varint(mut self, mut value: u64) -> Self {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }
}

fn tf_record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), data, &masked_crc(data)].concat()
}

fn masked_crc(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that TensorFlow's own writer gives for these events.
    #[test]
    fn records_are_those_of_tensorflow() {
        let record = MetricRecord { step: 300, time: 1.5, values: vec![] };
        let version =
            Message::default().double(WALL_TIME, 0.0).bytes(FILE_VERSION, b"brain.Event:2");
        assert_eq!(
            hex(&tf_record(&version.0)),
            concat!(
                "18000000000000",
                "00a37f4b22",
                "090000000000000000",
                "1a0d627261696e2e4576656e743a32",
            )
            .to_owned()
                + &hex(&masked_crc(&version.0))
        );
        let value = Message::default().bytes(VALUE_TAG, b"loss").float(VALUE_SIMPLE, 0.5);
        let summary = Message::default().bytes(SUMMARY_VALUE, &value.0);
        let event = event(&record).bytes(SUMMARY, &summary.0);
        assert_eq!(hex(&event.0), "09000000000000f83f10ac022a0d0a0b0a046c6f7373150000003f");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
