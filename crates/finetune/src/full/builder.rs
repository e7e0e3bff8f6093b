//! How a model is opened all of whose weights learn.

use std::path::PathBuf;

use super::opened::OpenedFullFinetune;
use super::tuner::FullFinetuner;
use crate::FinetuneError;
use crate::builder::FinetuneBuilder;
use crate::settings::FinetuneSettings;

/// A model that is to be opened for all of its weights to learn: see [`FinetuneBuilder::full`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it opens or builds"]
pub struct FullFinetuneBuilder {
    settings: FinetuneSettings,
    states: PathBuf,
}

impl FinetuneBuilder {
    /// Lets all weights learn instead of an adapter. Weights, AdamW's moments and gradients are in
    /// the folder `states`, and stay there until they are [removed](FullFinetuner::remove_states):
    /// the same training goes on from there.
    pub fn full(self, states: impl Into<PathBuf>) -> FullFinetuneBuilder {
        FullFinetuneBuilder { settings: self.settings, states: states.into() }
    }
}

impl FullFinetuneBuilder {
    /// Opens the model: all but its weights. Examples that are read before it is
    /// [placed](OpenedFullFinetune::build) are counted in the budget.
    ///
    /// # Errors
    /// A model that cannot learn so; a file that is missing, broken, or asks for something that is
    /// not built in; settings out of range.
    pub fn open(self) -> Result<OpenedFullFinetune, FinetuneError> {
        OpenedFullFinetune::new(self.settings, self.states)
    }

    /// Opens the model, places it within the budget and writes what it learns in.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`OpenedFullFinetune::build`].
    pub fn build(self) -> Result<FullFinetuner, FinetuneError> {
        self.open()?.build()
    }
}
