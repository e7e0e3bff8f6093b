//! `outsize bench`.

use super::values::{ACTIVATION_DTYPES, one_of, some};
use clap::Args;
use outsize::bench::{BudgetCase, LEAST_CALIBRATION_BYTES};
use outsize::models::{ActivationDtype, MAX_BATCH};
use outsize::plan::{Budget, Error, Tier, format_size, parse_size};
use std::path::PathBuf;

/// `outsize bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// A model: its own files are read to measure the disk, and it is run; or a folder, where a
    /// file is made and removed to measure the disk [default: the cache folder]
    #[arg(value_name = "MODEL_OR_FOLDER")]
    pub place: Option<PathBuf>,
    /// Measure disk, memory, processors and the GPUs that this build computes on, in less than 20
    /// seconds and ten for each GPU, and store the figures for predictions; no model is run
    #[arg(long, conflicts_with_all = ["max_memory", "prompt_tokens", "new_tokens", "rounds", "context", "compute", "batch"])]
    pub calibrate: bool,
    /// Budget to run the model in, as `outsize run` takes it; may be given several times [default:
    /// all that is free if the model fits, then 50 % and 10 % of its weights]
    #[arg(long, value_name = "DEVICE=SIZE", value_parser = budget_case)]
    pub max_memory: Vec<BudgetCase>,
    /// Tokens of the prompt
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N", default_value_t = 128)]
    pub prompt_tokens: u32,
    /// Tokens to generate in each run, the first of which is the prompt's
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..), value_name = "N", default_value_t = 17)]
    pub new_tokens: u32,
    /// Texts of that prompt that run side by side; several numbers, such as 1,8,32, run in turns in
    /// each budget [default: 1]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=MAX_BATCH as i64), value_name = "N")]
    pub batch: Vec<u32>,
    /// Runs in each budget, alternating
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N", default_value_t = 3)]
    pub rounds: u32,
    /// Tokens of prompt and answer together [default: what a run needs]
    #[arg(long, value_name = "N", value_parser = some())]
    pub context: Option<usize>,
    /// Dtype of activations in matmuls
    #[arg(long, value_parser = one_of(ACTIVATION_DTYPES), default_value = "f32", value_name = "TYPE")]
    pub compute: ActivationDtype,
    /// The most memory to measure with, and the most to write to disk; less is less exact
    #[arg(long, default_value = "3GB", value_name = "SIZE", value_parser = calibration_size)]
    pub size: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// A budget, named as it is written.
fn budget_case(text: &str) -> Result<BudgetCase, Error> {
    let bytes = Budget::parse(text)?.get(Tier::Cpu);
    Ok(BudgetCase { name: text.to_string(), max_memory: Some(text.to_string()), bytes, batch: 1 })
}

/// The most memory and disk to take, in bytes.
fn calibration_size(text: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        bytes @ LEAST_CALIBRATION_BYTES.. => Ok(bytes),
        _ => Err(format!("too small; the minimum is {}", format_size(LEAST_CALIBRATION_BYTES))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budgets_given_are_run() {
        let cases = ["cpu=600MB", "cpu=1GiB"].map(|text| budget_case(text).unwrap());
        assert_eq!(cases.each_ref().map(|case| case.bytes), [Some(600_000_000), Some(1 << 30)]);
        assert_eq!(cases[0].max_memory.as_deref(), Some("cpu=600MB"));
        for wrong in ["600MB", "cpu=", "cpu=many", ""] {
            budget_case(wrong).unwrap_err();
        }
    }
}
