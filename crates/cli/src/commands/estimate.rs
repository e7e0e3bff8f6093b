//! `outsize estimate`: the memory that a model needs, by the dtype of its weights.

use crate::args::{EstimateArgs, EstimateDtype};
use crate::error::Failure;
use crate::model;
use crate::views::estimate::{EstimateOutput, text};
use crate::views::output;
use outsize::generate::{Described, GenerationWorkload, SizeSource};
use outsize::models::{CacheOptions, KvCache, MAX_BATCH, MAX_CONTEXT, ModelConfig};
use outsize::plan::{Estimate, TensorKind, Tree, WeightDtype, estimate as estimate_tree};
use std::collections::BTreeMap;

/// The default context in tokens, unless the model's longest is less.
const CONTEXT: usize = 4096;

/// The largest plausible KV cache in bytes: sums of larger ones would overflow.
const MOST_OF_CACHE: u64 = 1 << 60;

/// Runs the command.
pub fn estimate(args: &EstimateArgs) -> Result<(), Failure> {
    check_batch(args)?;
    let described = model::described(&args.model)?;
    let report = report(args, described)?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    let width = console::Term::stdout().size_checked().map(|(_, width)| width);
    output::print(&text(&report, width.map(usize::from)))
}

fn check_batch(args: &EstimateArgs) -> Result<(), Failure> {
    match args.batch {
        1..=MAX_BATCH => Ok(()),
        batch => {
            Err(Failure::usage(format!("--batch {batch} is out of range: give 1 to {MAX_BATCH}")))
        }
    }
}

/// The context asked for, if the model can have it.
fn context(args: &EstimateArgs, config: &ModelConfig) -> Result<usize, Failure> {
    let most = config.cache().longest_context.min(MAX_CONTEXT);
    match args.context {
        None => Ok(CONTEXT.min(most)),
        Some(0) => Err(Failure::usage("--context 0 leaves no room for a token: give 1 or more")),
        Some(context) if context > most => Err(Failure::usage(format!(
            "--context {context} is more than the {most} tokens of the model's longest context"
        ))),
        Some(context) => Ok(context),
    }
}

fn report(args: &EstimateArgs, mut described: Described) -> Result<EstimateOutput, Failure> {
    let mut notes = std::mem::take(&mut described.notes);
    let mut passes = None;
    let mut running = None;
    if let Some(config) = &described.config {
        let cache = CacheOptions {
            batch: args.batch,
            dtype: args.kv_dtype.into(),
            ..CacheOptions::new(context(args, config)?)
        };
        if KvCache::bytes(config.cache(), &cache) > MOST_OF_CACHE {
            return Err(Failure::usage(format!(
                "the KV cache of {} sequences of {} tokens is implausibly large: lower --batch or --context",
                cache.batch, cache.context
            )));
        }
        // A prompt of the whole context.
        let workload = GenerationWorkload {
            compute: args.compute.into(),
            tokenizer: described.tokenizer_bytes,
            ..GenerationWorkload::new(cache, cache.context).for_model(config)
        };
        let cache = workload.cache;
        let of_both = workload.passes(config);
        // An encoder reads a prompt in one pass.
        let pass = of_both.longest.workload.chunk as usize;
        running = Some((cache.context, pass.max(cache.prompt)));
        passes = Some(of_both);
        described.set_cache(&cache);
    }
    let tree = &described.tree;
    let estimates: Vec<Estimate> = args
        .dtypes
        .iter()
        .map(|dtype| estimate_tree(tree, planned(*dtype), passes.as_ref()))
        .collect::<Result<_, _>>()?;
    notes.extend(explanations(&described, &estimates));
    let stored = estimate_tree(tree, None, None)?;
    let kv_dtype: outsize::models::KvDtype = args.kv_dtype.into();
    Ok(EstimateOutput {
        model: args.model.clone(),
        architecture: described.architecture.clone(),
        source: described.source.name(),
        parameters: stored.parameters,
        tensors: tree.blocks.iter().map(|block| block.tensors.len()).sum(),
        stored: by_type(tree),
        context: running.map(|(context, _)| context),
        batch: args.batch,
        kv_dtype: kv_dtype.name(),
        pass: running.map(|(_, pass)| pass),
        estimates,
        notes,
    })
}

fn planned(dtype: EstimateDtype) -> Option<WeightDtype> {
    Some(match dtype {
        EstimateDtype::Stored => return None,
        EstimateDtype::F64 => WeightDtype::F64,
        EstimateDtype::F32 => WeightDtype::F32,
        EstimateDtype::F16 => WeightDtype::F16,
        EstimateDtype::Bf16 => WeightDtype::Bf16,
        EstimateDtype::F8 => WeightDtype::F8,
        EstimateDtype::Int8 => WeightDtype::Int8,
        EstimateDtype::F4 => WeightDtype::F4,
        EstimateDtype::Int4 => WeightDtype::Int4,
        EstimateDtype::Int2 => WeightDtype::Int2,
    })
}

/// Bytes of tensors by the type that they are stored in.
fn by_type(tree: &Tree) -> BTreeMap<WeightDtype, u64> {
    let mut bytes: BTreeMap<WeightDtype, u64> = BTreeMap::new();
    for tensor in tree.blocks.iter().flat_map(|block| &block.tensors) {
        let sum = bytes.entry(tensor.dtype).or_default();
        *sum = sum.saturating_add(tensor.stored_bytes);
    }
    bytes
}

/// Notes on what the columns count.
fn explanations(described: &Described, estimates: &[Estimate]) -> Vec<String> {
    let mut notes = Vec::new();
    if described.config.is_none() {
        notes.push(match &described.architecture {
            Some(name) => format!(
                "KV cache and activations are unknown (the architecture {name} is not built in, or not as it is configured)"
            ),
            None => "KV cache and activations are unknown (there is no config.json that names the architecture)".to_owned(),
        });
    }
    if described.source == SizeSource::Headers {
        notes.push(
            "blocks are those that the tensors' names tell: the outermost numbered modules, and what is beside them".to_owned(),
        );
    }
    let small = |estimate: &Estimate| estimate.dtype.is_some_and(|dtype| dtype.bits() < 16);
    if estimates.iter().any(small) {
        notes.push(
            "types below 16 bits are for the matrices of the layers; embeddings, heads, norms and biases are counted as stored, \
             and scales of quantised groups are not counted. outsize cannot run these types yet"
                .to_owned(),
        );
    }
    let integers = described.tree.blocks.iter().flat_map(|block| &block.tensors).any(|tensor| {
        tensor.kind == TensorKind::Parameter && !tensor.dtype.is_float() && tensor.shape.len() >= 2
    });
    if integers {
        notes.push(
            "weights that are stored as integers (quantised) are counted as they are in every row, and several values in one \
             integer as one parameter"
                .to_owned(),
        );
    }
    notes
}
