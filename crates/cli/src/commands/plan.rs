//! `outsize plan`: the device map and the predicted speed.

use crate::args::{self, PlanArgs, workload};
use crate::error::Failure;
use crate::views::output::{self, print};
use crate::views::plan::{ModelReport, PlanReport, Planned};
use crate::views::style;
use crate::{cache, map_file, model};
use outsize::checkpoint::write_file;
use outsize::generate::{Described, Planner};
use outsize::machine::{Machine, complete_budget, detected_budget, read_figures};
use outsize::models::KvDtype;
use outsize::plan::{Budget, HardwareProfile, Options};
use std::path::Path;

/// Runs the command.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let budget = match &args.max_memory {
        Some(text) => args::budget(text)?,
        None => Budget::default(),
    };
    let options = workload::options(args)?;
    let casts = workload::casts(&args.dtypes)?;
    if let Some(path) = &args.svg {
        output::refuse_to_replace(path, args.force)?;
    }
    let described = model::described(&args.model)?;
    let request = workload::request(&args.workload, &described)?;
    let machine = Machine::detect();
    let (figures, figures_source) = figures(args, &machine)?;
    let held = outsize::machine::current_rss().unwrap_or(0);
    let detected = detected_budget(&machine, held);
    let full = complete_budget(&budget, &detected);
    model::warn_of_excess(&budget, &machine);
    let mut notes = described.notes.clone();
    notes.extend(workload::notes(&described, &full, &figures));
    let model = summary(&described, args);
    let options = Options { figures, ..options };
    let mut planner = Planner::new(described.tree, described.config, request, options);
    planner.cast(&casts)?;
    if let Some(path) = &args.places.device_map {
        planner.place_by(map_file::read(path)?);
    }
    let plan = planner.plan(&full)?;
    notes.extend(plan.warnings);
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

/// Writes the plan as JSON, text or SVG.
fn write(args: &PlanArgs, report: &PlanReport) -> Result<(), Failure> {
    if let Some(path) = &args.svg {
        write_file(path, report.svg().as_bytes())?;
        eprintln!("wrote {}", path.display());
    }
    match args.json {
        true => print(&format!("{}\n", serde_json::to_string(report)?)),
        false => print(&report.text(&style::style())),
    }
}

/// The hardware profile of this machine or of a file, and where it comes from.
fn figures(args: &PlanArgs, machine: &Machine) -> Result<(HardwareProfile, String), Failure> {
    match &args.workload.figures {
        Some(path) => {
            let figures = read_figures(path)
                .map_err(|error| Failure::usage(format!("--figures: {error}")))?;
            Ok((figures, format!("of {}", path.display())))
        }
        None => {
            let (figures, source) = cache::figures(machine, Path::new(&args.model));
            Ok((figures, source.note))
        }
    }
}

/// The model's part of the report.
fn summary(described: &Described, args: &PlanArgs) -> ModelReport {
    let path = Path::new(&args.model);
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
        dtype: args.dtypes.dtype.clone(),
        kv_dtype: described
            .config
            .as_ref()
            .map(|_| KvDtype::from(args.workload.kv_dtype).name().to_string()),
        ..ModelReport::default()
    }
}
