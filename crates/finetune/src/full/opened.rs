//! A model all of whose weights are to learn, opened and not placed.

use std::path::{Path, PathBuf};

use outsize_checkpoint::Checkpoint;
use outsize_core::{Planning, many_parameters_bytes, memory_overhead};
use outsize_models::ModelConfig;
use outsize_plan::DeviceMap;
use outsize_train::offload::{LearningRole, OFFLOADED_STEP_BYTES, OffloadLayout, OffloadedStates};

use super::tuner::FullFinetuner;
use crate::memory::{full_pass_bytes, infer_learning};
use crate::opened_model::OpenedModel;
use crate::settings::FinetuneSettings;
use crate::{Examples, FinetuneError};

/// A model all of whose weights are to learn, opened and not placed.
#[derive(Debug)]
pub struct OpenedFullFinetune {
    model: OpenedModel,
    pub(super) layout: OffloadLayout,
    states: PathBuf,
}

impl OpenedFullFinetune {
    pub(crate) fn new(settings: FinetuneSettings, states: PathBuf) -> Result<Self, FinetuneError> {
        let model = OpenedModel::new(settings)?;
        let layout = layout(&model.config, &model.checkpoint)?;
        Ok(Self { model, layout, states })
    }

    /// Reads a file of examples, as
    /// [`OpenedFinetune::read_examples`](crate::OpenedFinetune::read_examples) does.
    ///
    /// # Errors
    /// A line that is none, with its number.
    pub fn read_examples(&self, path: impl AsRef<Path>) -> Result<Examples, FinetuneError> {
        self.model.read_examples(path.as_ref())
    }

    /// Places the model within the budget, and goes on with the training in the folder of states.
    /// If there is none, it writes down what one begins with.
    ///
    /// # Errors
    /// How many bytes of budget would do; how many bytes of disk are needed, and how many are free;
    /// states that are broken, or of another model; [`outsize_train::Error::Stopped`].
    pub fn build(self) -> Result<FullFinetuner, FinetuneError> {
        let map = self.placed()?;
        let Self { model, layout, states } = self;
        let output = model.checkpoint.total_bytes();
        let go_on = || !model.settings.is_stopped();
        let states = OffloadedStates::open(&states, &model.checkpoint, layout, output, go_on)?;
        FullFinetuner::new(model, states, map)
    }

    /// Where the weights live.
    fn placed(&self) -> Result<DeviceMap, FinetuneError> {
        let OpenedModel { settings, config, checkpoint, tree, reader, .. } = &self.model;
        let budget = self.model.budget()?;
        let pass = full_pass_bytes(config, settings.compute, [settings.batch, reader.context]);
        let pass = pass.ok_or_else(|| self.model.unsupported())?;
        // What is kept of each tensor has names and places too.
        let process = self.model.process().saturating_add(many_parameters_bytes(tree));
        let options = outsize_core::Options {
            planning: Planning { figures: settings.figures.clone(), ..Planning::default() },
            needs: memory_overhead(process, pass.max(OFFLOADED_STEP_BYTES)),
            ..config.options(checkpoint.tensors())
        };
        let map = infer_learning(config, tree, &budget, &options);
        Ok(map.map_err(outsize_core::Error::from)?)
    }
}

/// Which weights learn of a model that has floats alone.
pub(super) fn layout(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
) -> Result<OffloadLayout, FinetuneError> {
    // Such a file is all of a model. What of it is floats may be in an order of its own.
    if checkpoint.folder().is_file() {
        let path = checkpoint.folder().to_owned();
        let what = "weights as GGUF orders them".to_owned();
        return Err(outsize_train::Error::NotFloats { path, what }.into());
    }
    let folder = checkpoint.folder().to_string_lossy();
    let parameters = config.stored_parameters(&folder, checkpoint.tensors())?.into_iter();
    let parameters = parameters.map(|parameter| {
        let role = match config.learns(&parameter.path) {
            true => LearningRole::Learns,
            false => LearningRole::Fixed,
        };
        (parameter, role)
    });
    Ok(OffloadLayout::new(checkpoint, parameters)?)
}
