//! `outsize bench`: the machine's limits, and a model beside them.

use super::calibrate::calibrate_machine;
use crate::args::values::{ACTIVATION_DTYPES, name_of};
use crate::args::{BenchArgs, RunDtypeArgs, workload};
use crate::child;
use crate::error::Failure;
use crate::views::style::style;
use crate::views::{bench as view, output, progress};
use crate::{cache, interrupt, model};
use outsize::bench::{
    BenchResults, BenchStep, BenchTask, BudgetCase, CalibrateOptions, DiskToMeasure, ModelBench,
    ModelCost, default_budgets,
};
use outsize::checkpoint::{Checkpoint, model_folder};
use outsize::generate::{Planner, default_budget, describe, read_config};
use outsize::machine::Machine;
use outsize::models::{CacheOptions, KvDtype};
use outsize::plan::{Budget, Options, Tier};
use std::path::Path;

/// How many times the prompt is run again in each run.
const AGAIN: u32 = 2;

/// The longest list of token ids that a program may be given as one argument, in bytes.
const LONGEST: usize = 120_000;

/// Runs the command.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    match args.calibrate {
        true => calibrate_machine(&options(args)?, args.json),
        false => measure(args),
    }
}

/// Measures the machine, and runs the model if one is named.
fn measure(args: &BenchArgs) -> Result<(), Failure> {
    let options = options(args)?;
    let machine = Machine::detect();
    let bench = match &options.disk {
        DiskToMeasure::Checkpoint(checkpoint) => Some(model_bench(args, checkpoint, &machine)?),
        DiskToMeasure::Folder(folder) if !args.max_memory.is_empty() => {
            return Err(Failure::usage(format!(
                "--max-memory is for running a model, and there are no weights in {}",
                folder.display()
            )));
        }
        DiskToMeasure::Folder(_) => None,
    };
    let (bench, child) = bench.unzip();
    let shown = progress::activity();
    let results = outsize::bench::bench(
        &machine,
        &options,
        args.rounds,
        bench,
        |step| {
            shown.set_message(match step {
                BenchStep::Choosing => "finding out how the disk is read fastest".to_string(),
                BenchStep::Gpu(number) => format!("measuring gpu{number}"),
                BenchStep::Products => "measuring products".to_string(),
                BenchStep::Limits => "measuring disk, memory and processors".to_string(),
                BenchStep::Run { round, case } => {
                    format!("round {round} of {}: {}", args.rounds, case.name)
                }
            });
        },
        |case| match (&args.place, &child) {
            (Some(model), Some(arguments)) => child::run(model, arguments, case, args.new_tokens),
            _ => Ok(Err("there is no model".to_string())),
        },
    )?;
    shown.finish_and_clear();
    match args.json {
        true => output::print_json(&results)?,
        false => output::print(&view::text(&results, style().width))?,
    }
    failed(&results)
}

/// An error if the model ran in no budget at all.
fn failed(results: &BenchResults) -> Result<(), Failure> {
    let budgets = &results.budgets;
    match budgets.iter().find_map(|budget| budget.error.clone()) {
        Some(error) if budgets.iter().all(|budget| budget.runs.is_empty()) => {
            Err(Failure::Failed(error))
        }
        _ => Ok(()),
    }
}

/// The model to run, and how.
fn model_bench(
    args: &BenchArgs,
    checkpoint: &Checkpoint,
    machine: &Machine,
) -> Result<(ModelBench, Vec<String>), Failure> {
    let config = read_config(checkpoint.folder())?;
    let mut run = child::arguments([args.prompt_tokens, args.new_tokens], config.vocab_size());
    if run[1].len() > LONGEST {
        return Err(Failure::usage(format!(
            "--prompt-tokens: {} are too many for the command line of another process; give at most {}",
            args.prompt_tokens,
            LONGEST / 6
        )));
    }
    run.push(format!("--compute={}", name_of(ACTIVATION_DTYPES, &args.compute)));
    run.push(format!("--prompt-again={AGAIN}"));
    run.extend(args.context.map(|context| format!("--context={context}")));
    let mut described = describe(checkpoint.folder())?;
    described.set_cache(&CacheOptions::new(1));
    let cost = ModelCost::new(checkpoint, &described.tree);
    let free = default_budget(machine, 0).get(Tier::Cpu);
    let largest = args.max_memory.iter().filter_map(|case| case.bytes).max();
    model::warn_of_excess(largest, machine);
    let dtypes = RunDtypeArgs { kv_dtype: KvDtype::F32, compute: args.compute };
    let prompt = args.prompt_tokens as usize;
    let context = args.context.unwrap_or(prompt.saturating_add(args.new_tokens as usize));
    let plan = |case: &BudgetCase| {
        let sizes = [case.batch as usize, context, prompt];
        let workload = workload::generation(&dtypes, sizes, &described);
        let (tree, config) = (described.tree.clone(), described.config.clone());
        let planner = Planner::new(tree, config, workload, Options::default());
        let budget = Budget::parse(case.max_memory.as_deref().unwrap_or_default())?;
        planner.plan(&budget).map(|_| ())
    };
    // Measuring takes long, and is of no use if the model runs in none of the budgets.
    let given = in_batches(&args.max_memory, &args.batch);
    let plans: Vec<Result<(), outsize::plan::Error>> = given.iter().map(plan).collect();
    if plans.iter().all(Result::is_err) {
        plans.into_iter().collect::<Result<(), _>>()?;
    }
    let bench = ModelBench {
        checkpoint: checkpoint.clone(),
        budgets: match &args.max_memory[..] {
            [] => in_batches(&default_budgets(cost.weight_bytes, free), &args.batch),
            _ => given,
        },
        cost,
        task: BenchTask {
            prompt_tokens: args.prompt_tokens,
            new_tokens: args.new_tokens,
            rounds: args.rounds,
            compute: args.compute,
        },
    };
    Ok((bench, run))
}

/// Each budget with each number of texts.
fn in_batches(budgets: &[BudgetCase], batches: &[u32]) -> Vec<BudgetCase> {
    match batches {
        [] => budgets.to_vec(),
        batches => {
            let of = |case: &BudgetCase| {
                batches.iter().map(|batch| case.with_batch(*batch)).collect::<Vec<_>>()
            };
            budgets.iter().flat_map(of).collect()
        }
    }
}

/// What to measure with.
fn options(args: &BenchArgs) -> Result<CalibrateOptions, Failure> {
    Ok(CalibrateOptions {
        bytes: args.size,
        disk: disk(args.place.as_deref())?,
        stop: Some(interrupt::flag()),
    })
}

/// What to read: the files of a model, or a temporary file in the folder, by default the cache
/// folder.
fn disk(place: Option<&Path>) -> Result<DiskToMeasure, Failure> {
    let Some(place) = place else {
        return Ok(DiskToMeasure::Folder(cache::made_folder()?));
    };
    // A GGUF file is a folder of its own.
    if place.is_file() && model_folder(place) == place {
        return Ok(DiskToMeasure::Checkpoint(Checkpoint::open(place)?));
    }
    if !place.is_dir() {
        return Err(Failure::usage(format!(
            "{} is not a folder: name a model's folder, or any folder on the disk to measure",
            place.display()
        )));
    }
    if has_weights(place) {
        Ok(DiskToMeasure::Checkpoint(Checkpoint::open(place)?))
    } else {
        Ok(DiskToMeasure::Folder(place.to_path_buf()))
    }
}

/// Whether there is a file of weights in the folder.
fn has_weights(folder: &Path) -> bool {
    folder.read_dir().is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let of_torch = name.starts_with("pytorch_model") && name.ends_with(".bin");
            (of_torch || name.ends_with(".safetensors")) && entry.path().is_file()
        })
    })
}
