//! The folder in which all weights learn: weights, AdamW's moments, gradients, and how far the
//! training has come.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use outsize_checkpoint::{Checkpoint, Dtype, FileWriter, read_optional, write_file};
use outsize_machine::volume;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::gradient_file::{GradientFile, failed};
use super::layout::{FIRST_MOMENT, Layout, LearningTensor, SECOND_MOMENT, file_name, step_name};
use super::step::{info, steps};
use crate::FinetuneError;
use crate::step_sums::StepSums;

/// Of all weights, as a checkpoint.
const WEIGHTS: &str = "weights";
const INDEX: &str = "model.safetensors.index.json";
const GRADIENTS: &str = "gradients";
const PROGRESS: &str = "progress.json";
const LOCK: &str = "lock";

/// The most bytes of what says how far a training has come.
const PROGRESS_LIMIT: u64 = 1 << 20;

/// Bytes of a tensor that are copied at once.
const PIECE: usize = 1 << 20;

/// How far a training has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// What tells it from others; nothing before it begins.
    pub training: Option<String>,
    /// Steps that all weights have made.
    pub step: usize,
    /// Batches of the next step whose gradients are there.
    pub batch: usize,
    /// The sums of the batches of the last step, if there was one.
    pub last: StepSums,
    /// Those of the batches of the next.
    pub sums: StepSums,
    /// The step that some weights have made, if the gradients are complete.
    pub update: Option<Update>,
}

/// A step whose gradients are complete.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Update {
    /// The norm of the gradients of the mean.
    pub norm: f64,
    /// What the sums of gradients are multiplied by.
    pub scale: f64,
    /// The learning rate.
    pub rate: f64,
}

/// The folder of a training of all weights, which no other process uses.
#[derive(Debug)]
pub(super) struct States {
    folder: PathBuf,
    pub layout: Layout,
    pub progress: Progress,
    _lock: File,
}

impl States {
    /// The training in `folder`; a new one of the weights of `model`, if there is none. `output`
    /// more bytes are to be written beside it when it has ended. While a new one is written,
    /// `go_on` is asked now and then.
    pub fn open(
        folder: &Path,
        model: &Checkpoint,
        layout: Layout,
        output: u64,
        go_on: impl Fn() -> bool,
    ) -> Result<Self, FinetuneError> {
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
        let states = Self { folder: folder.to_owned(), layout, progress, _lock: lock };
        match said {
            Some(_) => states.check()?,
            None => states.write_first(model, go_on)?,
        }
        Ok(states)
    }

    /// The weights as a checkpoint, with all that is kept beside them.
    pub fn weights(&self) -> Result<Checkpoint, FinetuneError> {
        let path = self.folder.join(WEIGHTS).join(INDEX);
        Ok(Checkpoint::open(path).map_err(outsize_core::Error::from)?)
    }

    /// The file of a group.
    pub fn group(&self, group: usize) -> Result<Checkpoint, FinetuneError> {
        let path = self.folder.join(WEIGHTS).join(file_name(group));
        Ok(Checkpoint::open(path).map_err(outsize_core::Error::from)?)
    }

    /// Waits until the files of all groups have their names on the disk.
    pub fn sync_names(&self) -> Result<(), FinetuneError> {
        let folder = self.folder.join(WEIGHTS);
        // Other systems do not let a folder be opened for that.
        let synced =
            if cfg!(unix) { File::open(&folder).and_then(|it| it.sync_all()) } else { Ok(()) };
        synced.map_err(|cause| failed(&folder, cause))
    }

    /// The gradients of the step that is under way.
    pub fn gradients(&self) -> Result<GradientFile, FinetuneError> {
        let path = self.folder.join(GRADIENTS);
        let file = GradientFile::open(path.clone(), &self.layout, &self.weights()?);
        let file = file.map_err(|cause| failed(&path, cause))?;
        let goes_on = self.progress.batch > 0 || self.progress.update.is_some();
        if goes_on && !file.is_whole().map_err(|cause| failed(&path, cause))? {
            return Err(broken(&self.folder, "its gradients are not all there".into()));
        }
        Ok(file)
    }

    /// Keeps how far the training has come.
    pub fn save(&self) -> Result<(), FinetuneError> {
        let text = serde_json::to_vec(&self.progress)
            .map_err(|error| broken(&self.folder, error.to_string()))?;
        let written = write_file(self.folder.join(PROGRESS), &text);
        Ok(written.map_err(outsize_core::Error::from)?)
    }

    /// Refuses the states of a training that is another one.
    pub fn begin(&mut self, training: String) -> Result<(), FinetuneError> {
        match &self.progress.training {
            Some(other) if *other != training => {
                Err(FinetuneError::OtherTraining { folder: self.folder.clone() })
            }
            Some(_) => Ok(()),
            None => {
                self.progress.training = Some(training);
                self.save()
            }
        }
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
    fn check(&self) -> Result<(), FinetuneError> {
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

    /// Writes the states before the first step.
    fn write_first(
        &self,
        model: &Checkpoint,
        go_on: impl Fn() -> bool,
    ) -> Result<(), FinetuneError> {
        let weights = self.folder.join(WEIGHTS);
        // What a process left that did not come to its end.
        if weights.exists() {
            fs::remove_dir_all(&weights).map_err(|cause| failed(&weights, cause))?;
        }
        fs::create_dir(&weights).map_err(|cause| failed(&weights, cause))?;
        let mut places = BTreeMap::new();
        for (group, tensors) in self.layout.groups.iter().enumerate() {
            let specs = self.layout.specs(group);
            places.extend(specs.iter().map(|spec| (spec.name.clone(), file_name(group))));
            let writer = FileWriter::create(weights.join(file_name(group)), specs);
            let mut writer = writer.map_err(outsize_core::Error::from)?;
            for tensor in &self.layout.tensors[tensors.clone()] {
                if !go_on() {
                    return Err(FinetuneError::Stopped);
                }
                write_tensor(model, tensor, &mut writer)?;
            }
            let step = writer.write(&step_name(group), &0u64.to_le_bytes());
            step.and_then(|()| writer.finish()).map_err(outsize_core::Error::from)?;
        }
        let index = json!({ "metadata": {}, "weight_map": places }).to_string();
        let written = write_file(weights.join(INDEX), index.as_bytes());
        written.map_err(outsize_core::Error::from)?;
        self.save()
    }
}

/// Writes a tensor's weights, and moments that are zero.
fn write_tensor(
    model: &Checkpoint,
    tensor: &LearningTensor,
    writer: &mut FileWriter,
) -> Result<(), FinetuneError> {
    let mut write = |name: &str, widened: bool| -> Result<(), outsize_checkpoint::Error> {
        for start in (0..tensor.info.len).step_by(PIECE) {
            let mut bytes = vec![0; PIECE.min((tensor.info.len - start) as usize)];
            model.read_at(&tensor.info, start, &mut bytes)?;
            match widened {
                true => writer.write(name, &in_f32(&bytes, tensor.info.dtype))?,
                false => writer.write(name, &bytes)?,
            }
        }
        Ok(())
    };
    let copied = write(&tensor.info.name, false);
    copied.map_err(outsize_core::Error::from)?;
    if !tensor.learns {
        return Ok(());
    }
    if tensor.info.dtype != Dtype::F32 {
        write(&tensor.master(), true).map_err(outsize_core::Error::from)?;
    }
    let zeros = vec![0; PIECE];
    for end in [FIRST_MOMENT, SECOND_MOMENT] {
        let (name, len) = (tensor.named(end), tensor.values() * 4);
        for start in (0..len).step_by(PIECE) {
            let piece = &zeros[..PIECE.min((len - start) as usize)];
            writer.write(&name, piece).map_err(outsize_core::Error::from)?;
        }
    }
    Ok(())
}

/// Values of 16 bits, exactly.
fn in_f32(bytes: &[u8], dtype: Dtype) -> Vec<u8> {
    let values = bytes.as_chunks::<2>().0.iter();
    let widened = values.map(|bytes| match dtype {
        Dtype::F16 => f16::from_le_bytes(*bytes).to_f32(),
        _ => bf16::from_le_bytes(*bytes).to_f32(),
    });
    widened.flat_map(f32::to_le_bytes).collect()
}

/// Refuses what does not fit on the disk, before hours are spent on it.
fn require_room(folder: &Path, needed: u64) -> Result<(), FinetuneError> {
    match volume(folder).free.filter(|free| free.value < needed) {
        Some(free) => {
            Err(FinetuneError::Disk { folder: folder.to_owned(), needed, free: free.value })
        }
        None => Ok(()),
    }
}

/// Keeps other processes from the folder.
fn lock(folder: &Path) -> Result<File, FinetuneError> {
    let path = folder.join(LOCK);
    let file = File::create(&path).map_err(|cause| failed(&path, cause))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(broken(folder, "another process learns in it".into())),
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// An error of states that cannot be used.
fn broken(folder: &Path, reason: String) -> FinetuneError {
    FinetuneError::States { folder: folder.to_owned(), reason }
}
