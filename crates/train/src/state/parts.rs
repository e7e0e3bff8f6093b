//! The parts of a run, written to a folder and read from it.

use std::fmt;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::Device;

use super::fault::StateFault;
use super::manifest::{FORMAT, FileSum, Manifest, sums};
use super::model::{Commit, ModelPart};
use super::object::Objects;
use super::optimizer::Identities;
use super::rank::{NamedParameters, RankState};
use super::{optimizer, part, scheduler};
use crate::data::{LoaderState, ShardedLoader};
use crate::{AcceleratedOptimizer, AcceleratedScheduler, LossScaler};

/// More than one registered object takes.
const MAX_OBJECT: u64 = 1 << 32;

/// What belongs to a run: the same parts in the same order to save and to load.
///
/// Models that an optimizer trains come in the same call as the optimizer.
#[derive(Default)]
#[must_use = "it is saved or loaded by an accelerator"]
pub struct TrainingState<'a> {
    models: Vec<Box<dyn ModelPart<'a> + 'a>>,
    optimizers: Vec<&'a mut AcceleratedOptimizer>,
    schedulers: Vec<&'a mut AcceleratedScheduler>,
    loaders: Vec<Box<dyn LoaderPosition + 'a>>,
}

impl<'a> TrainingState<'a> {
    /// No parts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a model.
    pub fn model<M: Module>(mut self, model: &'a mut M) -> Self {
        self.models.push(Box::new(model));
        self
    }

    /// Adds an optimizer.
    pub fn optimizer(mut self, optimizer: &'a mut AcceleratedOptimizer) -> Self {
        self.optimizers.push(optimizer);
        self
    }

    /// Adds a learning rate scheduler.
    pub fn scheduler(mut self, scheduler: &'a mut AcceleratedScheduler) -> Self {
        self.schedulers.push(scheduler);
        self
    }

    /// Adds where a loader is. Its next iteration goes on there, even in the middle of an epoch.
    pub fn data_loader<O: Send + 'static>(mut self, loader: &'a ShardedLoader<O>) -> Self {
        self.loaders.push(Box::new(loader));
        self
    }
}

/// A loader of any type.
trait LoaderPosition {
    fn state(&self) -> LoaderState;
    fn load_state(&self, state: LoaderState);
    fn items_per_batch(&self) -> usize;
}

impl<O: Send + 'static> LoaderPosition for &ShardedLoader<O> {
    fn state(&self) -> LoaderState {
        ShardedLoader::state(self)
    }

    fn load_state(&self, state: LoaderState) {
        ShardedLoader::load_state(self, state);
    }

    fn items_per_batch(&self) -> usize {
        ShardedLoader::items_per_batch(self)
    }
}

/// What the accelerator knows of the run.
pub(crate) struct Run<'r> {
    pub rank: usize,
    pub ranks: usize,
    pub seed: Option<u64>,
    pub device: Device,
    pub scaler: Option<LossScaler>,
    pub objects: &'r Objects,
}

/// What was loaded and where a run goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedState {
    /// The folder of the state.
    pub folder: PathBuf,
    /// Batches that each rank had taken when it was saved.
    pub batches_taken: u64,
    /// How often a launcher has started the job again.
    pub restarts: u64,
    /// What is not as it was saved, such as the number of ranks.
    pub notes: Vec<String>,
}

impl fmt::Display for LoadedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, batches_taken, restarts, notes } = self;
        write!(f, "going on from {} after {batches_taken} batches", folder.display())?;
        if *restarts > 0 {
            write!(f, " (restart {restarts})")?;
        }
        notes.iter().try_for_each(|note| write!(f, "\n  {note}"))
    }
}

/// All of a state, read and not yet in its place.
pub(crate) struct StagedState<'a> {
    pub commits: Vec<Commit<'a>>,
    pub rank: RankState,
    pub scaler: Option<LossScaler>,
    pub notes: Vec<String>,
}

impl<'a> TrainingState<'a> {
    /// What the state's manifest says before files are added; `state` is rank 0's.
    pub(crate) fn manifest(&self, run: &Run<'_>, state: &RankState) -> Manifest {
        Manifest {
            format: FORMAT,
            ranks: run.ranks,
            seed: run.seed,
            batches_taken: state.batches_taken,
            models: self
                .models
                .iter()
                .map(|model| {
                    model.identities().into_iter().map(|(path, id)| (path, id.val())).collect()
                })
                .collect(),
            optimizers: self.optimizers.len(),
            schedulers: self.schedulers.len(),
            loaders: self.loaders.iter().map(|loader| loader.items_per_batch()).collect(),
            has_scaler: run.scaler.is_some(),
            objects: run.objects.names(),
            files: Vec::new(),
        }
    }

    /// Writes what this rank writes of a state.
    pub(crate) fn write(
        &self,
        run: &Run<'_>,
        mut own: RankState,
        folder: &Path,
    ) -> Result<Vec<FileSum>, StateFault> {
        own.loaders = self.loaders.iter().map(|loader| loader.state()).collect();
        let models = self.models.iter().enumerate();
        let names = models.flat_map(|(index, model)| {
            let identities = model.identities().into_iter();
            identities.map(move |(path, id)| (id, parameter_name(index, &path)))
        });
        let mut files = own.write(folder, &rank_name(run.rank), &names.collect())?;
        if run.rank == 0 {
            files.extend(self.write_shared(run, folder)?);
        }
        sums(folder, &files)
    }

    fn write_shared(&self, run: &Run<'_>, folder: &Path) -> Result<Vec<String>, StateFault> {
        let mut files = Vec::new();
        for (index, model) in self.models.iter().enumerate() {
            let name = part("model", index);
            model.write(&folder.join(&name))?;
            files.push(name);
        }
        for (index, optimizer) in self.optimizers.iter().enumerate() {
            let name = part("optimizer", index) + ".bpk";
            optimizer::write(optimizer.inner(), &folder.join(&name))?;
            files.push(name);
        }
        for (index, scheduler) in self.schedulers.iter().enumerate() {
            let name = part("scheduler", index) + ".bpk";
            scheduler::write(scheduler.inner(), &folder.join(&name))?;
            files.push(name);
        }
        let objects = run.objects.encode();
        let objects =
            objects.map_err(|fault| StateFault::mismatch("a registered object", fault))?;
        for (index, bytes) in objects.into_iter().enumerate() {
            let name = object_name(index);
            outsize_checkpoint::write_file(folder.join(&name), &bytes)?;
            files.push(name);
        }
        if let Some(scaler) = &run.scaler {
            let bytes = rmp_serde::to_vec_named(scaler);
            let bytes = bytes.map_err(|fault| StateFault::mismatch(SCALER, fault))?;
            outsize_checkpoint::write_file(folder.join(SCALER), &bytes)?;
            files.push(SCALER.to_owned());
        }
        Ok(files)
    }

    /// Reads all parts of a state; changes nothing.
    pub(crate) fn read(
        self,
        run: &Run<'_>,
        folder: &Path,
    ) -> Result<(Manifest, StagedState<'a>), StateFault> {
        let manifest = Manifest::read(folder)?;
        has("models", manifest.models.len(), self.models.len())?;
        has("optimizers", manifest.optimizers, self.optimizers.len())?;
        has("schedulers", manifest.schedulers, self.schedulers.len())?;
        has("data loaders", manifest.loaders.len(), self.loaders.len())?;

        let (mut identities, mut commits) = (Identities::new(), Vec::new());
        let mut parameters = NamedParameters::new();
        for (index, model) in self.models.into_iter().enumerate() {
            let (loaded, commit) = model.read(&folder.join(part("model", index)))?;
            commits.push(commit);
            for (path, id, shape) in loaded {
                let saved = manifest.models[index].get(&path).ok_or_else(|| {
                    StateFault::damaged("state.json", format!("it lacks the parameter `{path}`"))
                })?;
                identities.insert(*saved, (id.val(), shape.clone()));
                parameters.insert(parameter_name(index, &path), (id, shape));
            }
        }
        for (index, optimizer) in self.optimizers.into_iter().enumerate() {
            let path = folder.join(part("optimizer", index) + ".bpk");
            let loaded = optimizer::read(optimizer.inner().clone(), &path, &identities)?;
            commits.push(Box::new(move || *optimizer.inner_mut() = loaded));
        }
        for (index, scheduler) in self.schedulers.into_iter().enumerate() {
            let path = folder.join(part("scheduler", index) + ".bpk");
            let loaded = scheduler::read(scheduler.inner().clone(), &path)?;
            commits.push(Box::new(move || *scheduler.inner_mut() = loaded));
        }
        for name in run.objects.names() {
            let index = manifest.objects.iter().position(|other| *other == name);
            let index = index.ok_or_else(|| {
                let what = format!("no object {name:?} was registered when it was saved");
                StateFault::mismatch("state.json", what)
            })?;
            let file = object_name(index);
            let bytes = read_small(folder, &file)?;
            let commit = run.objects.decode(&name, &bytes);
            let mismatch = |fault| StateFault::mismatch(file, format!("object {name:?}: {fault}"));
            commits.push(commit.map_err(mismatch)?);
        }
        let scaler = match manifest.has_scaler && run.scaler.is_some() {
            true => Some(
                rmp_serde::from_slice(&read_small(folder, SCALER)?)
                    .map_err(|fault| StateFault::damaged(SCALER, fault))?,
            ),
            false => None,
        };

        let same_ranks = manifest.ranks == run.ranks;
        let same_scale = manifest.has_scaler == run.scaler.is_some();
        let name = rank_name(if same_ranks { run.rank } else { 0 });
        let mut rank = RankState::read(folder, &name, &parameters, &run.device)?;
        let mut notes = notes(&manifest, run);
        // Accumulated gradients are of the scale of their losses.
        if (!same_ranks || !same_scale) && !rank.sync_gradients {
            notes.push(format!(
                "it was saved in the middle of a step: its {} micro-batches are left out",
                rank.micro_batches
            ));
            let RankState { loaders, batches_taken, .. } = rank;
            rank = RankState { loaders, batches_taken, sync_gradients: true, ..Default::default() };
        }
        for (index, loader) in self.loaders.into_iter().enumerate() {
            let mut state = rank.loaders.get(index).copied().unwrap_or_default();
            let (before, now) = (manifest.loaders[index], loader.items_per_batch());
            if before != now && state.batch > 0 {
                let items = state.batch.saturating_mul(before);
                state.batch = items / now;
                notes.push(format!(
                    "a batch of all ranks had {before} items and has {now}: data loader {index} goes on at \
                     item {} of its epoch, of {items} that were taken",
                    state.batch * now
                ));
            }
            commits.push(Box::new(move || loader.load_state(state)));
        }
        Ok((manifest, StagedState { commits, rank, scaler, notes }))
    }
}

/// What a run cannot take over, in words.
fn notes(manifest: &Manifest, run: &Run<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if manifest.ranks != run.ranks {
        notes.push(format!(
            "it was saved by {} ranks and is loaded by {}: the run goes on, but not bit for bit",
            manifest.ranks, run.ranks
        ));
    }
    if manifest.seed != run.seed {
        notes.push(format!(
            "it was saved with the seed {:?} and this run has {:?}: random operations will differ",
            manifest.seed, run.seed
        ));
    }
    if manifest.has_scaler != run.scaler.is_some() {
        notes.push("the scale of the loss is not taken over: only one of the runs has one".into());
    }
    notes
}

const SCALER: &str = "scaler.msgpack";

fn rank_name(rank: usize) -> String {
    format!("rank_{rank}")
}

/// The name of a parameter among those of all models.
fn parameter_name(model: usize, path: &str) -> String {
    format!("{}/{path}", part("model", model))
}

fn object_name(index: usize) -> String {
    format!("object_{index}.msgpack")
}

fn has(what: &'static str, found: usize, wanted: usize) -> Result<(), StateFault> {
    match found < wanted {
        true => Err(StateFault::Missing { what, found, wanted }),
        false => Ok(()),
    }
}

fn read_small(folder: &Path, name: &str) -> Result<Vec<u8>, StateFault> {
    let file = folder.join(name);
    outsize_checkpoint::read_file(&file, MAX_OBJECT)
        .map_err(|cause| StateFault::File { file, cause })
}
