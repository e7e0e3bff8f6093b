//! Metrics of a run, to files that other programs read and to the terminal.
//!
//! [`Accelerator::init_trackers`](crate::Accelerator::init_trackers) starts trackers,
//! [`Accelerator::log`](crate::Accelerator::log) gives all of them a record, on the main rank
//! alone, and [`Accelerator::end_training`](crate::Accelerator::end_training) ends them. Every
//! record is written at once: a process that is killed loses at most its last one.
//!
//! | tracker | writes |
//! |---|---|
//! | [`TensorBoard`] | event files that TensorBoard shows |
//! | [`JsonLines`] | one JSON object a line |
//! | [`Csv`] | one line a value: `step,time,name,value` |
//! | [`TrainingProgress`] | a bar with loss and tokens/s, if standard error is a terminal |
//!
//! [`Tracker`] is the trait for one's own.

mod csv;
mod json_lines;
mod line_file;
mod progress;
mod record;
mod tensor_board;
mod trackers;

pub use csv::Csv;
pub use json_lines::JsonLines;
pub use progress::TrainingProgress;
pub use record::{MetricRecord, MetricValue, Tracker};
pub use tensor_board::TensorBoard;
pub(crate) use trackers::Trackers;
