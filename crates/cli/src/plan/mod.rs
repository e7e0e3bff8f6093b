//! `outsize plan`: where everything would live, and how fast that would be.

mod args;
mod purpose;
mod terminal;

pub use args::PlanArgs;

use crate::error::Failure;
use crate::run::print;
use outsize::checkpoint::write_file;
use outsize::generate::{ConfigText, Described, Planner, describe};
use outsize::machine::{Machine, complete_budget, detected_budget, read_figures};
use outsize::models::presets;
use outsize::plan::{Budget, Figures, ModelReport, Options, Planned, Report, infer};
use std::path::Path;

/// Runs the command.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let budget = match &args.max_memory {
        Some(text) => {
            Budget::parse(text).map_err(|error| Failure::usage(format!("--max-memory: {error}")))?
        }
        None => Budget::default(),
    };
    let placing = purpose::placing(&args.placing)?;
    refuse_to_replace(args)?;
    let described = described(&args.model)?;
    let asked = purpose::asked(&args.purpose, &described)?;
    let machine = Machine::detect();
    let (figures, figures_source) = figures(args, &machine)?;
    let held = outsize::machine::current_rss().unwrap_or(0);
    let detected = detected_budget(&machine, held);
    let full = complete_budget(&budget, &detected);
    let mut notes = described.notes.clone();
    notes.extend(purpose::notes(&described, &full, &figures));
    let model = model(&args.model, &described, args);
    let aliases = aliases(&described);
    let planner = Planner::new(described, asked.purpose(Options { figures, ..placing }));
    let (map, options) = planner.plan(&full, infer)?;
    let report = Report::new(
        Planned {
            tree: planner.tree(),
            map: &map,
            options: &options,
            model,
            strategy: None,
            aliases,
            detected: detected
                .iter()
                .map(|(tier, _)| *tier)
                .filter(|tier| budget.get(*tier).is_none())
                .collect(),
            figures_source,
            notes,
        },
        |budget| Ok(planner.plan(budget, infer)?.0),
    );
    write(args, &report)
}

/// Draws the plan where it is wanted.
fn write(args: &PlanArgs, report: &Report) -> Result<(), Failure> {
    if let Some(path) = &args.svg {
        write_file(path, report.svg().as_bytes())?;
        eprintln!("wrote {}", path.display());
    }
    match args.json {
        true => print(&format!("{}\n", serde_json::to_string(report)?)),
        false => print(&report.text(&terminal::style())),
    }
}

/// A file of the user's is replaced only if that was said. Found out before anything else is done.
fn refuse_to_replace(args: &PlanArgs) -> Result<(), Failure> {
    match &args.svg {
        Some(path) if path.exists() && !args.force => Err(Failure::usage(format!(
            "{} exists; give --force to replace it",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// The model in a folder or file, or of a preset's name.
fn described(path: &Path) -> Result<Described, Failure> {
    let preset = path.to_str().and_then(|name| presets::config(name).ok());
    match preset.filter(|_| !path.exists()) {
        Some(text) => {
            let config = ConfigText {
                path: path.to_owned(),
                bytes: text.as_bytes().to_vec(),
            };
            Ok(Described::new(path, Some(config), None)?)
        }
        None if !path.exists() => Err(Failure::usage(format!(
            "{} is neither a folder nor a file, nor a preset ({})",
            path.display(),
            presets::names().collect::<Vec<_>>().join(", ")
        ))),
        None => Ok(describe(path)?),
    }
}

/// The figures of this machine or of a file, and where they come from.
fn figures(args: &PlanArgs, machine: &Machine) -> Result<(Figures, String), Failure> {
    match &args.purpose.figures {
        Some(path) => {
            let figures = read_figures(path)
                .map_err(|error| Failure::usage(format!("--figures: {error}")))?;
            Ok((figures, format!("of {}", path.display())))
        }
        None => {
            let cache = crate::cache::folder().ok();
            let (figures, source) =
                outsize::machine::figures_for(machine, cache.as_deref(), &args.model);
            Ok((figures, source.note))
        }
    }
}

/// What is said of the model itself.
fn model(path: &Path, described: &Described, args: &PlanArgs) -> ModelReport {
    // `.` and `..` have no name of their own.
    let named = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = match named.file_name() {
        Some(file) if file == "config.json" => named.parent().and_then(Path::file_name),
        name => name,
    };
    let name = name.map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    );
    ModelReport {
        name,
        architecture: described.architecture.clone(),
        dtype: args.placing.dtype.clone(),
        kv_dtype: described
            .config
            .as_ref()
            .map(|_| purpose::kv_dtype(args.purpose.kv_dtype).name().to_string()),
        ..ModelReport::default()
    }
}

/// The names that a checkpoint's modules have for tensors which are there under another one: a tied head's weight.
fn aliases(described: &Described) -> Vec<(String, String)> {
    let blocks = described.config.iter().flat_map(|config| config.blocks());
    blocks
        .filter_map(|block| Some((format!("{}.weight", block.name), block.tied_to?)))
        .collect()
}
