//! `outsize quantize`: a checkpoint whose linear layers become integers.

use super::rewritten::{CONFIG, Output, Remark, go_on, write_weights};
use crate::args::QuantizeArgs;
use crate::error::Failure;
use crate::views::output::{picture, say};
use crate::{cache, interrupt, model};
use outsize::checkpoint::{
    Checkpoint, Dtype, IntegerWidth, ShardWriter, model_folder, read_object,
};
use outsize::finetune::{CalibrationOutcome, FinetuneBuilder, finetune};
use outsize::generate::read_config;
use outsize::machine::Machine;
use outsize::models::{IntegerGroups, ModelConfig, Rewriting, rewriting};
use outsize::plan::Tier;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// The most weights that may share a scale, but for all of a row.
const MOST: usize = 1 << 16;

/// How often the time that is left is shown anew.
const TICK: Duration = Duration::from_secs(1);

/// Runs the command; `began` is when the process did.
pub fn quantize(args: &QuantizeArgs, began: Instant) -> Result<(), Failure> {
    let output = Output { out: &args.out, limit: args.max_shard_size, json: args.json, began };
    let integers = integers(args)?;
    if let Some(texts) = &args.texts {
        let machine = Machine::detect();
        let max_memory = args.calibration.max_memory.as_ref();
        model::warn_of_excess(max_memory.and_then(|budget| budget.get(Tier::Cpu)), &machine);
        let opened = builder(args, &machine).calibration()?;
        let examples = opened.read_examples(texts)?;
        let (checkpoint, config) = (opened.checkpoint(), opened.config());
        let Quantized { found, config, count } = quantized(args, checkpoint, config, integers)?;
        return output.write(&found, checkpoint, config.as_ref(), |writer, bar| {
            let begun = |block, of| bar.set_message(format!("block {} of {of}", block + 1));
            let go_on = |writer: &ShardWriter| go_on(writer, bar);
            bar.enable_steady_tick(TICK);
            let tokens = args.calibration.tokens;
            let outcome = opened.write(&examples, tokens, &found, writer, &begun, &go_on)?;
            say(picture(&outcome.placement));
            Ok(Some(remark(count, Some(&outcome))))
        });
    }
    let checkpoint = Checkpoint::open(&args.model)?;
    let model = read_config(checkpoint.folder())?;
    let Quantized { found, config, count } = quantized(args, &checkpoint, &model, integers)?;
    output.write(&found, &checkpoint, config.as_ref(), |writer, bar| {
        write_weights(&found, &checkpoint, writer, bar)?;
        Ok(Some(remark(count, None)))
    })
}

fn integers(args: &QuantizeArgs) -> Result<IntegerGroups, Failure> {
    let absent = if args.dtype == IntegerWidth::U4 { 32 } else { 0 };
    match args.group_size.unwrap_or(absent) {
        group @ 0..=MOST => Ok(IntegerGroups { width: args.dtype, group }),
        group => Err(Failure::usage(format!(
            "--group-size {group}: expected at most {MOST}, or 0 for all of a row"
        ))),
    }
}

/// What becomes of a checkpoint.
struct Quantized {
    found: Rewriting,
    /// Its `config.json` as it is.
    config: Option<Map<String, Value>>,
    /// How many matrices become integers.
    count: usize,
}

fn quantized(
    args: &QuantizeArgs,
    checkpoint: &Checkpoint,
    model: &ModelConfig,
    integers: IntegerGroups,
) -> Result<Quantized, Failure> {
    let config = read_object(&checkpoint.folder().join(CONFIG))?;
    // What is quantised otherwise becomes floats first.
    let is_quantized = config.as_ref().is_some_and(|it| it.contains_key("quantization_config"));
    let to = is_quantized.then_some(Dtype::BF16);
    let mut found = rewriting(checkpoint, config.clone().unwrap_or_default(), to)?;
    match found.quantize(model, checkpoint.tensors(), integers) {
        0 => Err(Failure::usage(format!(
            "{} has no linear layer with a matrix of its own whose rows are whole groups{}: nothing of it would become integers",
            args.model.display(),
            if integers.group == 0 { String::new() } else { format!(" of {}", integers.group) }
        ))),
        count => Ok(Quantized { found, config, count }),
    }
}

fn builder(args: &QuantizeArgs, machine: &Machine) -> FinetuneBuilder {
    let (figures, _) = cache::figures(machine, model_folder(&args.model));
    let wanted = &args.calibration;
    let builder = finetune(&args.model).batch_size(wanted.batch).figures(figures);
    let builder = wanted.context.into_iter().fold(builder, FinetuneBuilder::context);
    let builder = wanted.max_memory.iter().cloned().fold(builder, FinetuneBuilder::max_memory);
    builder.stop(interrupt::flag())
}

fn remark(count: usize, calibrated: Option<&CalibrationOutcome>) -> Remark {
    let mut fields = Map::from_iter([("quantized".to_owned(), json!(count))]);
    let mut line = format!("{count} matrices became integers");
    if let Some(CalibrationOutcome { tokens, unseen, .. }) = calibrated {
        fields.insert("calibration_tokens".to_owned(), json!(tokens));
        fields.insert("unseen".to_owned(), json!(unseen));
        line += &format!(", chosen by {tokens} tokens");
        if *unseen > 0 {
            line += &format!("; {unseen} of them met none, and were rounded to nearest");
        }
    }
    Remark { line, fields }
}
