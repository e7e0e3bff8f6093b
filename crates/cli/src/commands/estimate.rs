//! `outsize estimate`: the memory that a model needs, by the dtype of its weights.

use super::image;
use crate::args::values::{estimated_dtype, model_and_values};
use crate::args::{EstimateArgs, workload};
use crate::description::ModelDescription;
use crate::error::Failure;
use crate::model;
use crate::views::estimate::{EstimateOutput, text};
use crate::views::output;
use crate::views::plan::stored_bytes;
use outsize::core::many_parameters_bytes;
use outsize::generate::{Described, SizeSource};
use outsize::models::KvCache;
use outsize::plan::{Estimate, TensorKind, WeightDtype, estimate as estimate_tree};
use std::path::Path;

/// The default context in tokens, unless the model's longest is less.
const CONTEXT: usize = 4096;

/// The largest plausible KV cache in bytes: sums of larger ones would overflow.
const MOST_OF_CACHE: u64 = 1 << 60;

/// Runs the command.
pub fn estimate(args: &EstimateArgs) -> Result<(), Failure> {
    let (model, dtypes) = model_and_values(&args.model, &args.dtypes)?;
    let dtypes = dtypes.iter().map(|name| {
        estimated_dtype(name).map_err(|error| Failure::usage(format!("--dtypes {name}: {error}")))
    });
    let dtypes = dtypes.collect::<Result<Vec<_>, _>>()?;
    let described = match model::described(model, args.variant.as_deref(), args.base.as_deref())? {
        ModelDescription::Text(described) => *described,
        ModelDescription::Pictures(described, notes) => {
            return image::estimate(args, model, &described, notes);
        }
    };
    let report = report(args, model, &dtypes, described)?;
    if args.json {
        return output::print_json(&report);
    }
    let width = console::Term::stdout().size_checked().map(|(_, width)| width.into());
    output::print(&text(&report, width))
}

fn report(
    args: &EstimateArgs,
    model: &Path,
    dtypes: &[Option<WeightDtype>],
    mut described: Described,
) -> Result<EstimateOutput, Failure> {
    let mut notes = std::mem::take(&mut described.notes);
    let mut passes = None;
    let mut running = None;
    if let Some(config) = &described.config {
        let usual = CONTEXT.min(workload::longest(Some(config)));
        let context = workload::context(args.context, usual, Some(config))?;
        // A prompt of the whole context.
        let sizes = [args.batch, context, context];
        let mut workload =
            workload::generation(&args.run_dtypes, sizes, &described).for_model(config);
        workload.process += many_parameters_bytes(&described.tree);
        let cache = workload.cache;
        if KvCache::bytes(config.cache(), &cache) > MOST_OF_CACHE {
            return Err(Failure::usage(format!(
                "the KV cache of {} sequences of {} tokens is implausibly large: lower --batch or --context",
                cache.batch, cache.context
            )));
        }
        let of_both = workload.passes(config);
        // An encoder reads a prompt in one pass.
        let pass = of_both.longest.workload.chunk as usize;
        running = Some((cache.context, pass.max(cache.prompt)));
        passes = Some(of_both);
        described.set_cache(&cache);
    }
    let tree = &described.tree;
    let estimates: Vec<Estimate> = dtypes
        .iter()
        .map(|dtype| estimate_tree(tree, *dtype, passes.as_ref()))
        .collect::<Result<_, _>>()?;
    notes.extend(explanations(&described, &estimates));
    let stored = estimate_tree(tree, None, None)?;
    Ok(EstimateOutput {
        model: model.display().to_string(),
        architecture: described.architecture.clone(),
        source: described.source.name(),
        parameters: stored.parameters,
        experts: tree.routed(),
        tensors: tree.blocks.iter().map(|block| block.tensors.len()).sum(),
        stored: stored_bytes(tree),
        context: running.map(|(context, _)| context),
        batch: args.batch,
        kv_dtype: args.run_dtypes.kv_dtype.name(),
        pass: running.map(|(_, pass)| pass),
        estimates,
        notes,
    })
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
             and scales of quantised groups are not counted. outsize runs such weights where a checkpoint stores them"
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
