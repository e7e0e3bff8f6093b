//! `outsize finetune`: an adapter learns from examples, under a budget.

use crate::args::FinetuneArgs;
use crate::error::Failure;
use crate::views::finetune::{FinetuneOutput, step_line};
use crate::views::output::{picture, print_json, refuse_missing_folder, say};
use crate::views::progress;
use crate::{cache, interrupt, model};
use outsize::checkpoint::model_folder;
use outsize::core::Planning;
use outsize::finetune::{Examples, FinetuneOptions, Finetuner, finetune as finetuner};
use outsize::lora::{LoraConfig, ModulePattern};
use outsize::machine::{Machine, peak_rss};
use outsize::plan::Tier;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Runs the command; `began` is when the process did.
pub fn finetune(args: &FinetuneArgs, called: &Path, began: Instant) -> Result<(), Failure> {
    refuse_missing_folder(&args.output)?;
    refuse_filled(&args.output)?;
    let max_memory = args.max_memory.as_ref().and_then(|budget| budget.get(Tier::Cpu));
    model::warn_of_excess(max_memory, &Machine::detect());
    let mut tuner = opened(args, called)?;
    say(picture(tuner.device_map()));
    let examples = tuner.read_examples(&args.data)?;
    let held_back = args.eval.as_ref().map(|path| tuner.read_examples(path)).transpose()?;
    say(learned(&tuner, &examples, args.context));

    let evaluate = |tuner: &Finetuner| match &held_back {
        Some(examples) => tuner.evaluate(examples).map(|evaluation| Some(evaluation.loss)),
        None => Ok(None),
    };
    let before = evaluate(&tuner)?;
    if let Some(loss) = before {
        say(format!("eval loss {loss:.4} before"));
    }
    let (options, states) = options(args);
    let bar = progress::steps(0);
    let mut tokens = 0;
    let outcome = tuner.train(&examples, &options, |step| {
        tokens += step.tokens;
        bar.set_length(step.steps as u64);
        bar.set_position(step.step as u64);
        if !args.json {
            bar.suspend(|| say(step_line(step)));
        }
        match interrupt::asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })?;
    bar.finish_and_clear();
    if outcome.steps < outcome.of {
        say(format!(
            "stopped after step {} of {}: the same command goes on from there",
            outcome.steps, outcome.of
        ));
        return Err(Failure::Interrupted);
    }
    let after = evaluate(&tuner)?;
    tuner.save(&args.output)?;
    // What it held is in the adapter now.
    let _ = std::fs::remove_dir_all(&states);
    let output = FinetuneOutput {
        output: args.output.clone(),
        steps: outcome.steps,
        resumed: outcome.resumed,
        loss: outcome.loss,
        eval_loss_before: before,
        eval_loss: after,
        examples: examples.examples.len(),
        adapter_parameters: tuner.adapter().parameter_count(),
        tokens,
        seconds: began.elapsed().as_secs_f64(),
        bytes_read: tuner.watch()().bytes_read,
        peak_rss_bytes: peak_rss(),
        placement: tuner.device_map().clone(),
    };
    match args.json {
        true => print_json(&output),
        false => {
            output.summary().lines().for_each(say);
            Ok(())
        }
    }
}

fn opened(args: &FinetuneArgs, called: &Path) -> Result<Finetuner, Failure> {
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
    let builder = finetuner(&args.model).lora(lora).context(args.context).batch_size(args.batch);
    let builder = builder.compute(args.compute).seed(args.learning.seed);
    let builder = match &adapter.adapter {
        Some(folder) => builder.adapter(model::adapter_folder(folder)?),
        None => builder,
    };
    let (figures, _) = cache::figures(&Machine::detect(), model_folder(&args.model));
    let builder = builder.planning(Planning { figures, ..Planning::default() });
    let builder =
        args.max_memory.iter().cloned().fold(builder, |builder, it| builder.max_memory(it));
    Ok(builder.build()?)
}

/// How the adapter learns, and where states are until it is written.
fn options(args: &FinetuneArgs) -> (FinetuneOptions, PathBuf) {
    let learning = &args.learning;
    let mut states = args.output.clone().into_os_string();
    states.push(".states");
    let states = PathBuf::from(states);
    let options = FinetuneOptions {
        epochs: learning.epochs,
        max_steps: learning.max_steps,
        accumulate: args.accumulate,
        learning_rate: learning.learning_rate,
        schedule: learning.schedule,
        warmup_steps: learning.warmup_steps,
        weight_decay: learning.weight_decay,
        max_grad_norm: Some(learning.max_grad_norm).filter(|most| *most != 0.0),
        shuffle: Some(learning.seed),
        states: Some(states.clone()),
        ..FinetuneOptions::default()
    };
    (options, states)
}

/// One line on what is learned from what.
fn learned(tuner: &Finetuner, examples: &Examples, context: usize) -> String {
    let targets: usize = examples.examples.iter().map(|example| example.targets()).sum();
    let cut = match examples.cut {
        0 => String::new(),
        cut => format!(" · {cut} cut at {context} tokens"),
    };
    let kept = match tuner.kept_blocks() {
        0 => String::new(),
        kept => format!(" · activations of {kept} blocks are kept"),
    };
    format!(
        "adapter of {} layers, {} values · {} examples, {targets} tokens to learn{cut}{kept}",
        tuner.adapter().layers.len(),
        tuner.adapter().parameter_count(),
        examples.examples.len(),
    )
}

/// Refuses a folder that holds something, before any work is done.
fn refuse_filled(folder: &Path) -> Result<(), Failure> {
    let is_free = match folder.read_dir() {
        Ok(mut entries) => entries.next().is_none(),
        Err(_) => folder.symlink_metadata().is_err(),
    };
    match is_free {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "--output: {} is there already: give another folder, or remove it",
            folder.display()
        ))),
    }
}
