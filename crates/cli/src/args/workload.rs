//! What a plan is made for, from the arguments of `outsize plan`.

use super::{DtypeArgs, WorkloadArgs};
use crate::error::Failure;
use outsize::generate::{Described, GenerationWorkload};
use outsize::models::{CacheOptions, MAX_BATCH, MAX_CONTEXT};
use outsize::plan::{Budget, Casts, HardwareProfile, Tier};

/// Tokens of context and prompt by default.
const CONTEXT: usize = 512;
const PROMPT: usize = 256;

/// The workload that the arguments describe, checked against the model.
pub fn request(args: &WorkloadArgs, described: &Described) -> Result<GenerationWorkload, Failure> {
    let most = described
        .config
        .as_ref()
        .map_or(MAX_CONTEXT, |config| config.cache().longest_context.min(MAX_CONTEXT));
    let within = |flag: &str, value: usize, most: usize, of: &str| match value {
        0 => Err(Failure::usage(format!("{flag} must be at least 1"))),
        value if value > most => {
            Err(Failure::usage(format!("{flag} {value} is more than {of} {most}")))
        }
        value => Ok(value),
    };
    let prompt = args.prompt_tokens.unwrap_or(0);
    let usual = CONTEXT.max(prompt.saturating_mul(2)).min(most).max(1);
    let context = within("--context", args.context.unwrap_or(usual), most, "the model's")?;
    let prompt = match args.prompt_tokens {
        Some(tokens) => within("--prompt-tokens", tokens, context, "the context's")?,
        None => PROMPT.min(context.div_ceil(2)),
    };
    let cache = CacheOptions {
        batch: within("--batch", args.batch, MAX_BATCH, "the possible")?,
        dtype: args.dtypes.kv_dtype,
        ..CacheOptions::new(context)
    };
    Ok(GenerationWorkload {
        compute: args.dtypes.compute,
        tokenizer: described.tokenizer_bytes,
        ..GenerationWorkload::new(cache, prompt)
    })
}

/// The dtypes that weights are held in.
pub fn casts(args: &DtypeArgs) -> Result<Casts, Failure> {
    let mut casts =
        Casts { dtype: args.dtype, keep_in_f32: args.keep_in_fp32.clone(), ..Casts::default() };
    for (name, dtype) in &args.special_dtype {
        if casts.special.insert(name.clone(), *dtype).is_some() {
            return Err(Failure::usage(format!("--special-dtype: {name:?} is given twice")));
        }
    }
    Ok(casts)
}

/// Notes on a plan with such a budget.
pub fn notes(described: &Described, budget: &Budget, figures: &HardwareProfile) -> Vec<String> {
    let mut notes = Vec::new();
    if described.config.is_none() {
        notes.push(
            "keys, values and activations of this architecture are not known and not counted"
                .to_string(),
        );
    }
    let gpus: Vec<usize> = budget
        .iter()
        .filter_map(|(tier, bytes)| match tier {
            Tier::Gpu(number) if bytes > 0 => Some(number),
            _ => None,
        })
        .collect();
    if !gpus.is_empty() {
        notes.push(
            "`outsize run` computes on the CPU in this build: gpu0=0 and so on plans for that"
                .to_string(),
        );
        if gpus.iter().any(|number| !figures.gpus.contains_key(number)) {
            notes.push(
                "GPUs that were not measured are assumed to have a default profile".to_string(),
            );
        }
    }
    notes
}
