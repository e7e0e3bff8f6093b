//! `outsize list`: the models in the Hub's cache, and what of them runs here.

use crate::args::{JsonArgs, workload};
use crate::cache;
use crate::error::Failure;
use crate::hub::{Address, HubSettings, Snapshot, entries, snapshots};
use crate::views::list::{ListOutput, ListedModel};
use crate::views::output::{print, print_json};
use crate::views::style::style;
use outsize::core::Planning;
use outsize::diffuse::{ImageModel, ImageSettings, PipelineFiles};
use outsize::generate::{
    Described, GenerationWorkload, Planner, SizeSource, default_budget, describe,
};
use outsize::machine::{Machine, current_rss};
use outsize::models::CacheOptions;
use outsize::plan::{Budget, Options, Tier, predict};
use std::path::Path;

/// Tokens of the context that models are planned for, and of the prompt in it.
const CONTEXT: usize = 4096;
const PROMPT: usize = 256;

/// Runs the command.
pub fn list(args: &JsonArgs) -> Result<(), Failure> {
    let settings = HubSettings::from_env()?;
    let machine = Machine::detect();
    let budget = default_budget(&machine, current_rss().unwrap_or(0));
    let models = snapshots(&settings)
        .into_iter()
        .map(|(address, snapshot)| listed(&address, &snapshot, &machine, &budget))
        .collect();
    let output = ListOutput {
        cache: settings.cache.path().clone(),
        context: CONTEXT,
        max_memory: budget.get(Tier::Cpu),
        models,
    };
    match args.json {
        true => print_json(&output),
        false => print(&output.text(style().width)),
    }
}

fn listed(
    address: &Address,
    snapshot: &Snapshot,
    machine: &Machine,
    budget: &Budget,
) -> ListedModel {
    let mut listed = ListedModel {
        model: address.to_string(),
        commit: snapshot.commit.clone(),
        folder: snapshot.folder.clone(),
        bytes: snapshot.files().iter().map(|path| bytes_in(path)).sum(),
        architecture: None,
        streamed_bytes: None,
        seconds_per_token: None,
        seconds_per_picture: None,
        problem: None,
    };
    if PipelineFiles::is_at(&snapshot.folder) {
        let files = PipelineFiles::open(&snapshot.folder, None).ok();
        listed.architecture = files.map(|files| files.kind.class_name().to_owned());
        match plan_pictures(&snapshot.folder, machine, budget) {
            Ok((streamed, seconds)) => {
                (listed.streamed_bytes, listed.seconds_per_picture) =
                    (Some(streamed), Some(seconds));
            }
            Err(error) => listed.problem = Some(error.to_string()),
        }
        return listed;
    }
    let planned = describe(&snapshot.folder).map_err(Failure::from).and_then(|described| {
        listed.architecture = described.architecture.clone();
        plan(described, &snapshot.folder, machine, budget)
    });
    match planned {
        Ok((streamed, seconds)) => {
            (listed.streamed_bytes, listed.seconds_per_token) = (Some(streamed), Some(seconds));
        }
        Err(Failure::Usage(said) | Failure::Failed(said)) => listed.problem = Some(said),
        Err(_) => {}
    }
    listed
}

/// Bytes that each pass streams, and the seconds that a token is predicted to take.
fn plan(
    described: Described,
    folder: &Path,
    machine: &Machine,
    budget: &Budget,
) -> Result<(u64, f64), Failure> {
    let refuse = |what: &str| Err(Failure::Failed(what.to_owned()));
    match (&described.config, described.source) {
        (_, SizeSource::Config) => {
            return refuse("its weights are not here: download them with `outsize fetch`");
        }
        (None, _) => return refuse("its architecture is not built in, or not as it is configured"),
        (Some(_), SizeSource::Headers) => {
            return refuse("its weights are not those of its config.json");
        }
        (Some(_), SizeSource::Both) => {}
    }
    let context = CONTEXT.min(workload::longest(described.config.as_ref()));
    let workload = GenerationWorkload {
        tokenizer: described.tokenizer_bytes,
        ..GenerationWorkload::new(CacheOptions::new(context), PROMPT.min(context))
    };
    let (figures, _) = cache::figures(machine, folder);
    let options = Options { figures, ..Options::default() };
    let planner = Planner::new(described.tree, described.config, workload, options);
    let plan = planner.plan(budget)?;
    let options = &plan.options;
    let prediction = predict(planner.tree(), &plan.map, &options.figures, &options.workload);
    Ok((plan.map.streamed_bytes(), prediction.decode.seconds))
}

/// Bytes that each pass of the denoiser streams, and the seconds that a picture is predicted to
/// take.
fn plan_pictures(
    folder: &Path,
    machine: &Machine,
    budget: &Budget,
) -> Result<(u64, f64), outsize::diffuse::Error> {
    let model = ImageModel::open(folder, None)?;
    let request = model.usual_request();
    let (figures, _) = cache::figures(machine, folder);
    let planning = Planning { figures, ..Planning::default() };
    let settings = ImageSettings { planning, ..ImageSettings::new(budget.clone()) };
    let plans = model.plan(&settings, &request)?;
    // The autoencoder comes behind the denoiser.
    let streamed = plans.iter().nth_back(1).map_or(0, |plan| plan.map.streamed_bytes());
    Ok((streamed, model.predict(&plans, &request)?.seconds))
}

/// Bytes of a file, or of all files in a folder and in those within.
fn bytes_in(path: &Path) -> u64 {
    match path.metadata() {
        Ok(found) if found.is_dir() => entries(path).iter().map(|path| bytes_in(path)).sum(),
        found => found.map_or(0, |found| found.len()),
    }
}
