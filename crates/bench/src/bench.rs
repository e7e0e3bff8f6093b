//! The machine's limits, and a model in several budgets with a sample of the limits around each
//! run.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::budgets::BudgetCase;
use crate::limits::{LimitSample, Limits};
use crate::measured::Measured;
use crate::model_cost::ModelCost;
use crate::notes::notes;
use crate::options::{CalibrateOptions, Stop};
use crate::phases::phases;
use crate::results::{BenchResults, BudgetResults};
use crate::runs::{BenchTask, ModelRun, RunReport};
use crate::{Error, gpu};
use outsize_checkpoint::Checkpoint;
use outsize_kernels::{ActivationDtype, peak};
use outsize_machine::{Machine, Usage, forget_cached, usage};
use outsize_plan::{Budget, Gpu, Tier};

/// A model to run beside the limits.
#[derive(Debug)]
pub struct ModelBench {
    /// Its files, read anew in each run.
    pub checkpoint: Checkpoint,
    /// Its amounts of data and work.
    pub cost: ModelCost,
    /// The budgets to run it in.
    pub budgets: Vec<BudgetCase>,
    /// What each run does.
    pub task: BenchTask,
}

/// What is being measured.
#[derive(Debug, Clone, Copy)]
pub enum BenchStep<'a> {
    /// The fastest way to read the disk.
    Choosing,
    /// This program's matmuls.
    Products,
    /// The GPU of this number.
    Gpu(usize),
    /// Disk, memory and processors.
    Limits,
    /// A run of the model in a budget.
    Run {
        /// Which round it is, from 1.
        round: u32,
        /// The budget.
        case: &'a BudgetCase,
    },
}

/// Measures the limits of the machine `rounds` times, or, with a model, before and after each run
/// of it, in each budget in turns. `run` runs the model in a process of its own, whose memory is
/// its own; its inner error says why the model cannot run in a budget, and the outer one ends the
/// bench.
///
/// # Errors
/// [`Error`]; [`Error::Stopped`] if `stop` was set; the outer error of `run`.
pub fn bench<E: From<Error>>(
    machine: &Machine,
    options: &CalibrateOptions,
    rounds: u32,
    model: Option<ModelBench>,
    mut observe: impl FnMut(BenchStep<'_>),
    run: impl FnMut(&BudgetCase) -> Result<Result<RunReport, String>, E>,
) -> Result<BenchResults, E> {
    let began = Instant::now();
    let used = usage();
    observe(BenchStep::Choosing);
    let mut limits = Limits::new(machine, options)?;
    observe(BenchStep::Products);
    let products = limits.products(rounds as usize)?;
    let gpus = match model.as_ref().is_none_or(ModelBench::uses_gpus) {
        true => {
            let (stop, bytes) = (Stop(options.stop.clone()), limits.memory_bytes());
            gpu::measure(&mut Measured::default(), bytes, &stop, |at| observe(BenchStep::Gpu(at)))?
        }
        false => BTreeMap::new(),
    };
    let mut bench = Bench {
        gpus: &gpus,
        limits: &mut limits,
        observe: &mut observe,
        first_touch: model.as_ref().map_or(u64::MAX, ModelBench::first_touch),
        samples: Vec::new(),
    };
    let budgets = match &model {
        Some(model) => bench.run_all(model, run)?,
        None => {
            for _ in 0..rounds {
                bench.sample()?;
            }
            Vec::new()
        }
    };
    let samples = bench.samples;
    let seconds = began.elapsed().as_secs_f64();
    let threads = machine.processors.threads.value;
    let processors = machine.processors.logical.as_ref();
    let processors = processors.map_or(threads, |logical| logical.value);
    let share = |of: fn(&Usage) -> f64| {
        let since = usage().zip(used).map(|(now, then)| now.since(&then));
        since.map(|since| of(&since) / (seconds * processors as f64))
    };
    let mut results = BenchResults {
        version: 1,
        seconds,
        processor: machine.processors.name.value.clone(),
        threads,
        memory_bytes: limits.memory_bytes(),
        instructions: [ActivationDtype::F32, ActivationDtype::Bf16].map(peak::instructions),
        disk: limits.disk(),
        limits: samples,
        products,
        gpus,
        others_share: share(Usage::others),
        stolen_share: share(|used| used.stolen),
        task: model.as_ref().map(|model| model.task),
        model: model.map(|model| model.cost),
        budgets,
        notes: Vec::new(),
    };
    results.notes = notes(&results);
    Ok(results)
}

impl ModelBench {
    /// Whether a budget names a GPU.
    fn uses_gpus(&self) -> bool {
        let budgets = self.budgets.iter().filter_map(|case| case.max_memory.as_deref());
        let mut budgets = budgets.filter_map(|text| Budget::parse(text).ok());
        budgets.any(|budget| budget.iter().any(|(tier, _)| matches!(tier, Tier::Gpu(_))))
    }

    /// The most memory that a run may fill with weights, in bytes.
    fn first_touch(&self) -> u64 {
        let weights = self.cost.weight_bytes;
        let budgets = self.budgets.iter();
        let most = budgets.map(|case| case.bytes.unwrap_or(weights)).max();
        most.unwrap_or(weights).min(weights)
    }
}

/// A bench while it runs.
struct Bench<'a, O> {
    gpus: &'a BTreeMap<usize, Gpu>,
    limits: &'a mut Limits,
    observe: &'a mut O,
    /// The most bytes of memory that a run touches for the first time.
    first_touch: u64,
    samples: Vec<LimitSample>,
}

impl<O: FnMut(BenchStep<'_>)> Bench<'_, O> {
    /// Measures the limits.
    fn sample(&mut self) -> Result<LimitSample, Error> {
        (self.observe)(BenchStep::Limits);
        let sample = self.limits.sample(self.first_touch)?;
        self.samples.push(sample);
        Ok(sample)
    }

    /// Runs the model in each budget in turns, with a sample of the limits between two runs.
    fn run_all<E: From<Error>>(
        &mut self,
        model: &ModelBench,
        mut run: impl FnMut(&BudgetCase) -> Result<Result<RunReport, String>, E>,
    ) -> Result<Vec<BudgetResults>, E> {
        let unmeasured = |case: &BudgetCase| BudgetResults {
            case: case.clone(),
            error: None,
            phases: Vec::new(),
            runs: Vec::new(),
        };
        let mut budgets: Vec<_> = model.budgets.iter().map(unmeasured).collect();
        let mut before = self.sample()?;
        for round in 1..=model.task.rounds {
            for (case, budget) in model.budgets.iter().zip(&mut budgets) {
                // A budget that was refused once would be refused again.
                if budget.error.is_some() {
                    continue;
                }
                (self.observe)(BenchStep::Run { round, case });
                for file in model.checkpoint.files() {
                    forget_cached(file.path()).map_err(Error::from)?;
                }
                let used = usage();
                let report = run(case)?;
                let fetched_bytes =
                    usage().zip(used).and_then(|(now, then)| now.since(&then).fetched);
                let after = self.sample()?;
                match report {
                    Ok(report) => {
                        budget.runs.push(ModelRun { report, before, after, fetched_bytes })
                    }
                    Err(error) => budget.error = Some(error),
                }
                before = after;
            }
        }
        for budget in budgets.iter_mut().filter(|budget| !budget.runs.is_empty()) {
            let batch = budget.case.batch;
            budget.phases = phases(&budget.runs, &model.cost, &model.task, batch, self.gpus);
        }
        Ok(budgets)
    }
}
