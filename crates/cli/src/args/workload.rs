//! What a plan is made for, from the arguments of `outsize plan`.

use super::{DtypeArgs, PlanArgs, WorkloadArgs};
use crate::error::Failure;
use outsize::generate::{Described, GenerationWorkload};
use outsize::models::{CacheOptions, MAX_BATCH, MAX_CONTEXT};
use outsize::plan::{Budget, Casts, HardwareProfile, Options, Tier, WeightDtype};

/// Tokens of context and prompt by default.
const CONTEXT: usize = 512;
const PROMPT: usize = 256;

/// How weights are placed.
pub fn options(args: &PlanArgs) -> Result<Options, Failure> {
    Ok(Options {
        strategy: args.places.strategy.into(),
        reserve: args.places.reserve_bytes()?,
        must_fit: args.places.must_fit,
        no_split: args.no_split.clone(),
        offload_buffers: args.offload_buffers,
        ..Options::default()
    })
}

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
    let encodes = described.config.as_ref().is_some_and(|config| config.decoder_start().is_some());
    let prompt = args.prompt_tokens.filter(|_| !encodes).unwrap_or(0);
    let usual = CONTEXT.max(prompt.saturating_mul(2)).min(most).max(1);
    let context = within("--context", args.context.unwrap_or(usual), most, "the model's")?;
    let prompt = match args.prompt_tokens {
        Some(tokens) if encodes => within("--prompt-tokens", tokens, MAX_CONTEXT, "the possible")?,
        Some(tokens) => within("--prompt-tokens", tokens, context, "the context's")?,
        None if encodes => PROMPT,
        None => PROMPT.min(context.div_ceil(2)),
    };
    let cache = CacheOptions {
        batch: within("--batch", args.batch, MAX_BATCH, "the possible")?,
        dtype: args.kv_dtype.into(),
        ..CacheOptions::new(context)
    };
    Ok(GenerationWorkload {
        compute: args.compute.into(),
        tokenizer: described.tokenizer_bytes,
        ..GenerationWorkload::new(cache, prompt)
    })
}

/// The dtypes that weights are held in.
pub fn casts(args: &DtypeArgs) -> Result<Casts, Failure> {
    let mut casts = Casts {
        dtype: match &args.dtype {
            Some(name) => Some(dtype("--dtype", name)?),
            None => None,
        },
        keep_in_f32: args.keep_in_fp32.clone(),
        ..Casts::default()
    };
    for part in &args.special_dtype {
        let Some((name, kind)) = part.rsplit_once('=') else {
            return Err(Failure::usage(format!("--special-dtype {part:?}: expected NAME=DTYPE")));
        };
        let kind = dtype("--special-dtype", kind)?;
        if casts.special.insert(name.to_string(), kind).is_some() {
            return Err(Failure::usage(format!("--special-dtype: {name:?} is given twice")));
        }
    }
    Ok(casts)
}

/// A type by its name here or in PyTorch.
fn dtype(flag: &str, name: &str) -> Result<WeightDtype, Failure> {
    let lower = name.trim().to_ascii_lowercase();
    let own = match lower.strip_prefix("torch.").unwrap_or(&lower) {
        "float64" | "double" => "f64",
        "float32" | "fp32" | "float" => "f32",
        "float16" | "fp16" | "half" => "f16",
        "bfloat16" => "bf16",
        "fp8" | "float8_e4m3fn" | "float8_e5m2" => "f8",
        "fp4" => "f4",
        "uint8" => "int8",
        other => other,
    };
    WeightDtype::ALL.into_iter().find(|dtype| dtype.name() == own).ok_or_else(|| {
        let known: Vec<_> = WeightDtype::ALL.iter().map(|dtype| dtype.name()).collect();
        Failure::usage(format!("{flag}: unknown dtype {name:?}; known are {}", known.join(", ")))
    })
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
