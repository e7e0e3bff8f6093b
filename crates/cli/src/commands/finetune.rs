//! `outsize finetune`: an adapter, or all of a model, learns from examples, under a budget.

use crate::args::FinetuneArgs;
use crate::commands::tuner::{AdapterTuner, Tuner};
use crate::error::Failure;
use crate::views::finetune::{FinetuneOutput, step_line};
use crate::views::output::{picture, print_json, say};
use crate::views::progress;
use crate::{cache, interrupt, model};
use outsize::checkpoint::{OutputFolder, model_folder};
use outsize::finetune::{
    Examples, FinetuneBuilder, FinetuneError, FinetuneOptions, finetune as finetuner,
};
use outsize::lora::{LoraConfig, ModulePattern};
use outsize::machine::{Machine, peak_rss};
use outsize::plan::Tier;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Runs the command; `began` is when the process did, and `called` what the model is called.
pub fn finetune(args: &FinetuneArgs, called: &Path, began: Instant) -> Result<(), Failure> {
    // Before any work is done: whether the folder can be made.
    let output = OutputFolder::prepare(&args.output)?.out().to_owned();
    let states = states(&output);
    let options = options(args, &states);
    options.check()?;
    let machine = Machine::detect();
    let max_memory = args.max_memory.as_ref().and_then(|budget| budget.get(Tier::Cpu));
    model::warn_of_excess(max_memory, &machine);
    let builder = builder(args, called, &machine)?;
    if args.full {
        let opened = builder.full(&states).open()?;
        let (examples, held_back) = read(args, |path| opened.read_examples(path))?;
        // All weights are written in f32 first.
        let bar = progress::activity();
        bar.set_message("opening");
        let tuner = opened.build()?;
        bar.finish_and_clear();
        return learn(args, tuner, &examples, held_back.as_ref(), &options, began);
    }
    let opened = builder.open()?;
    let (examples, held_back) = read(args, |path| opened.read_examples(path))?;
    let tuner = opened.build()?;
    learn(args, AdapterTuner { tuner, states }, &examples, held_back.as_ref(), &options, began)
}

/// Reads what is learned from, and what is held back.
fn read(
    args: &FinetuneArgs,
    read: impl Fn(&Path) -> Result<Examples, FinetuneError>,
) -> Result<(Examples, Option<Examples>), Failure> {
    let examples = read(&args.data)?;
    let held_back = args.eval.as_deref().map(read).transpose()?;
    interrupt::check()?;
    Ok((examples, held_back))
}

/// Learns, and writes what was learned.
fn learn(
    args: &FinetuneArgs,
    mut tuner: impl Tuner,
    examples: &Examples,
    held_back: Option<&Examples>,
    options: &FinetuneOptions,
    began: Instant,
) -> Result<(), Failure> {
    say(picture(tuner.device_map()));
    say(learned(&tuner, examples));
    let evaluate = |tuner: &dyn Tuner| match held_back {
        Some(examples) => tuner.evaluate(examples).map(|evaluation| Some(evaluation.loss)),
        None => Ok(None),
    };
    // Once something is learned, what was before cannot be told.
    let before = if tuner.has_learned() { None } else { evaluate(&tuner)? };
    if let Some(loss) = before {
        say(format!("eval loss {loss:.4} before"));
    }
    let bar = progress::steps(0);
    let mut tokens = 0;
    let outcome = tuner.train(examples, options, &mut |step| {
        tokens += step.tokens;
        bar.set_length(step.steps as u64);
        bar.set_position(step.step as u64);
        if !args.json {
            bar.suspend(|| say(step_line(step)));
        }
    })?;
    bar.finish_and_clear();
    if outcome.was_stopped() {
        say(format!(
            "stopped after step {} of {}: the same command goes on from there",
            outcome.steps, outcome.of
        ));
        return Err(Failure::Interrupted);
    }
    let after = evaluate(&tuner)?;
    let left_out = tuner.save(&args.output)?;
    if !left_out.is_empty() {
        say(format!("note: not copied: {}", left_out.join(", ")));
    }
    let output = FinetuneOutput {
        output: args.output.clone(),
        steps: outcome.steps,
        resumed: outcome.resumed,
        loss: outcome.loss,
        eval_loss_before: before,
        eval_loss: after,
        examples: examples.examples.len(),
        parameters: tuner.parameter_count(),
        tokens,
        seconds: began.elapsed().as_secs_f64(),
        bytes_read: tuner.bytes_read(),
        peak_rss_bytes: peak_rss(),
        placement: tuner.device_map().clone(),
    };
    // What they held is in the output now.
    tuner.remove_states();
    match args.json {
        true => print_json(&output),
        false => {
            output.summary().lines().for_each(say);
            Ok(())
        }
    }
}

/// What is opened, as the arguments say.
fn builder(
    args: &FinetuneArgs,
    called: &Path,
    machine: &Machine,
) -> Result<FinetuneBuilder, Failure> {
    let adapter = &args.adapter;
    let targets = match &adapter.target_modules[..] {
        [all] if all == "all-linear" => ModulePattern::AllLinear,
        names => ModulePattern::suffixes(names),
    };
    let alpha = adapter.alpha.unwrap_or(2.0 * adapter.rank as f64);
    let lora = LoraConfig {
        base_model: Some(called.to_string_lossy().into_owned()),
        task_type: Some("CAUSAL_LM".into()),
        ..LoraConfig::new(adapter.rank, alpha, targets)
    };
    let (figures, _) = cache::figures(machine, model_folder(&args.model));
    let builder = finetuner(&args.model).lora(lora).batch_size(args.batch).figures(figures);
    let builder = builder.compute(args.compute).seed(args.learning.seed).stop(interrupt::flag());
    let builder = args.context.into_iter().fold(builder, FinetuneBuilder::context);
    let builder = args.max_memory.iter().cloned().fold(builder, FinetuneBuilder::max_memory);
    Ok(match &adapter.adapter {
        Some(folder) => builder.adapter(model::adapter_folder(folder)?),
        None => builder,
    })
}

/// Where states are until what was learned is written.
fn states(output: &Path) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_owned();
    name.push(".states");
    output.with_file_name(name)
}

/// How it learns.
fn options(args: &FinetuneArgs, states: &Path) -> FinetuneOptions {
    let learning = &args.learning;
    let defaults = if args.full { FinetuneOptions::full() } else { FinetuneOptions::default() };
    FinetuneOptions {
        epochs: learning.epochs,
        max_steps: learning.max_steps,
        accumulate: args.accumulate,
        learning_rate: learning.learning_rate.unwrap_or(defaults.learning_rate),
        schedule: learning.schedule,
        warmup_steps: learning.warmup_steps,
        weight_decay: learning.weight_decay,
        max_grad_norm: Some(learning.max_grad_norm).filter(|most| *most != 0.0),
        shuffle: Some(learning.seed),
        states: Some(states.to_owned()),
        ..defaults
    }
}

/// One line on what is learned from what.
fn learned(tuner: &impl Tuner, examples: &Examples) -> String {
    let targets: usize = examples.examples.iter().map(|example| example.targets()).sum();
    let cut = match examples.cut {
        0 => String::new(),
        cut => format!(" · {cut} cut at {} tokens", tuner.context()),
    };
    let skipped = match examples.skipped {
        0 => String::new(),
        skipped => format!(" · {skipped} passed over: what they teach is behind that"),
    };
    let kept = match tuner.kept_blocks() {
        0 => String::new(),
        kept => format!(" · activations of {kept} blocks are kept"),
    };
    format!(
        "{} · {} examples, {targets} tokens to learn{cut}{skipped}{kept}",
        tuner.what(),
        examples.examples.len(),
    )
}
