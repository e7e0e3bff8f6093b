//! The folder in which all weights learn: weights, AdamW's moments, gradients, and how far the
//! training has come.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outsize_checkpoint::{Checkpoint, TensorInfo, read_optional, write_file};
use outsize_core::GradientSink;
use outsize_machine::volume;

use super::adamw::{AdamWStep, OffloadedAdamW};
use super::first::{INDEX, write_first};
use super::gradient_file::{GradientFile, failed};
use super::layout::{LearningRole, OffloadLayout, STATES, file_name, step_name};
use super::progress::{PendingStep, Progress, StepSums};
use super::step::{GroupStep, info, steps};
use crate::Error;

/// Of all weights, as a checkpoint.
const WEIGHTS: &str = "weights";
const GRADIENTS: &str = "gradients";
const PROGRESS: &str = "progress.json";
const LOCK: &str = "lock";

/// The most bytes of what says how far a training has come.
const PROGRESS_LIMIT: u64 = 1 << 20;

/// The folder of a training whose weights, moments and gradients are on the disk. No other process
/// uses it.
#[derive(Debug)]
pub struct OffloadedStates {
    folder: PathBuf,
    pub(super) layout: OffloadLayout,
    gradients: Arc<GradientFile>,
    progress: Progress,
    _lock: File,
}

impl OffloadedStates {
    /// Ends of the names of what is kept beside weights in [`weights`](Self::weights).
    pub const NOT_WEIGHTS: [&str; 4] = STATES;

    /// The training in `folder`; a new one of the weights of `model`, if there is none. `output`
    /// more bytes are to be written beside it when it has ended. While a new one is written,
    /// `go_on` is asked now and then.
    ///
    /// # Errors
    /// How many bytes of disk are needed, and how many are free; states that are broken, or of
    /// another model; [`Error::Stopped`].
    pub fn open(
        folder: &Path,
        model: &Checkpoint,
        layout: OffloadLayout,
        output: u64,
        go_on: impl Fn() -> bool,
    ) -> Result<Self, Error> {
        let path = folder.join(PROGRESS);
        let needed = if path.exists() { layout.largest_group() } else { layout.disk_bytes() };
        require_room(folder, needed.saturating_add(output))?;
        fs::create_dir_all(folder).map_err(|cause| failed(folder, cause))?;
        let lock = lock(folder)?;
        let said = read_optional(&path, PROGRESS_LIMIT);
        let said = said.map_err(|error| broken(folder, error.to_string()))?;
        let progress = match &said {
            Some(text) => serde_json::from_slice(text)
                .map_err(|error| broken(folder, format!("{PROGRESS}: {error}")))?,
            None => Progress::default(),
        };
        if said.is_none() {
            write_first(&folder.join(WEIGHTS), &layout, model, go_on)?;
        }
        let gradients = gradients(folder, &layout, &progress)?.into();
        let folder = folder.to_owned();
        let states = Self { folder, layout, gradients, progress, _lock: lock };
        match said {
            Some(_) => states.check()?,
            None => states.save_progress()?,
        }
        Ok(states)
    }

    /// The weights as a checkpoint, with all that is kept beside them.
    ///
    /// # Errors
    /// A file that is missing or broken.
    pub fn weights(&self) -> Result<Checkpoint, Error> {
        weights(&self.folder)
    }

    /// Those of its tensors that are weights.
    pub fn weight_tensors(weights: &Checkpoint) -> Vec<TensorInfo> {
        let is_weight = |tensor: &&TensorInfo| !STATES.iter().any(|end| tensor.name.ends_with(end));
        weights.tensors().iter().filter(is_weight).cloned().collect()
    }

    /// Values that learn.
    pub fn values(&self) -> u64 {
        self.layout.values()
    }

    /// Steps that the weights have made, by this process or others before.
    pub fn steps(&self) -> usize {
        self.progress.step
    }

    /// Whether no training has begun in it.
    pub fn is_new(&self) -> bool {
        self.progress.training.is_none()
    }

    /// The sums of the batches of the last step.
    pub fn last(&self) -> StepSums {
        self.progress.last
    }

    /// The step that was begun and is not complete, if there is one.
    pub fn pending(&self) -> Option<PendingStep> {
        self.progress.update
    }

    /// Who takes the gradients of the next step.
    pub fn sink(&self) -> Arc<dyn GradientSink> {
        self.gradients.clone()
    }

    /// The file of a group.
    fn group(&self, group: usize) -> Result<Checkpoint, Error> {
        let path = self.folder.join(WEIGHTS).join(file_name(group));
        Ok(Checkpoint::open(path).map_err(outsize_core::Error::from)?)
    }

    /// Keeps how far the training has come.
    fn save_progress(&self) -> Result<(), Error> {
        let text = serde_json::to_vec(&self.progress)
            .map_err(|error| broken(&self.folder, error.to_string()))?;
        let written = write_file(self.folder.join(PROGRESS), &text);
        Ok(written.map_err(outsize_core::Error::from)?)
    }

    /// Begins the training of this description, or goes on with it.
    ///
    /// # Errors
    /// [`Error::OtherTraining`] if the states are of another.
    pub fn begin(&mut self, training: String) -> Result<(), Error> {
        match &self.progress.training {
            Some(other) if *other != training => {
                Err(Error::OtherTraining { folder: self.folder.clone() })
            }
            Some(_) => Ok(()),
            None => {
                self.progress.training = Some(training);
                self.save_progress()
            }
        }
    }

    /// Before gradients of the next step are added: of how many batches they are there, and the
    /// sums of these. None are there any more if the process ends before they are
    /// [kept](Self::keep_batches).
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn resume_batches(&mut self) -> Result<(usize, StepSums), Error> {
        match std::mem::take(&mut self.progress.batch) {
            0 => {
                self.gradients.clear().map_err(|cause| self.gradients.failed(cause))?;
                Ok((0, StepSums::default()))
            }
            there => {
                self.save_progress()?;
                Ok((there, self.progress.sums))
            }
        }
    }

    /// Keeps the gradients of so many batches for when the training goes on.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn keep_batches(&mut self, batches: usize, sums: StepSums) -> Result<(), Error> {
        self.gradients.sync().map_err(|cause| self.gradients.failed(cause))?;
        self.progress.sums = sums;
        self.progress.batch = batches;
        self.save_progress()
    }

    /// Says what statistics have become, by the names of their tensors, before a step
    /// [begins](Self::begin_update).
    ///
    /// # Errors
    /// [`Error::OffloadedStates`] unless these are all of them; a file that cannot be written.
    pub fn set_statistics(&self, values: &HashMap<String, Vec<f32>>) -> Result<(), Error> {
        for tensor in self.layout.of_role(LearningRole::Statistic) {
            let name = &tensor.info.name;
            let now = values.get(name).filter(|now| now.len() as u64 == tensor.values());
            let Some(now) = now else {
                return Err(broken(&self.folder, format!("{name} is another statistic in it")));
            };
            let written = self.gradients.write(tensor.gradient, now);
            written.map_err(|cause| self.gradients.failed(cause))?;
        }
        Ok(())
    }

    /// Says what the next step is to make of its gradients, which are complete. From now on it is
    /// pending, until it is [made](Self::update).
    ///
    /// # Errors
    /// [`Error::Gradients`]; a file that cannot be read or written.
    pub fn begin_update(
        &mut self,
        adamw: &OffloadedAdamW,
        rate: f64,
        sums: StepSums,
    ) -> Result<PendingStep, Error> {
        let failed = |cause: io::Error| self.gradients.failed(cause);
        let share = 1.0 / sums.items.max(1) as f64;
        let norm = self.gradients.squared_norm().map_err(failed)?.sqrt() * share;
        if !norm.is_finite() {
            return Err(Error::Gradients { step: self.steps() + 1 });
        }
        let clipped = adamw.max_grad_norm.map_or(1.0, |most| most / (norm + 1e-6));
        self.gradients.sync().map_err(failed)?;
        let update = PendingStep { norm, scale: share * clipped.min(1.0), rate };
        self.progress.sums = sums;
        self.progress.update = Some(update);
        self.save_progress()?;
        Ok(update)
    }

    /// Makes the step that is pending, or what of it was not made before. Nobody should hold the
    /// weights meanwhile: their files are replaced, and keep their place on the disk while somebody
    /// has them open.
    ///
    /// # Errors
    /// A file that cannot be read or written. What was made of it stays.
    pub fn update(&mut self, adamw: &OffloadedAdamW) -> Result<(), Error> {
        let Some(update) = self.progress.update else { return Ok(()) };
        for group in 0..self.layout.groups.len() {
            self.update_group(adamw, update, group)?;
        }
        self.sync_names()?;
        let progress = &mut self.progress;
        progress.step += 1;
        progress.batch = 0;
        progress.last = std::mem::take(&mut progress.sums);
        progress.update = None;
        self.save_progress()
    }

    /// Makes the pending step of the tensors of one file.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub fn update_group(
        &self,
        adamw: &OffloadedAdamW,
        update: PendingStep,
        group: usize,
    ) -> Result<(), Error> {
        let step = self.steps() + 1;
        let adamw = AdamWStep::new(adamw, step, update.rate, update.scale);
        let (weights, layout, gradients) = (&self.group(group)?, &self.layout, &*self.gradients);
        GroupStep { weights, layout, gradients, adamw, step: step as u64 }.make(group)
    }

    /// Waits until the files of all groups have their names on the disk.
    fn sync_names(&self) -> Result<(), Error> {
        let folder = self.folder.join(WEIGHTS);
        // Other systems do not let a folder be opened for that.
        let synced =
            if cfg!(unix) { File::open(&folder).and_then(|it| it.sync_all()) } else { Ok(()) };
        synced.map_err(|cause| failed(&folder, cause))
    }

    /// Removes all that it has written; the folder too, if nothing else is in it.
    pub fn remove(self) {
        let Self { folder, _lock: lock, .. } = self;
        // Last of all what says that the rest can be used.
        let _ = fs::remove_file(folder.join(PROGRESS));
        let _ = fs::remove_dir_all(folder.join(WEIGHTS));
        let _ = fs::remove_file(folder.join(GRADIENTS));
        let _ = fs::remove_file(folder.join(LOCK));
        drop(lock);
        let _ = fs::remove_dir(folder);
    }

    /// Whether the files hold what the layout says, as far as the progress says.
    fn check(&self) -> Result<(), Error> {
        let progress = &self.progress;
        let update = progress.update.map(|update| [update.norm, update.scale, update.rate]);
        if update.is_some_and(|numbers| !numbers.iter().all(|number| number.is_finite())) {
            return Err(broken(&self.folder, format!("{PROGRESS} has no numbers for its step")));
        }
        let weights = self.weights()?;
        for group in 0..self.layout.groups.len() {
            let specs = self.layout.specs(group);
            for spec in &specs {
                let found = info(&weights, &spec.name)?;
                if (found.dtype, &found.shape) != (spec.dtype, &spec.shape) {
                    let reason = format!(
                        "{} is {} {:?} in it and {} {:?} in the model",
                        spec.name, found.dtype, found.shape, spec.dtype, spec.shape
                    );
                    return Err(broken(&self.folder, reason));
                }
            }
            let made = steps(&weights, info(&weights, &step_name(group))?)?;
            let step = progress.step as u64;
            let may_be_next = progress.update.is_some() && made == step.saturating_add(1);
            if made != step && !may_be_next {
                let reason = format!("{} has made {made} steps of {step}", file_name(group));
                return Err(broken(&self.folder, reason));
            }
        }
        Ok(())
    }
}

fn weights(folder: &Path) -> Result<Checkpoint, Error> {
    let path = folder.join(WEIGHTS).join(INDEX);
    Ok(Checkpoint::open(path).map_err(outsize_core::Error::from)?)
}

/// The gradients of the step that is under way.
fn gradients(
    folder: &Path,
    layout: &OffloadLayout,
    progress: &Progress,
) -> Result<GradientFile, Error> {
    let path = folder.join(GRADIENTS);
    let file = GradientFile::open(path.clone(), layout, &weights(folder)?);
    let file = file.map_err(|cause| failed(&path, cause))?;
    let goes_on = progress.batch > 0 || progress.update.is_some();
    if goes_on && !file.is_whole().map_err(|cause| failed(&path, cause))? {
        return Err(broken(folder, "its gradients are not all there".into()));
    }
    Ok(file)
}

/// Refuses what does not fit on the disk, before hours are spent on it.
fn require_room(folder: &Path, needed: u64) -> Result<(), Error> {
    match volume(folder).free.filter(|free| free.value < needed) {
        Some(free) => Err(Error::Disk { folder: folder.to_owned(), needed, free: free.value }),
        None => Ok(()),
    }
}

/// Keeps other processes from the folder.
fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join(LOCK);
    let file = File::create(&path).map_err(|cause| failed(&path, cause))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(broken(folder, "another process learns in it".into())),
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// An error of states that cannot be used.
fn broken(folder: &Path, reason: String) -> Error {
    Error::OffloadedStates { folder: folder.to_owned(), reason }
}
