//! Opening a model as the arguments say.

use crate::args::{DraftArgs, ModelArgs, PlaceArgs, workload};
use crate::description::ModelDescription;
use crate::error::Failure;
use crate::hub::{self, Address, Wanted};
use crate::interrupt;
use crate::map_file;
use crate::views::output::{note_unknown, say};
use outsize::checkpoint::{model_folder, read_object, shown};
use outsize::core::{Planning, gpu};
use outsize::diffuse::{ImageModel, PipelineFiles, SingleFile};
use outsize::generate::{
    ConfigText, Described, EmbeddingRecipe, GenerationWorkload, OpenedModel, PipelineError,
    PipelineSettings, VisionEncoder, default_budget, describe, read_config,
};
use outsize::lora::ADAPTER_CONFIG;
use outsize::machine::{Machine, current_rss};
use outsize::models::{CacheOptions, ModelConfig, presets};
use outsize::plan::{Budget, Tier, format_size};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The most tokens to guess at once by default: products of so many rows and one take little longer
/// than of one alone.
const DRAFT_TOKENS: usize = 7;

/// Where a model to be run is: the path itself, the snapshot of a folder of the Hub's cache, or
/// that of a name on the Hub, downloaded if it is not in the cache.
///
/// # Errors
/// What a path that leads to no checkpoint is instead, and what to do; as [`hub::fetch`].
pub fn located(model: &Path, wanted: Wanted<'_>) -> Result<PathBuf, Failure> {
    let (shown, name) = (shown(&model.to_string_lossy(), 200), model.to_str());
    let usage = |what: String| Err(Failure::usage(format!("{shown} {what}")));
    let is_name = |name: &&str| presets::names().any(|preset| preset == *name);
    if model.is_dir() {
        let holds_one = model.join("config.json").exists() || PipelineFiles::is_at(model);
        return if holds_one { Ok(model.to_owned()) } else { within(model) };
    }
    if model.symlink_metadata().is_ok() {
        return Ok(model.to_owned());
    }
    if let Some(preset) = name.filter(is_name) {
        return usage(format!(
            "is a preset, which has no weights: make a checkpoint of random ones with `outsize synth {preset} FOLDER`, and run \
             that"
        ));
    }
    let on_hub = name.and_then(|name| name.strip_prefix("hf://"));
    if let Some(address) = on_hub.or(name).and_then(Address::parse) {
        if on_hub.is_none() && Path::new(&address.org).is_dir() {
            return Err(beside_folder(&shown, &address));
        }
        let settings = hub::HubSettings::from_env()?;
        return Ok(hub::cached_or_fetched(&settings, &address, wanted)?.folder);
    }
    usage(
        "does not exist: MODEL is the folder of a Hugging Face checkpoint, with config.json and weights, or a file of weights \
         beside a config.json"
            .into(),
    )
}

/// The checkpoint that a folder without a config.json leads to, or what the folder is.
fn within(folder: &Path) -> Result<PathBuf, Failure> {
    if let Ok(snapshots) = folder.join("snapshots").read_dir() {
        let snapshots: Vec<_> = snapshots.flatten().map(|entry| entry.path()).collect();
        let main = std::fs::read_to_string(folder.join("refs/main")).unwrap_or_default();
        let is_main = |path: &&PathBuf| path.file_name().is_some_and(|name| name == main.trim());
        return match (snapshots.iter().find(is_main), &snapshots[..]) {
            (Some(one), _) | (None, [one]) => Ok(one.clone()),
            (None, several) => Err(Failure::usage(format!(
                "{} is a folder of the Hub's cache with {} snapshots: name one of its snapshots/",
                folder.display(),
                several.len()
            ))),
        };
    }
    match is_adapter(folder) {
        true => Err(Failure::usage(an_adapter(folder))),
        // The error says what a folder needs.
        false => Ok(folder.to_owned()),
    }
}

/// Whether a folder holds an adapter and no model.
fn is_adapter(folder: &Path) -> bool {
    folder.join(ADAPTER_CONFIG).exists() && !folder.join("config.json").exists()
}

/// What the folder of an adapter is, and what to do with it.
fn an_adapter(folder: &Path) -> String {
    let config = read_object(&folder.join(ADAPTER_CONFIG)).ok().flatten().unwrap_or_default();
    let base = config.get("base_model_name_or_path").and_then(|base| base.as_str());
    let folder = shown(&folder.to_string_lossy(), 200);
    let base = base.filter(|base| !base.is_empty());
    let of = base.map_or_else(String::new, |base| format!(", {}", shown(base, 200)));
    format!("{folder} is an adapter of another model{of}: give that, and `--adapter {folder}`")
}

/// The configuration of the model in the folder. Unknown fields are mentioned: they may have meant
/// something.
pub fn config(args: &ModelArgs) -> Result<ModelConfig, Failure> {
    let folder = args.folder();
    if PipelineFiles::is_at(folder) && !folder.join("config.json").exists() {
        return Err(Failure::usage(format!(
            "{} holds a model that makes pictures: `outsize image` runs it",
            shown(&folder.to_string_lossy(), 200)
        )));
    }
    let config = read_config(folder).map_err(|error| for_embeddings(folder, error))?;
    note_unknown("config.json", &config.unknown_fields);
    let sees = VisionEncoder::model_types().any(|sees| sees == config.model_type());
    if config.is_part() && !(sees && args.model.is_dir()) {
        say(format!(
            "note: of this {} only the text part runs: it sees no images",
            config.model_type()
        ));
    }
    Ok(config)
}

/// What is wrong with the model in a folder, and what it is for if it is one of embeddings.
fn for_embeddings(folder: &Path, error: PipelineError) -> Failure {
    match Failure::from(error) {
        Failure::Failed(reason) if EmbeddingRecipe::is_in(folder) => {
            Failure::Failed(format!("{reason}; `outsize embed` makes vectors of texts with it"))
        }
        failure => failure,
    }
}

/// The model opened, with the adapter that is asked for.
pub fn opened(args: &ModelArgs, config: ModelConfig) -> Result<OpenedModel, Failure> {
    let model = OpenedModel::new(&args.model, config);
    let mut model = model.map_err(|error| for_embeddings(args.folder(), error))?;
    if let Some(adapter) = &args.adapter {
        model.adapt(&adapter_folder(adapter)?)?;
    }
    Ok(model)
}

/// Where an adapter is: the path itself, or the snapshot of a name on the Hub.
pub fn adapter_folder(path: &Path) -> Result<PathBuf, Failure> {
    let what =
        "the folder of adapter_config.json and adapter_model.safetensors, or a name on the Hub";
    adapter_at(path, path.to_str().unwrap_or_default(), Wanted::Adapter, what)
}

/// The same of an adapter of a model of pictures: `org/name/FILE` names one of several files on the
/// Hub.
pub fn picture_adapter(path: &Path) -> Result<PathBuf, Failure> {
    let what = "its .safetensors file, or org/name or org/name/FILE on the Hub";
    match file_on_hub(path) {
        Some((repository, file)) => {
            let found = adapter_at(path, repository, Wanted::File(file), what)?;
            Ok(if found == path { found } else { found.join(file) })
        }
        None => {
            let name = path.to_str().unwrap_or_default();
            adapter_at(path, name, Wanted::PictureAdapter, what)
        }
    }
}

/// A model of pictures: where a folder is or a file, the path itself, or of a name on the Hub,
/// `org/name`, `org/name:FILE` or `org/name/FILE`.
pub fn picture_model(path: &Path, variant: Option<&str>) -> Result<PathBuf, Failure> {
    let there = path.symlink_metadata().is_ok();
    match file_on_hub(path).filter(|_| !there) {
        Some((repository, file)) => {
            Ok(located(Path::new(repository), Wanted::File(file))?.join(file))
        }
        None => located(path, Wanted::Pictures(variant)),
    }
}

/// A repository on the Hub and a path in it, `org/name/FILE`.
fn file_on_hub(path: &Path) -> Option<(&str, &str)> {
    let name = path.to_str()?;
    let start = if name.starts_with("hf://") { "hf://".len() } else { 0 };
    let (slash, _) = name[start..].match_indices('/').nth(1)?;
    let (repository, file) = (&name[..start + slash], &name[start + slash + 1..]);
    Address::parse(&repository[start..]).map(|_| (repository, file))
}

/// The base of a checkpoint of a model of pictures in one file: that which is given, or the model
/// on the Hub that it is made of.
pub fn base_of(file: &SingleFile, base: Option<&Path>) -> Result<PathBuf, Failure> {
    let base = match base {
        Some(base) => base.to_owned(),
        None => PathBuf::from(format!("hf://{}", file.usual_base()?)),
    };
    located(&base, Wanted::PictureBase(&file.parts()))
}

/// An adapter at `path`, or by its name on the Hub.
fn adapter_at(path: &Path, name: &str, wanted: Wanted<'_>, what: &str) -> Result<PathBuf, Failure> {
    if path.symlink_metadata().is_ok() {
        return Ok(path.to_owned());
    }
    let on_hub = name.strip_prefix("hf://");
    let Some(address) = Address::parse(on_hub.unwrap_or(name)) else {
        let path = shown(&path.to_string_lossy(), 200);
        return Err(Failure::usage(format!("--adapter: {path} does not exist: give {what}")));
    };
    if on_hub.is_none() && Path::new(&address.org).is_dir() {
        return Err(beside_folder(&shown(name, 200), &address));
    }
    let settings = hub::HubSettings::from_env()?;
    Ok(hub::cached_or_fetched(&settings, &address, wanted)?.folder)
}

/// Describes a model without its weights, and of a model of pictures a variant, or a checkpoint in
/// one file with its base. `path` is a folder, a file, the name of a preset or of a model on the
/// Hub: an existing path wins, unless `hf://` is before the name.
pub fn described(
    path: &Path,
    variant: Option<&str>,
    base: Option<&Path>,
) -> Result<ModelDescription, Failure> {
    if base.is_some() && !path.is_file() {
        return Err(base_alone());
    }
    if path.is_file() {
        match SingleFile::open(path) {
            Ok(file) => {
                let model = ImageModel::open_file(&file, &base_of(&file, base)?)?;
                return Ok(ModelDescription::pictures(model, Vec::new()));
            }
            Err(error) if base.is_some() => return Err(error.into()),
            // It is a language model, or none.
            Err(_) => {}
        }
    }
    // What is not UTF-8 can only be a path.
    let model = &*path.to_string_lossy();
    let (name, on_hub) = match model.strip_prefix("hf://") {
        Some(name) => (name, true),
        None => (model, false),
    };
    // A link to nothing is a path too: the error says so.
    if !on_hub && PipelineFiles::is_at(path) {
        let model = ImageModel::open(path, variant)?;
        return Ok(ModelDescription::pictures(model, Vec::new()));
    }
    if !on_hub && is_adapter(path) {
        return Err(Failure::usage(an_adapter(path)));
    }
    if !on_hub && path.symlink_metadata().is_ok() {
        return Ok(ModelDescription::text(describe(path)?));
    }
    if let (false, Ok(text)) = (on_hub, presets::config(model)) {
        let config = ConfigText { path: path.to_owned(), bytes: text.as_bytes().to_vec() };
        return Ok(ModelDescription::text(Described::new(path, Some(config), None)?));
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
        return Err(beside_folder(&named, &address));
    }
    hub::describe_model(&hub::HubSettings::from_env()?, &address, variant)
}

/// What a base without a file is.
pub fn base_alone() -> Failure {
    Failure::usage("--base: only for a checkpoint in one file: leave it out".to_owned())
}

/// A slip in a path is no reason to tell the Hub.
fn beside_folder(named: &str, address: &Address) -> Failure {
    Failure::usage(format!(
        "{named}: no such file or folder; as {org}/ is a folder here, it is not taken for a model on the Hub: write \
         hf://{named} for that",
        org = address.org
    ))
}

/// Refuses a budget for GPUs that are not there, or not in this build.
pub fn check_gpus(budget: &Budget) -> Result<(), Failure> {
    for (tier, bytes) in budget.iter() {
        if let (Tier::Gpu(number), 1..) = (tier, bytes)
            && let Err(error) = gpu(number)
        {
            return Err(Failure::usage(format!("--max-memory: {error}")));
        }
    }
    Ok(())
}

/// Says on standard error if a budget of main memory is more than there is.
pub fn warn_of_excess(bytes: Option<u64>, machine: &Machine) {
    let (Some(bytes), Some(ram)) = (bytes, &machine.ram) else {
        return;
    };
    let cgroup = ram.cgroup.as_ref().map(|group| (group.limit, group.file.display().to_string()));
    let limits = [Some((ram.total.value, ram.total.source.clone())), cgroup];
    if let Some((most, source)) = limits.into_iter().flatten().min_by_key(|(most, _)| *most)
        && bytes > most
    {
        say(format!(
            "note: --max-memory cpu={} is more than the {} that this process can have ({source}): it may be killed before it \
             has so much",
            format_size(bytes),
            format_size(most),
        ));
    }
}

/// The budget that is asked for, or what this machine has.
pub fn max_memory(args: &ModelArgs, machine: &Machine) -> Budget {
    match &args.max_memory {
        Some(budget) => budget.clone(),
        None => default_budget(machine, current_rss().unwrap_or(0)),
    }
}

/// What a model is opened with as the arguments say: for a prompt of `prompt` tokens and a context
/// of `usual` tokens unless they say otherwise. The speed of the machine is not known yet.
pub fn settings(
    args: &ModelArgs,
    config: &ModelConfig,
    [prompt, usual]: [usize; 2],
    machine: &Machine,
) -> Result<PipelineSettings, Failure> {
    let max_memory = max_memory(args, machine);
    check_gpus(&max_memory)?;
    warn_of_excess(max_memory.get(Tier::Cpu), machine);
    let PlaceArgs { strategy, device_map, must_fit, reserve } = &args.places;
    let cache = CacheOptions {
        dtype: args.dtypes.kv_dtype,
        ..CacheOptions::new(workload::context(args.context, usual, Some(config))?)
    };
    Ok(PipelineSettings {
        max_memory,
        workload: GenerationWorkload {
            compute: args.dtypes.compute,
            ..GenerationWorkload::new(cache, prompt)
        },
        planning: Planning {
            strategy: *strategy,
            device_map: device_map.as_deref().map(map_file::read).transpose()?,
            reserve_bytes: *reserve,
            must_fit: *must_fit,
            ..Planning::default()
        },
        stop: Some(interrupt::flag()),
    })
}

/// Has tokens drafted as the arguments say: what drafts them is opened, and counted in `settings`.
pub fn draft(
    args: &DraftArgs,
    folder: &Path,
    model: &mut OpenedModel,
    settings: &mut PipelineSettings,
) -> Result<(), Failure> {
    let DraftArgs { draft_model, prompt_lookup, draft_tokens } = args;
    if draft_model.is_none() && !prompt_lookup {
        return match draft_tokens {
            Some(_) => Err(Failure::usage("--draft-tokens: give --draft-model or --prompt-lookup")),
            None => Ok(()),
        };
    }
    settings.workload.cache.draft_tokens = draft_tokens.unwrap_or(DRAFT_TOKENS);
    let Some(path) = draft_model else {
        return Ok(());
    };
    let path = located(path, Wanted::Text)?;
    let draft_folder = model_folder(&path);
    let draft = OpenedModel::new(&path, read_config(draft_folder)?)?;
    if tokenizer_bytes(folder) != tokenizer_bytes(draft_folder) {
        say(
            "note: the draft model has another tokenizer.json: if its tokens have other numbers, few guesses will be right",
        );
    }
    Ok(model.draft_with(draft)?)
}

/// The tokenizer.json in a folder, as a number that differs if the files do.
fn tokenizer_bytes(folder: &Path) -> Option<[u8; 32]> {
    let mut hash = Sha256::new();
    std::io::copy(&mut std::fs::File::open(folder.join("tokenizer.json")).ok()?, &mut hash).ok()?;
    Some(hash.finalize().into())
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
