//! The results of a bench.

use outsize_plan::Gpu;
use serde::Serialize;
use std::collections::BTreeMap;

use crate::budgets::BudgetCase;
use crate::limits::{LimitDisk, LimitSample, ProductSample};
use crate::model_cost::ModelCost;
use crate::phases::Phase;
use crate::runs::{BenchTask, ModelRun};

/// All that was measured. Times in seconds, sizes in bytes, rates per second.
#[derive(Serialize, Debug)]
pub struct BenchResults {
    /// The version of this object.
    pub version: u32,
    /// How long it took.
    pub seconds: f64,
    /// The processors' name.
    pub processor: String,
    /// Threads that were used.
    pub threads: u64,
    /// Bytes of memory that were read and copied.
    pub memory_bytes: u64,
    /// The instructions of the multiply-adds: f32 and bf16.
    pub instructions: [&'static str; 2],
    /// How the disk was read.
    pub disk: LimitDisk,
    /// The limits, each time they were measured.
    pub limits: Vec<LimitSample>,
    /// This program's matmuls, each time they were measured.
    pub products: Vec<ProductSample>,
    /// The GPUs, if they are used: measured once, before the model ran.
    pub gpus: BTreeMap<usize, Gpu>,
    /// The share of the processors that others used, if the system says.
    pub others_share: Option<f64>,
    /// The share of the processors that the host of a virtual machine gave to others.
    pub stolen_share: Option<f64>,
    /// The model, if there was one.
    pub model: Option<ModelCost>,
    /// What each run did.
    pub task: Option<BenchTask>,
    /// The model in each budget.
    pub budgets: Vec<BudgetResults>,
    /// What makes the results less reliable.
    pub notes: Vec<String>,
}

impl BudgetResults {
    /// Tokens that all texts together got in a second, after the first ones.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let token = self.phases.iter().find(|phase| phase.name == "token")?;
        Some(f64::from(self.case.batch) / token.seconds.median.max(1e-9))
    }
}

/// A model in one budget.
#[derive(Serialize, Debug)]
pub struct BudgetResults {
    /// The budget.
    #[serde(flatten)]
    pub case: BudgetCase,
    /// Why it could not be run.
    pub error: Option<String>,
    /// Each phase beside its limits.
    pub phases: Vec<Phase>,
    /// Each run.
    pub runs: Vec<ModelRun>,
}
