//! The machine's limits, and a model in several budgets between two looks at them each.

use super::budgets::{Case, cases};
use super::child::{self, Task};
use super::notes::notes;
use super::phases::{Phase, Run, phases};
use super::subject::Subject;
use super::{disk, size, text};
use crate::args::{BenchArgs, ComputeType};
use crate::error::Failure;
use crate::{interrupt, progress, run, table};
use indicatif::ProgressBar;
use outsize::checkpoint::Checkpoint;
use outsize::generate::{
    CalibrateOptions, DiskToMeasure, LimitDisk, LimitSample, Limits, ProductSample, read_config,
};
use outsize::machine::{Machine, Usage, forget_cached, usage};
use serde::Serialize;
use std::time::Instant;

/// How many times the prompt is run again in each run.
const AGAIN: u32 = 2;

/// The longest list of token ids that a program may be given as one argument, in bytes.
const LONGEST: usize = 120_000;

/// Columns where the output is no terminal.
const COLUMNS: usize = 80;

/// All that was measured; `--json` prints it. Times in seconds, sizes in bytes, rates per second.
#[derive(Serialize, Debug)]
pub struct Results {
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
    /// What multiply-adds were made with: f32 and bf16.
    pub instructions: [&'static str; 2],
    /// How the disk was read.
    pub disk: LimitDisk,
    /// The limits, each time they were measured.
    pub limits: Vec<LimitSample>,
    /// This program's products, each time they were measured.
    pub products: Vec<ProductSample>,
    /// What others used of the processors, if the system says.
    pub others_share: Option<f64>,
    /// What the host of a virtual machine gave to others.
    pub stolen_share: Option<f64>,
    /// The model, if there was one.
    pub model: Option<Subject>,
    /// What it was asked.
    pub task: Option<TaskReport>,
    /// The model in each budget.
    pub budgets: Vec<Budgeted>,
    /// What makes the figures worth less.
    pub notes: Vec<String>,
}

/// What a model was asked.
#[derive(Serialize, Debug)]
pub struct TaskReport {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens to generate.
    pub new_tokens: u32,
    /// Runs in each budget.
    pub rounds: u32,
    /// The type that activations were multiplied in.
    pub compute: String,
}

/// A model in one budget.
#[derive(Serialize, Debug)]
pub struct Budgeted {
    /// What it is called.
    pub name: String,
    /// What `--max-memory` said; nothing if it was what is free.
    pub max_memory: Option<String>,
    /// Bytes of main memory that the process might hold.
    pub budget_bytes: Option<u64>,
    /// Why it could not be run.
    pub error: Option<String>,
    /// Each phase beside its limits.
    pub phases: Vec<Phase>,
    /// Each run.
    pub runs: Vec<Run>,
}

/// Runs the command.
pub fn measure(args: &BenchArgs) -> Result<(), Failure> {
    let bytes = size(args)?;
    let machine = Machine::detect();
    let disk = disk(args.place.as_deref())?;
    let work = match &disk {
        DiskToMeasure::Checkpoint(checkpoint) => Some(BlockCost::new(args, checkpoint)?),
        DiskToMeasure::Folder(folder) if !args.max_memory.is_empty() => {
            return Err(Failure::usage(format!(
                "--max-memory is for running a model, and there are no safetensors in {}",
                folder.display()
            )));
        }
        DiskToMeasure::Folder(_) => None,
    };
    let began = Instant::now();
    let used = usage();
    let shown = progress::activity();
    let options = CalibrateOptions {
        disk,
        bytes,
        stop: Some(interrupt::flag()),
    };
    shown.set_message("finding out how the disk is read fastest");
    let mut limits = Limits::new(&machine, &options)?;
    let mut bench = Bench {
        shown: &shown,
        fresh: work.as_ref().map_or(u64::MAX, BlockCost::fresh),
        samples: Vec::new(),
    };
    shown.set_message("measuring products");
    let products = limits.products(args.rounds as usize)?;
    let budgets = match &work {
        Some(work) => bench.model(&mut limits, work, args.rounds)?,
        None => {
            for _ in 0..args.rounds {
                bench.look(&mut limits)?;
            }
            Vec::new()
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    let threads = machine.processors.threads.value;
    let processors = machine.processors.logical.as_ref();
    let processors = processors.map_or(threads, |logical| logical.value);
    let share = |of: fn(&Usage) -> f64| {
        let since = usage().zip(used).map(|(now, then)| now.since(&then));
        since.map(|since| of(&since) / (seconds * processors as f64))
    };
    let mut results = Results {
        version: 1,
        seconds,
        processor: machine.processors.name.value.clone(),
        threads,
        memory_bytes: limits.memory_bytes(),
        instructions: [ComputeType::F32, ComputeType::Bf16]
            .map(|compute| outsize::kernels::peak::instructions(compute.into())),
        disk: limits.disk(),
        limits: bench.samples,
        products,
        others_share: share(Usage::others),
        stolen_share: share(|used| used.stolen),
        task: work.as_ref().map(|work| work.report(args)),
        model: work.map(|work| work.subject),
        budgets,
        notes: Vec::new(),
    };
    shown.finish_and_clear();
    results.notes = notes(&results);
    match args.json {
        true => println!("{}", serde_json::to_string(&results)?),
        false => {
            let width = match table::width() {
                usize::MAX => COLUMNS,
                width => width,
            };
            run::print(&text::text(&results, width))?;
        }
    }
    failed(&results)
}

/// An error if the model ran in no budget at all.
fn failed(results: &Results) -> Result<(), Failure> {
    let ran = results.budgets.iter().any(|budget| !budget.runs.is_empty());
    match results
        .budgets
        .iter()
        .find_map(|budget| budget.error.clone())
    {
        Some(error) if !ran => Err(Failure::Failed(error)),
        _ => Ok(()),
    }
}

/// A model to be run.
struct BlockCost {
    subject: Subject,
    files: Vec<std::path::PathBuf>,
    cases: Vec<Case>,
    task: Task,
    compute: ComputeType,
}

impl BlockCost {
    fn new(args: &BenchArgs, checkpoint: &Checkpoint) -> Result<Self, Failure> {
        let config = read_config(checkpoint.folder())?;
        let ids = Task::prompt(args.prompt_tokens, config.vocab_size());
        if ids.len() > LONGEST {
            return Err(Failure::usage(format!(
                "--prompt-tokens: {} are too many to hand over to another process; take at most {}",
                args.prompt_tokens,
                LONGEST / 6
            )));
        }
        let subject = Subject::new(checkpoint, &config)?;
        Ok(Self {
            cases: cases(&args.max_memory, subject.weight_bytes)?,
            files: checkpoint
                .files()
                .iter()
                .map(|file| file.path().to_path_buf())
                .collect(),
            subject,
            task: Task {
                ids,
                prompt_tokens: args.prompt_tokens,
                new_tokens: args.new_tokens,
                context: args.context,
                compute: match args.compute {
                    ComputeType::F32 => "f32".to_string(),
                    ComputeType::Bf16 => "bf16".to_string(),
                },
                again: AGAIN,
            },
            compute: args.compute,
        })
    }

    /// The most memory that a run may fill with weights, in bytes.
    fn fresh(&self) -> u64 {
        let weights = self.subject.weight_bytes;
        let most = self.cases.iter().map(|case| case.bytes.unwrap_or(weights));
        most.max().unwrap_or(weights).min(weights)
    }

    fn report(&self, args: &BenchArgs) -> TaskReport {
        TaskReport {
            prompt_tokens: args.prompt_tokens,
            new_tokens: args.new_tokens,
            rounds: args.rounds,
            compute: self.task.compute.clone(),
        }
    }
}

/// What is measured, as it comes.
struct Bench<'a> {
    shown: &'a ProgressBar,
    /// Bytes of memory that no run has more of for the first time.
    fresh: u64,
    samples: Vec<LimitSample>,
}

impl Bench<'_> {
    /// Measures the limits.
    fn look(&mut self, limits: &mut Limits) -> Result<LimitSample, Failure> {
        self.shown
            .set_message("measuring disk, memory and processors");
        let sample = limits.sample(self.fresh)?;
        self.samples.push(sample);
        Ok(sample)
    }

    /// Runs the model in each budget in turns, with a look at the limits between two runs.
    fn model(
        &mut self,
        limits: &mut Limits,
        work: &BlockCost,
        rounds: u32,
    ) -> Result<Vec<Budgeted>, Failure> {
        let mut budgets: Vec<_> = work.cases.iter().map(Budgeted::new).collect();
        let mut before = self.look(limits)?;
        for round in 1..=rounds {
            for (case, budget) in work.cases.iter().zip(&mut budgets) {
                // What was refused once would be refused again.
                if budget.error.is_some() {
                    continue;
                }
                self.shown
                    .set_message(format!("round {round} of {rounds}: {}", case.name));
                for file in &work.files {
                    forget_cached(file)?;
                }
                let used = usage();
                let report = child::run(&work.subject.folder, case, &work.task)?;
                let fetched = usage()
                    .zip(used)
                    .and_then(|(now, then)| now.since(&then).fetched);
                let after = self.look(limits)?;
                match report {
                    Ok(report) => budget.runs.push(Run {
                        report,
                        before,
                        after,
                        fetched_bytes: fetched,
                    }),
                    Err(error) => budget.error = Some(error),
                }
                before = after;
            }
        }
        for budget in &mut budgets {
            budget.phases = match budget.runs.is_empty() {
                true => Vec::new(),
                false => phases(&budget.runs, &work.subject, &work.task, work.compute),
            };
        }
        Ok(budgets)
    }
}

impl Budgeted {
    fn new(case: &Case) -> Self {
        Self {
            name: case.name.clone(),
            max_memory: case.max_memory.clone(),
            budget_bytes: case.bytes,
            error: None,
            phases: Vec::new(),
            runs: Vec::new(),
        }
    }
}
