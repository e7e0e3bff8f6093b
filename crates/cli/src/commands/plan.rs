//! `outsize plan`: the device map and the predicted speed.

use super::image;
use crate::args::values::model_and_values;
use crate::args::{PlanArgs, workload};
use crate::description::ModelDescription;
use crate::error::Failure;
use crate::views::output::{self, print, print_json, say};
use crate::views::plan::{ModelReport, PlanReport, Planned};
use crate::views::style;
use crate::{cache, map_file, model};
use outsize::checkpoint::write_file;
use outsize::generate::{Described, Planner};
use outsize::lora::LoraAdapter;
use outsize::machine::{Machine, complete_budget, detected_budget};
use outsize::plan::{Budget, Options, Tier, Tree, break_even_prompt};
use std::path::Path;

/// Runs the command.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let budget = args.max_memory.clone().unwrap_or_default();
    let casts = workload::casts(&args.dtypes)?;
    if let Some(file) = &args.svg {
        output::refuse_to_replace(file, args.force)?;
    }
    let (path, no_split) = model_and_values(&args.model, &args.no_split)?;
    if let Some(file) = &args.svg {
        output::refuse_to_overwrite(path, file)?;
    }
    let described = match model::described(path, args.variant.as_deref(), args.base.as_deref())? {
        ModelDescription::Text(described) => *described,
        ModelDescription::Pictures(described, notes) => {
            return image::plan(args, path, *described, notes);
        }
    };
    let mut request = workload::request(&args.workload, &described)?;
    if let Some(adapter) = &args.adapter {
        let config = described.config.as_ref().ok_or_else(|| {
            Failure::usage(
                "--adapter: the model's architecture is not built in, so nothing tells its layers",
            )
        })?;
        request.adapter = LoraAdapter::open(model::adapter_folder(adapter)?, config)?.memory();
    }
    let machine = Machine::detect();
    let given = args.workload.figures.as_deref();
    let (figures, figures_source) = cache::figures_of(given, path, &machine)?;
    let held = outsize::machine::current_rss().unwrap_or(0);
    let detected = detected_budget(&machine, held);
    let full = complete_budget(&budget, &detected);
    model::warn_of_excess(budget.get(Tier::Cpu), &machine);
    let mut notes = described.notes.clone();
    notes.extend(workload::notes(&described, &full, &figures));
    notes.extend(unmatched(&described.tree, no_split, &casts.keep_in_f32));
    let model = summary(&described, path, args);
    let options = Options {
        strategy: args.places.strategy,
        reserve: args.places.reserve,
        must_fit: args.places.must_fit,
        no_split: no_split.to_vec(),
        offload_buffers: args.offload_buffers,
        figures,
        ..Options::default()
    };
    let mut planner = Planner::new(described.tree, described.config, request, options);
    planner.cast(&casts)?;
    if let Some(path) = &args.places.device_map {
        planner.place_by(map_file::read(path)?);
    }
    let plan = planner.plan(&full)?;
    notes.extend(plan.warnings);
    notes.extend(break_evens(planner.tree(), &plan.options, &full));
    let planned = Planned {
        tree: planner.tree(),
        map: &plan.map,
        options: &plan.options,
        model,
        aliases: planner.aliases(),
        detected: detected
            .iter()
            .map(|(tier, _)| *tier)
            .filter(|tier| budget.get(*tier).is_none())
            .collect(),
        figures_source,
        notes,
    };
    let report = PlanReport::new(planned, |budget| Ok(planner.plan(budget)?.map));
    write(args, &report)
}

/// For each GPU, from which length of the prompt on it is worth copying to it what it does not
/// keep.
fn break_evens<'a>(
    tree: &'a Tree,
    options: &'a Options,
    budget: &'a Budget,
) -> impl Iterator<Item = String> + 'a {
    budget.iter().filter_map(|(tier, bytes)| {
        let Tier::Gpu(number) = tier else { return None };
        let least = break_even_prompt(tree, &options.figures, &options.workload, number);
        (bytes > 0).then(|| match least {
            Some(tokens) => format!(
                "weights that {tier} does not keep are worth copying to it for prompts of {tokens} tokens or more"
            ),
            None => format!("weights that {tier} does not keep are never worth copying to it"),
        })
    })
}

/// Notes on classes and patterns that match nothing in the model.
fn unmatched(tree: &Tree, no_split: &[String], keep_in_f32: &[String]) -> Vec<String> {
    let classes: Vec<_> =
        tree.blocks.iter().map(|block| &block.class).chain(tree.classes.values()).collect();
    let classes = no_split.iter().filter(|class| !classes.contains(class));
    let classes = classes.map(|class| ("--no-split", class));
    let names: Vec<_> = tree.tensors().map(|tensor| format!(".{}.", tensor.name)).collect();
    let matches = |pattern: &str| names.iter().any(|name| name.contains(&format!(".{pattern}.")));
    let patterns = keep_in_f32.iter().filter(|pattern| !matches(pattern));
    let patterns = patterns.map(|pattern| ("--keep-in-fp32", pattern));
    let note = |(flag, value)| format!("{flag} {value:?} matches nothing in this model");
    classes.chain(patterns).map(note).collect()
}

/// Writes the plan as JSON, text or SVG.
fn write(args: &PlanArgs, report: &PlanReport) -> Result<(), Failure> {
    if let Some(path) = &args.svg {
        write_file(path, report.svg().as_bytes())?;
        say(format!("wrote {}", path.display()));
    }
    match args.json {
        true => print_json(report),
        false => print(&report.text(&style::style())),
    }
}

/// The model's part of the report.
fn summary(described: &Described, path: &Path, args: &PlanArgs) -> ModelReport {
    // `.` and `..` have no name of their own.
    let named = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = match named.file_name() {
        Some(file) if file == "config.json" => named.parent().and_then(Path::file_name),
        name => name,
    };
    let name =
        name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    ModelReport {
        name,
        architecture: described.architecture.clone(),
        dtype: args.dtypes.dtype.map(|dtype| dtype.to_string()),
        kv_dtype: described.config.as_ref().map(|_| args.workload.dtypes.kv_dtype.to_string()),
        ..ModelReport::default()
    }
}
