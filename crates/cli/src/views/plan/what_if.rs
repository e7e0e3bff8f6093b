//! The plan with other budgets.

use outsize::plan::{Budget, Error, Prediction, Tier};
use serde::Serialize;

/// The plan with another budget.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct WhatIf {
    /// The budget, as a share of the one asked for.
    pub memory: f64,
    /// The budget of each device, in bytes.
    pub budget: Budget,
    /// Whether there is a plan.
    pub fits: bool,
    /// Loading all resident weights, in seconds; none if it does not fit.
    pub load_seconds: Option<f64>,
    /// Prefill, in seconds.
    pub prefill_seconds: Option<f64>,
    /// Decode, in seconds.
    pub decode_seconds: Option<f64>,
    /// The device whose budget is too small and its least budget; none if it fits or is unknown.
    pub least: Option<Least>,
    /// Why there is no plan.
    pub reason: Option<String>,
}

/// The least budget of a device that suffices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Least {
    /// The device.
    pub tier: Tier,
    /// The budget, in bytes.
    pub bytes: u64,
}

impl WhatIf {
    pub fn new(memory: f64, budget: Budget, outcome: Result<Prediction, Error>) -> Self {
        let fits = outcome.is_ok();
        let mut what_if = Self { memory, budget, fits, ..Self::default() };
        match outcome {
            Ok(prediction) => {
                what_if.load_seconds = Some(prediction.load_seconds);
                what_if.prefill_seconds = Some(prediction.prefill.seconds);
                what_if.decode_seconds = Some(prediction.decode.seconds);
            }
            Err(error) => {
                what_if.least = match &error {
                    Error::TooSmall(shortfall) => {
                        Some(Least { tier: shortfall.tier, bytes: shortfall.least })
                    }
                    Error::MustFit { least, .. } => Some(Least { tier: Tier::Cpu, bytes: *least }),
                    _ => None,
                };
                what_if.reason = Some(error.to_string());
            }
        }
        what_if
    }
}
