//! Opening a model as the arguments say.

use crate::args::{self, ModelArgs, PlaceArgs};
use crate::cache;
use crate::error::Failure;
use crate::hub::{self, Address};
use crate::interrupt;
use crate::map_file;
use outsize::checkpoint::shown;
use outsize::core::Planning;
use outsize::generate::{
    ConfigText, Described, Pipeline, PipelineSettings, Step, describe, read_config,
};
use outsize::machine::{Machine, Provenance, current_rss, detected_budget};
use outsize::models::{Logits, ModelConfig, WhenFull, presets};
use outsize::plan::{Budget, Tier, Workload};
use std::path::Path;

/// The configuration of the model in the folder. Unknown fields are mentioned: they may have meant
/// something.
pub fn config(args: &ModelArgs) -> Result<ModelConfig, Failure> {
    if !args.model.is_dir() {
        return Err(Failure::usage(format!(
            "{} is not a folder: MODEL is the folder of a Hugging Face checkpoint, with config.json and weights",
            args.model.display()
        )));
    }
    let config = read_config(&args.model)?;
    if !config.unknown_fields.is_empty() {
        eprintln!(
            "note: config.json has unknown fields, which are ignored: {}",
            config.unknown_fields.join(", ")
        );
    }
    Ok(config)
}

/// Describes a model without its weights. `model` is a folder, a file, the name of a preset or of a
/// model on the Hub: an existing path wins, unless `hf://` is before the name.
pub fn described(model: &str) -> Result<Described, Failure> {
    let path = Path::new(model);
    let (name, on_hub) = match model.strip_prefix("hf://") {
        Some(name) => (name, true),
        None => (model, false),
    };
    // A link to nothing is a path too: the error says so.
    if !on_hub && path.symlink_metadata().is_ok() {
        return Ok(describe(path)?);
    }
    if let (false, Ok(text)) = (on_hub, presets::config(model)) {
        let config = ConfigText { path: path.to_owned(), bytes: text.as_bytes().to_vec() };
        return Ok(Described::new(path, Some(config), None)?);
    }
    let named = shown(model, 200);
    let Some(address) = Address::parse(name) else {
        return Err(Failure::usage(format!(
            "{}: no such file or folder; MODEL is a checkpoint's folder, a config.json, a model on the Hub as org/name[@revision], or a \
             preset ({})",
            named,
            presets::names().collect::<Vec<_>>().join(", ")
        )));
    };
    if !on_hub && Path::new(&address.org).is_dir() {
        return Err(Failure::usage(format!(
            "{named}: no such file or folder; as {org}/ is a folder here, it is not taken for a model on the Hub: write \
             hf://{named} for that",
            org = address.org
        )));
    }
    Ok(hub::describe_model(&hub::HubSettings::from_env()?, &address)?)
}

/// The budget of main memory if none is given: most of what is free, and the `held` bytes that this
/// process has already.
pub fn default_budget(machine: &Machine, held: u64) -> Budget {
    let mut budget = Budget::default();
    for (tier, share) in detected_budget(machine, held) {
        if tier == Tier::Cpu {
            budget.set(tier, share.value);
        }
    }
    budget
}

/// How weights are placed, and the provenance of the hardware profile. `position` is that of
/// a token in the middle of the answer.
pub fn planning(
    args: &ModelArgs,
    position: usize,
    machine: &Machine,
) -> Result<(Planning, Provenance), Failure> {
    let PlaceArgs { strategy, device_map, must_fit, .. } = &args.places;
    let (figures, provenance) = cache::figures(machine, &args.model);
    let planning = Planning {
        strategy: (*strategy).into(),
        device_map: device_map.as_deref().map(map_file::read).transpose()?,
        reserve_bytes: args.places.reserve_bytes()?,
        must_fit: *must_fit,
        figures,
        workload: Workload { position: position as u64, ..Workload::default() },
    };
    Ok((planning, provenance))
}

/// What a model is opened for.
#[derive(Debug, Clone, Copy)]
pub struct DispatchRequest {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens in all, unless the arguments say otherwise.
    pub context: usize,
    /// Which positions need logits.
    pub logits: Logits,
    /// What happens to a text that is longer than the context.
    pub when_full: WhenFull,
    /// What the tokenizer takes, in bytes.
    pub tokenizer: u64,
}

/// Opens the model.
pub fn open(
    args: &ModelArgs,
    config: ModelConfig,
    purpose: DispatchRequest,
    planning: Planning,
    machine: &Machine,
    observe: impl FnMut(Step<'_>),
) -> Result<Pipeline, Failure> {
    let settings = PipelineSettings {
        planning,
        max_memory: match &args.max_memory {
            Some(text) => args::budget(text)?,
            None => default_budget(machine, current_rss().unwrap_or(0)),
        },
        context: args.context.unwrap_or(purpose.context),
        prompt: purpose.prompt,
        logits: purpose.logits,
        kv_dtype: args.kv_dtype.into(),
        compute: args.compute.into(),
        when_full: purpose.when_full,
        tokenizer: purpose.tokenizer,
        stop: Some(interrupt::flag()),
    };
    Ok(Pipeline::open(&args.model, config, &settings, observe)?)
}

/// Token ids written as `1,2,3` after `flag`.
pub fn ids(flag: &str, text: &str, config: &ModelConfig) -> Result<Vec<u32>, Failure> {
    let token = |part: &str| {
        let id = part.trim().parse().map_err(|_| {
            Failure::usage(format!(
                "{flag}: {part:?} is not a token id; write numbers separated by commas, such as 1,2,3"
            ))
        })?;
        self::id(flag, id, config)
    };
    text.split(',').map(token).collect()
}

/// The same id, if the model has it.
pub fn id(flag: &str, id: u32, config: &ModelConfig) -> Result<u32, Failure> {
    if id as usize >= config.vocab_size() {
        return Err(Failure::usage(format!(
            "{flag}: {id} is not a token of this model, which has {}",
            config.vocab_size()
        )));
    }
    Ok(id)
}
