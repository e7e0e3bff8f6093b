//! Measures a machine's limits, calibrates the cost model, and runs a model beside the limits.
//!
//! - [`calibrate`] measures the [`HardwareProfile`](outsize_plan::HardwareProfile) that predictions
//!   are made with.
//! - [`Limits`] measures what the machine can do at most, again and again.
//! - [`bench()`] measures the limits before and after each run of a model, and holds each phase of
//!   a run against them.
//!
//! How a model is run is the caller's: [`bench()`] calls back for each run. How results are shown
//! is the caller's too.
#![forbid(unsafe_code)]

mod bench;
mod budgets;
mod calibrate;
mod compute;
mod disk;
mod error;
mod files;
mod gpu;
mod layers;
mod limits;
mod measured;
mod model_cost;
mod notes;
mod options;
mod phases;
mod plain_reads;
mod prefill;
mod results;
mod runs;
mod samples;

pub use bench::{BenchStep, ModelBench, bench};
pub use budgets::{BudgetCase, default_budgets};
pub use calibrate::{CalibrateStep, calibrate};
pub use error::Error;
pub use limits::{LIMIT_ROWS, LimitDisk, LimitSample, Limits, ProductSample};
pub use model_cost::ModelCost;
pub use options::{CalibrateOptions, DiskToMeasure, LEAST_CALIBRATION_BYTES};
pub use phases::{Phase, PhaseBound, RateUnit};
pub use results::{BenchResults, BudgetResults};
pub use runs::{
    BenchTask, ComputedBlock, ModelRun, PlacedBytes, PredictedPass, PredictedRun, RepeatedRun,
    RunReport, TierWeights,
};
pub use samples::{Summary, median};
