//! Models whose weights become integers, chosen by what goes into their layers.

mod cholesky;
mod feedback;
mod gram;
mod inputs;
mod opened;
mod texts;

pub use opened::{CalibrationOutcome, OpenedCalibration};
