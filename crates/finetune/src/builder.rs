//! How a model is opened to learn.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outsize_lora::{LoraConfig, ModulePattern};
use outsize_models::ActivationDtype;
use outsize_plan::{Budget, HardwareProfile};

use crate::FinetuneError;
use crate::opened::OpenedFinetune;
use crate::settings::FinetuneSettings;
use crate::tuner::Finetuner;

/// The rank and alpha of an adapter if nothing is said, as PEFT users mostly choose them.
const RANK: usize = 16;
const ALPHA: f64 = 32.0;

/// A model that is to be opened to learn: see [`finetune`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it opens or builds"]
pub struct FinetuneBuilder {
    pub(crate) settings: FinetuneSettings,
}

/// An adapter of the model in folder `model` that is to learn: one of rank 16 for all linear
/// layers, with alpha 32, if nothing else is said.
pub fn finetune(model: impl Into<PathBuf>) -> FinetuneBuilder {
    let settings = FinetuneSettings {
        model: model.into(),
        lora: LoraConfig::new(RANK, ALPHA, ModulePattern::AllLinear),
        adapter: None,
        max_memory: None,
        figures: HardwareProfile::default(),
        compute: ActivationDtype::F32,
        context: None,
        batch: 1,
        seed: 0,
        stop: None,
    };
    FinetuneBuilder { settings }
}

impl FinetuneBuilder {
    /// Which layers get an adapter, and of what rank.
    pub fn lora(mut self, config: LoraConfig) -> Self {
        self.settings.lora = config;
        self
    }

    /// Goes on with the adapter in a folder, which says which layers have one.
    pub fn adapter(mut self, folder: impl Into<PathBuf>) -> Self {
        self.settings.adapter = Some(folder.into());
        self
    }

    /// The most memory to hold, in bytes, the process itself included: by default nine tenths of
    /// the main memory that is available.
    pub fn max_memory(mut self, budget: Budget) -> Self {
        self.settings.max_memory = Some(budget);
        self
    }

    /// How fast the machine is, for what is kept in memory.
    pub fn figures(mut self, figures: HardwareProfile) -> Self {
        self.settings.figures = figures;
        self
    }

    /// The dtype of activations in matmuls of a pass forward: by default f32. Gradients are f32.
    pub fn compute(mut self, dtype: ActivationDtype) -> Self {
        self.settings.compute = dtype;
        self
    }

    /// Tokens of the longest example, of which a longer one is cut: by default 512, or as many as
    /// the model can have.
    pub fn context(mut self, tokens: usize) -> Self {
        self.settings.context = Some(tokens);
        self
    }

    /// Examples of one pass over the weights: by default 1.
    pub fn batch_size(mut self, examples: usize) -> Self {
        self.settings.batch = examples;
        self
    }

    /// Draws the values that an adapter begins with: by default 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// A flag that ends training and evaluation between two passes, once another thread or a signal
    /// sets it.
    pub fn stop(mut self, flag: Arc<AtomicBool>) -> Self {
        self.settings.stop = Some(flag);
        self
    }

    /// Opens the model: all but its weights. Examples that are read before it is
    /// [placed](OpenedFinetune::build) are counted in the budget.
    ///
    /// # Errors
    /// A model that cannot learn so; a file that is missing, broken, or asks for something that is
    /// not built in; settings out of range; a budget that is too small, and how many bytes would
    /// do.
    pub fn open(self) -> Result<OpenedFinetune, FinetuneError> {
        OpenedFinetune::new(self.settings)
    }

    /// Opens the model and places it within the budget.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn build(self) -> Result<Finetuner, FinetuneError> {
        self.open()?.build()
    }
}
