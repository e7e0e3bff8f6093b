//! Opening a model as the arguments say.

use crate::args::ModelArgs;
use crate::error::Failure;
use outsize::generate::{Pipeline, Settings, Step, Tokenizer, read_config};
use outsize::models::{Logits, ModelConfig};
use outsize::plan::{Budget, Tier};

/// Share of the available memory that is taken when no budget is given.
const DEFAULT_SHARE: f64 = 0.9;

/// The configuration of the model in the folder.
pub fn config(args: &ModelArgs) -> Result<ModelConfig, Failure> {
    if !args.model.is_dir() {
        return Err(Failure::usage(format!(
            "{} is no folder: MODEL is the folder of a Hugging Face checkpoint, with config.json and safetensors",
            args.model.display()
        )));
    }
    Ok(read_config(&args.model)?)
}

/// The budget: as given, or most of what this machine has left.
pub fn budget(args: &ModelArgs) -> Result<Budget, Failure> {
    if let Some(text) = &args.max_memory {
        return Budget::parse(text)
            .map_err(|error| Failure::usage(format!("--max-memory: {error}")));
    }
    let mut budget = Budget::default();
    if let Some(available) = outsize::machine::available() {
        let ours = outsize::machine::current_rss().unwrap_or(0);
        let share = (available as f64 * DEFAULT_SHARE) as u64 + ours;
        budget.set(Tier::Cpu, share);
    }
    Ok(budget)
}

/// Opens the model for prompts of `prompt` tokens and `context` tokens in all.
pub fn open(
    args: &ModelArgs,
    config: ModelConfig,
    prompt: usize,
    context: usize,
    logits: Logits,
    observe: impl FnMut(Step<'_>),
) -> Result<Pipeline, Failure> {
    let settings = Settings {
        max_memory: budget(args)?,
        context: args.context.unwrap_or(context),
        prompt,
        logits,
    };
    Ok(Pipeline::open(&args.model, config, &settings, observe)?)
}

/// Token ids written as `1,2,3`.
pub fn ids(text: &str, config: &ModelConfig) -> Result<Vec<u32>, Failure> {
    text.split(',')
        .map(|part| {
            let id = part.trim().parse::<u32>().map_err(|_| {
                Failure::usage(format!(
                    "--ids: {part:?} is no token id; write numbers with commas between them, as 1,2,3"
                ))
            })?;
            if id as usize >= config.vocab_size {
                return Err(Failure::usage(format!(
                    "--ids: {id} is no token of this model, which has {}",
                    config.vocab_size
                )));
            }
            Ok(id)
        })
        .collect()
}

/// The tokenizer beside the model.
pub fn tokenizer(args: &ModelArgs) -> Result<Tokenizer, Failure> {
    Ok(Tokenizer::open(&args.model)?)
}
