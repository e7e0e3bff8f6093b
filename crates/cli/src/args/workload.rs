//! What a plan is made for, from the arguments of `outsize plan`.

use super::{DtypeArgs, RunDtypeArgs, WorkloadArgs};
use crate::error::Failure;
use outsize::generate::{Described, GenerationWorkload};
use outsize::kernels::gpu::BACKENDS;
use outsize::models::{CacheOptions, MAX_CONTEXT, ModelConfig};
use outsize::plan::{Budget, Casts, HardwareProfile, Tier};

/// Tokens of context and prompt by default.
const CONTEXT: usize = 512;
const PROMPT: usize = 256;

/// The workload that the arguments of `outsize plan` describe, checked against the model.
pub fn request(args: &WorkloadArgs, described: &Described) -> Result<GenerationWorkload, Failure> {
    let config = described.config.as_ref();
    let encodes = config.is_some_and(|config| config.decoder_start().is_some());
    let of_context = args.prompt_tokens.filter(|_| !encodes).unwrap_or(0);
    let usual = CONTEXT.max(of_context.saturating_mul(2));
    let context = context(args.context, usual.min(longest(config)), config)?;
    let (most, usual, of) = match encodes {
        true => (MAX_CONTEXT, PROMPT, "longest possible prompt"),
        false => (context, PROMPT.min(context.div_ceil(2)), "context"),
    };
    let prompt = match args.prompt_tokens {
        Some(tokens) if tokens > most => {
            return Err(Failure::usage(format!(
                "--prompt-tokens {tokens} is more than the {of}'s {most}"
            )));
        }
        given => given.unwrap_or(usual),
    };
    Ok(generation(&args.dtypes, [args.batch, context, prompt], described))
}

/// The context asked for, or else the usual one, if the model can have it.
pub fn context(
    given: Option<usize>,
    usual: usize,
    config: Option<&ModelConfig>,
) -> Result<usize, Failure> {
    let (context, most) = (given.unwrap_or(usual.max(1)), longest(config));
    match context > most {
        true => Err(Failure::usage(format!(
            "--context {context} is more than the {most} tokens of the model's longest context"
        ))),
        false => Ok(context),
    }
}

/// The longest context of a model, in tokens.
pub fn longest(config: Option<&ModelConfig>) -> usize {
    config.map_or(MAX_CONTEXT, |config| config.cache().longest_context.min(MAX_CONTEXT))
}

/// Generating with such sizes.
pub fn generation(
    dtypes: &RunDtypeArgs,
    [batch, context, prompt]: [usize; 3],
    described: &Described,
) -> GenerationWorkload {
    let cache = CacheOptions { batch, dtype: dtypes.kv_dtype, ..CacheOptions::new(context) };
    GenerationWorkload {
        compute: dtypes.compute,
        tokenizer: described.tokenizer_bytes,
        ..GenerationWorkload::new(cache, prompt)
    }
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
    notes.extend(gpu_notes(budget, figures));
    notes
}

/// Notes on a plan with a budget that has GPUs.
pub fn gpu_notes(budget: &Budget, figures: &HardwareProfile) -> Vec<String> {
    let mut notes = Vec::new();
    let gpus: Vec<usize> = budget
        .iter()
        .filter_map(|(tier, bytes)| match tier {
            Tier::Gpu(number) if bytes > 0 => Some(number),
            _ => None,
        })
        .collect();
    if !gpus.is_empty() {
        if BACKENDS.is_empty() {
            notes.push(
                "this build computes on the CPU: gpu0=0 and so on plans for that".to_string(),
            );
        }
        if gpus.iter().any(|number| !figures.gpus.contains_key(number)) {
            notes.push(
                "GPUs that were not measured are assumed to have a default profile".to_string(),
            );
        }
    }
    notes
}
