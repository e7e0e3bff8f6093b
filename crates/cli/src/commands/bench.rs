//! `outsize bench`: the machine's limits, and a model beside them.

use super::calibrate::calibrate_machine;
use crate::args::{self, BenchArgs, ComputeType};
use crate::child::{self, ChildTask};
use crate::error::Failure;
use crate::views::{bench as view, output, progress, table};
use crate::{cache, interrupt, model};
use outsize::bench::{
    BenchResults, BenchStep, BenchTask, BudgetCase, CalibrateOptions, DiskToMeasure,
    LEAST_CALIBRATION_BYTES, ModelBench, ModelCost, default_budgets,
};
use outsize::checkpoint::Checkpoint;
use outsize::generate::{describe, read_config};
use outsize::machine::Machine;
use outsize::models::CacheOptions;
use outsize::plan::{Tier, format_size, parse_size};
use std::path::Path;

/// How many times the prompt is run again in each run.
const AGAIN: u32 = 2;

/// The longest list of token ids that a program may be given as one argument, in bytes.
const LONGEST: usize = 120_000;

/// Columns where the output is no terminal.
const COLUMNS: usize = 80;

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
    let (bench, child) = match &options.disk {
        DiskToMeasure::Checkpoint(checkpoint) => {
            let (bench, child) = model_bench(args, checkpoint, &machine)?;
            (Some(bench), Some(child))
        }
        DiskToMeasure::Folder(folder) if !args.max_memory.is_empty() => {
            return Err(Failure::usage(format!(
                "--max-memory is for running a model, and there are no weights in {}",
                folder.display()
            )));
        }
        DiskToMeasure::Folder(_) => (None, None),
    };
    let shown = progress::activity();
    let results = outsize::bench::bench(
        &machine,
        &options,
        args.rounds,
        bench,
        |step| {
            shown.set_message(match step {
                BenchStep::Choosing => "finding out how the disk is read fastest".to_string(),
                BenchStep::Products => "measuring products".to_string(),
                BenchStep::Limits => "measuring disk, memory and processors".to_string(),
                BenchStep::Run { round, case } => {
                    format!("round {round} of {}: {}", args.rounds, case.name)
                }
            });
        },
        |case| match (&args.place, &child) {
            (Some(model), Some(child)) => child::run(model, case, child),
            _ => Ok(Err("there is no model".to_string())),
        },
    )?;
    shown.finish_and_clear();
    match args.json {
        true => println!("{}", serde_json::to_string(&results)?),
        false => {
            let width = match table::width() {
                usize::MAX => COLUMNS,
                width => width,
            };
            output::print(&view::text(&results, width))?;
        }
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
) -> Result<(ModelBench, ChildTask), Failure> {
    let config = read_config(checkpoint.folder())?;
    let ids = ChildTask::prompt(args.prompt_tokens, config.vocab_size());
    if ids.len() > LONGEST {
        return Err(Failure::usage(format!(
            "--prompt-tokens: {} are too many for the command line of another process; give at most {}",
            args.prompt_tokens,
            LONGEST / 6
        )));
    }
    let mut described = describe(checkpoint.folder())?;
    described.set_cache(&CacheOptions::new(1));
    let cost = ModelCost::new(checkpoint, &described.tree);
    let bench = ModelBench {
        checkpoint: checkpoint.clone(),
        budgets: budgets(&args.max_memory, cost.weight_bytes, machine)?,
        cost,
        task: BenchTask {
            prompt_tokens: args.prompt_tokens,
            new_tokens: args.new_tokens,
            rounds: args.rounds,
            compute: args.compute.into(),
        },
    };
    let child = ChildTask {
        ids,
        new_tokens: args.new_tokens,
        context: args.context,
        compute: match args.compute {
            ComputeType::F32 => "f32",
            ComputeType::Bf16 => "bf16",
        },
        again: AGAIN,
    };
    Ok((bench, child))
}

/// The budgets given, or those that suit the size of the weights.
fn budgets(given: &[String], weights: u64, machine: &Machine) -> Result<Vec<BudgetCase>, Failure> {
    if given.is_empty() {
        let free = model::default_budget(machine, 0).get(Tier::Cpu);
        return Ok(default_budgets(weights, free));
    }
    let case = |text: &String| {
        Ok(BudgetCase {
            name: text.clone(),
            max_memory: Some(text.clone()),
            bytes: args::budget(text)?.get(Tier::Cpu),
        })
    };
    given.iter().map(case).collect()
}

/// What to measure with.
fn options(args: &BenchArgs) -> Result<CalibrateOptions, Failure> {
    Ok(CalibrateOptions {
        bytes: size(args)?,
        disk: disk(args.place.as_deref())?,
        stop: Some(interrupt::flag()),
    })
}

/// The most memory and disk to take, in bytes.
fn size(args: &BenchArgs) -> Result<u64, Failure> {
    let bytes =
        parse_size(&args.size).map_err(|error| Failure::usage(format!("--size: {error}")))?;
    if bytes < LEAST_CALIBRATION_BYTES {
        return Err(Failure::usage(format!(
            "--size: {} is too small; the minimum is {}",
            args.size,
            format_size(LEAST_CALIBRATION_BYTES)
        )));
    }
    Ok(bytes)
}

/// What to read: the files of a model, or a temporary file in the folder, by default the cache
/// folder.
fn disk(place: Option<&Path>) -> Result<DiskToMeasure, Failure> {
    let Some(place) = place else {
        let cache = cache::folder()?;
        std::fs::create_dir_all(&cache).map_err(|error| {
            Failure::Failed(format!(
                "cannot create the cache folder {}: {error}; set OUTSIZE_CACHE to another",
                cache.display()
            ))
        })?;
        return Ok(DiskToMeasure::Folder(cache));
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budgets_given_are_run() {
        let machine = Machine::detect();
        let given = ["cpu=600MB".to_string(), "cpu=1GiB".to_string()];
        let cases = budgets(&given, 5, &machine).unwrap();
        let bytes: Vec<_> = cases.iter().map(|case| case.bytes).collect();
        assert_eq!(bytes, [Some(600_000_000), Some(1 << 30)]);
        assert_eq!(cases[0].max_memory.as_deref(), Some("cpu=600MB"));
        for wrong in ["600MB", "cpu=", "cpu=many", ""] {
            let error = budgets(&[wrong.to_string()], 5, &machine).unwrap_err();
            assert!(matches!(error, Failure::Usage(message) if message.contains("--max-memory")));
        }
    }
}
