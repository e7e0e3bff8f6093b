//! What learns: an adapter, or all weights of a model.

use outsize::finetune::{
    Evaluation, Examples, FinetuneError, FinetuneOptions, FinetuneStep, Finetuned, Finetuner,
    FullFinetuner,
};
use outsize::plan::DeviceMap;
use std::path::{Path, PathBuf};

/// What learns.
pub trait Tuner {
    /// What it is, and of how many values.
    fn what(&self) -> String;
    fn parameter_count(&self) -> u64;
    /// Whether it is not as it was before any training.
    fn has_learned(&self) -> bool;
    fn context(&self) -> usize;
    fn kept_blocks(&self) -> usize;
    fn device_map(&self) -> &DeviceMap;
    fn bytes_read(&self) -> u64;
    fn evaluate(&self, examples: &Examples) -> Result<Evaluation, FinetuneError>;
    fn train(
        &mut self,
        examples: &Examples,
        options: &FinetuneOptions,
        observe: &mut dyn FnMut(&FinetuneStep),
    ) -> Result<Finetuned, FinetuneError>;
    /// Gives the names of files that were left out.
    fn save(&self, folder: &Path) -> Result<Vec<String>, FinetuneError>;
    /// Removes the states of a training that has ended, and their folder if nothing else is in it.
    fn remove_states(self);
}

/// An adapter, and where its states are.
pub struct AdapterTuner {
    pub tuner: Finetuner,
    pub states: PathBuf,
}

impl Tuner for AdapterTuner {
    fn what(&self) -> String {
        let adapter = self.tuner.adapter();
        format!("adapter of {} layers, {} values", adapter.layers.len(), self.parameter_count())
    }

    fn parameter_count(&self) -> u64 {
        self.tuner.adapter().parameter_count()
    }

    fn has_learned(&self) -> bool {
        // What states hold is not loaded yet.
        false
    }

    fn context(&self) -> usize {
        self.tuner.context()
    }

    fn kept_blocks(&self) -> usize {
        self.tuner.kept_blocks()
    }

    fn device_map(&self) -> &DeviceMap {
        self.tuner.device_map()
    }

    fn bytes_read(&self) -> u64 {
        self.tuner.watch()().bytes_read
    }

    fn evaluate(&self, examples: &Examples) -> Result<Evaluation, FinetuneError> {
        self.tuner.evaluate(examples)
    }

    fn train(
        &mut self,
        examples: &Examples,
        options: &FinetuneOptions,
        observe: &mut dyn FnMut(&FinetuneStep),
    ) -> Result<Finetuned, FinetuneError> {
        self.tuner.train(examples, options, observe)
    }

    fn save(&self, folder: &Path) -> Result<Vec<String>, FinetuneError> {
        self.tuner.save(folder).map(|()| Vec::new())
    }

    fn remove_states(self) {
        for entry in self.states.read_dir().into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("checkpoint_") || name.starts_with(".checkpoint_") {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        let _ = std::fs::remove_dir(&self.states);
    }
}

impl Tuner for FullFinetuner {
    fn what(&self) -> String {
        format!("all weights, {} values", FullFinetuner::parameter_count(self))
    }

    fn parameter_count(&self) -> u64 {
        FullFinetuner::parameter_count(self)
    }

    fn has_learned(&self) -> bool {
        self.steps() > 0
    }

    fn context(&self) -> usize {
        FullFinetuner::context(self)
    }

    fn kept_blocks(&self) -> usize {
        0
    }

    fn device_map(&self) -> &DeviceMap {
        FullFinetuner::device_map(self)
    }

    fn bytes_read(&self) -> u64 {
        FullFinetuner::bytes_read(self)
    }

    fn evaluate(&self, examples: &Examples) -> Result<Evaluation, FinetuneError> {
        FullFinetuner::evaluate(self, examples)
    }

    fn train(
        &mut self,
        examples: &Examples,
        options: &FinetuneOptions,
        observe: &mut dyn FnMut(&FinetuneStep),
    ) -> Result<Finetuned, FinetuneError> {
        FullFinetuner::train(self, examples, options, observe)
    }

    fn save(&self, folder: &Path) -> Result<Vec<String>, FinetuneError> {
        FullFinetuner::save(self, folder)
    }

    fn remove_states(self) {
        FullFinetuner::remove_states(self);
    }
}
