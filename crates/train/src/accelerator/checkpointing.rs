//! Saving and loading the state of a run, on all ranks together.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use burn::module::Module;
use outsize_checkpoint::OutputFolder;
use outsize_core::Names;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Accelerator;
use crate::Error;
use crate::state::{self, LoadedState, Manifest, RankState, Run, StateFault, TrainingState};

impl Accelerator {
    /// Saves an object with every state from now on, and loads it with them; all ranks register
    /// the same objects. Rank 0's is saved.
    ///
    /// # Errors
    ///
    /// The name is taken.
    pub fn register_for_checkpointing<T: Serialize + DeserializeOwned + Send + 'static>(
        &self,
        name: &str,
        object: &Arc<Mutex<T>>,
    ) -> Result<(), Error> {
        match self.inner.objects.register(name, object) {
            true => Ok(()),
            false => Err(Error::Setting(format!("an object {name:?} is registered already"))),
        }
    }

    /// Saves the run as the next `checkpoint_N` of
    /// [`state_dir`](crate::AcceleratorBuilder::state_dir), then removes the oldest above
    /// [`total_limit`](crate::AcceleratorBuilder::total_limit). Gives the folder.
    ///
    /// # Errors
    ///
    /// As [`save_state_to`](Self::save_state_to); there is no folder for states.
    pub fn save_state(&self, state: TrainingState<'_>) -> Result<PathBuf, Error> {
        let folder = self.state_dir()?;
        let failed = |cause| Error::state(folder, StateFault::File { file: folder.into(), cause });
        let remove_old = || match self.inner.settings.total_limit {
            Some(limit) if folder.exists() => state::keep(folder, limit.max(1)),
            _ => Ok(()),
        };
        let warn = |cause| tracing::warn!("old states stay in {}: {cause}", folder.display());
        // First what processes that were killed left, so that it does not pile up.
        let place = || {
            remove_old().unwrap_or_else(warn);
            state::next(folder).map_err(failed)
        };
        let saved = self.save(place, state)?;
        if self.is_main_process() && self.inner.settings.total_limit.is_some() {
            remove_old().and_then(|()| state::remove_unnamed(folder)).unwrap_or_else(warn);
        }
        Ok(saved)
    }

    /// Saves the run to a folder, which must not exist and appears complete or not at all.
    ///
    /// Rank 0 writes models, optimizers, schedulers and registered objects; each rank writes where
    /// its loaders are and what it has accumulated. All ranks need the same file system.
    ///
    /// # Errors
    ///
    /// The folder exists, or cannot be written; a rank failed or is late. Then nothing is left.
    pub fn save_state_to(
        &self,
        folder: impl AsRef<Path>,
        state: TrainingState<'_>,
    ) -> Result<(), Error> {
        self.save(|| Ok(folder.as_ref().to_owned()), state).map(drop)
    }

    fn save(
        &self,
        place: impl FnOnce() -> Result<PathBuf, Error>,
        state: TrainingState<'_>,
    ) -> Result<PathBuf, Error> {
        let mut output = None;
        let prepared = self.on_main_process(|| {
            let folder = place()?;
            let fault = |fault: outsize_checkpoint::Error| Error::state(&folder, fault.into());
            let prepared = OutputFolder::prepare(&folder).map_err(fault)?;
            let partial = prepared.folder().to_owned();
            output = Some(prepared);
            Ok((folder, partial))
        });
        let prepared = self.together(prepared.transpose())?;
        let (folder, partial) = prepared.into_iter().flatten().next().expect("rank 0 named it");

        let (run, own) = (self.run(), self.rank_state());
        let manifest = state.manifest(&run, &own);
        let fault = |fault| Error::state(&folder, fault);
        let files = self.together(state.write(&run, own, &partial).map_err(fault))?;
        let published = output.map_or(Ok(()), |output| {
            let files = files.into_iter().flatten().collect();
            Manifest { files, ..manifest }.write(&partial)?;
            Ok(output.publish()?)
        });
        self.together(published.map_err(fault))?;
        Ok(folder)
    }

    /// Loads a state: all of it, or an error and nothing changes, on any rank.
    ///
    /// Parts that were saved and are not asked for stay out. With another number of ranks, what
    /// belonged to a rank is recomputed or left out, as the [notes](LoadedState::notes) say.
    ///
    /// # Errors
    ///
    /// A file is missing or damaged, or does not fit; a rank failed or is late.
    pub fn load_state(
        &self,
        folder: impl AsRef<Path>,
        state: TrainingState<'_>,
    ) -> Result<LoadedState, Error> {
        let folder = folder.as_ref();
        // Once for all ranks: a state may be large.
        let checked = self.on_main_process(|| verify(folder)).transpose();
        self.together(checked.map_err(|fault| Error::state(folder, fault)))?;
        self.load_verified(folder, state, Vec::new())
    }

    /// Loads the newest state of [`state_dir`](crate::AcceleratorBuilder::state_dir), or returns
    /// none if there is no state, as in the first start of a job. A damaged state is left out for
    /// an older one, and the [notes](LoadedState::notes) say so.
    ///
    /// # Errors
    ///
    /// As [`load_state`](Self::load_state), if all states are damaged or one does not fit; there is
    /// no folder for states.
    pub fn resume(&self, state: TrainingState<'_>) -> Result<Option<LoadedState>, Error> {
        let folder = self.state_dir()?;
        let newest = self.on_main_process(|| newest_intact(folder)).transpose();
        let newest = self.together(newest)?.into_iter().flatten().next().flatten();
        let Some((folder, notes)) = newest else { return Ok(None) };
        self.load_verified(&folder, state, notes).map(Some)
    }

    fn load_verified(
        &self,
        folder: &Path,
        state: TrainingState<'_>,
        mut notes: Vec<String>,
    ) -> Result<LoadedState, Error> {
        let run = self.run();
        let mut staged = None;
        let read = state.read(&run, folder).map(|read| staged = Some(read));
        self.together(read.map_err(|fault| Error::state(folder, fault)))?;
        let (manifest, staged) = staged.expect("it was read on all ranks");

        staged.commits.into_iter().for_each(|commit| commit());
        if let Some(scaler) = staged.scaler {
            self.set_loss_scaler(scaler);
        }
        self.set_rank_state(staged.rank);
        notes.extend(staged.notes);
        let restarts = std::env::var("OUTSIZE_RESTART_COUNT").ok();
        Ok(LoadedState {
            folder: folder.to_owned(),
            batches_taken: manifest.batches_taken,
            restarts: restarts.and_then(|count| count.parse().ok()).unwrap_or(0),
            notes,
        })
    }

    /// Writes a model to the folder `out`, as safetensors in shards of at most `max_shard_size`
    /// bytes under the names and in the shapes of `names`, by rank 0.
    ///
    /// # Errors
    ///
    /// `out` exists and is not an empty folder; a parameter cannot be written; a rank failed.
    pub fn save_model<M: Module>(
        &self,
        model: &M,
        out: impl AsRef<Path>,
        names: &Names,
        max_shard_size: u64,
    ) -> Result<(), Error> {
        let save = || outsize_core::save(model, out.as_ref(), names, max_shard_size);
        let saved = self.on_main_process(save).transpose();
        self.together(saved.map_err(|fault| Error::state(out.as_ref(), fault.into())))?;
        Ok(())
    }

    fn state_dir(&self) -> Result<&Path, Error> {
        self.inner.settings.state_dir.as_deref().ok_or_else(|| {
            let message =
                "there is no folder for states: set `state_dir`, or the variable OUTSIZE_STATE_DIR";
            Error::Setting(message.to_owned())
        })
    }

    /// The results of all ranks; an error on all if one failed.
    fn together<T: Clone + Serialize + DeserializeOwned>(
        &self,
        own: Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        if self.num_processes() == 1 {
            return Ok(vec![own?]);
        }
        let results = self.gather_object(&own.as_ref().cloned().map_err(ToString::to_string))?;
        own?;
        let failed = |(rank, result): (usize, Result<T, String>)| {
            result.map_err(|reason| Error::RankFailed { rank, reason })
        };
        results.into_iter().enumerate().map(failed).collect()
    }

    fn run(&self) -> Run<'_> {
        Run {
            rank: self.process_index(),
            ranks: self.num_processes(),
            seed: self.inner.settings.seed,
            device: self.device().inner(),
            scaler: self.loss_scaler(),
            objects: &self.inner.objects,
        }
    }

    fn rank_state(&self) -> RankState {
        let (state, accumulated) = (self.step_state(), self.inner.accumulated());
        RankState {
            batches_taken: state.batches_taken,
            sync_gradients: state.sync_gradients,
            micro_batches: state.micro_batches,
            was_skipped: state.was_skipped,
            tokens: accumulated.tokens.clone(),
            gradients: accumulated.flat.clone(),
            ..Default::default()
        }
    }

    fn set_rank_state(&self, saved: RankState) {
        let mut state = self.step_state();
        state.batches_taken = saved.batches_taken;
        state.sync_gradients = saved.sync_gradients;
        state.micro_batches = saved.micro_batches;
        state.was_skipped = saved.was_skipped;
        let mut accumulated = self.inner.accumulated();
        (accumulated.flat, accumulated.tokens) = (saved.gradients, saved.tokens);
    }
}

fn verify(folder: &Path) -> Result<(), StateFault> {
    Manifest::read(folder)?.verify(folder)
}

/// The newest state that is not damaged, and what is wrong with newer ones.
fn newest_intact(folder: &Path) -> Result<Option<(PathBuf, Vec<String>)>, Error> {
    let states = state::states(folder)
        .map_err(|cause| Error::state(folder, StateFault::File { file: folder.into(), cause }))?;
    let (mut notes, mut first) = (Vec::new(), None);
    for (_, path) in states.into_iter().rev() {
        match verify(&path) {
            Ok(()) => return Ok(Some((path, notes))),
            Err(fault) => {
                let fault = Error::state(&path, fault);
                notes.push(fault.to_string());
                first.get_or_insert(fault);
            }
        }
    }
    first.map_or(Ok(None), Err)
}
