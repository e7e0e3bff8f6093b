//! From a task and a folder to a pipeline.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outsize_core::Planning;
use outsize_machine::{Machine, current_rss, detected_budget};
use outsize_models::ActivationDtype;
use outsize_plan::{Budget, HardwareProfile, ManualMap, Strategy, Tier};

/// What a model is run for: says what kind of pipeline is built for it.
pub trait PipelineTask: Sized {
    /// What only such a pipeline is told.
    type Options: Default;
    /// What is built.
    type Pipeline;
    /// Why nothing is built.
    type Error;

    /// See [`PipelineBuilder::build`].
    ///
    /// # Errors
    /// As there.
    fn build(builder: PipelineBuilder<Self>) -> Result<Self::Pipeline, Self::Error>;
}

/// How places are chosen: by a strategy, or as a given map says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceMapChoice {
    /// By this rule.
    Strategy(Strategy),
    /// As in Accelerate's `hf_device_map`.
    Given(ManualMap),
}

impl From<Strategy> for DeviceMapChoice {
    fn from(strategy: Strategy) -> Self {
        Self::Strategy(strategy)
    }
}

impl From<ManualMap> for DeviceMapChoice {
    fn from(map: ManualMap) -> Self {
        Self::Given(map)
    }
}

/// A pipeline that is to be built: see [`pipeline`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it builds"]
pub struct PipelineBuilder<T: PipelineTask> {
    /// What the model is run for.
    pub task: T,
    /// Where it is.
    pub model: PathBuf,
    /// The most memory to hold, if that is said.
    pub max_memory: Option<Budget>,
    /// How places are chosen.
    pub planning: Planning,
    /// The dtype of activations in matmuls.
    pub compute: ActivationDtype,
    /// What ends a pass in the middle.
    pub stop: Option<Arc<AtomicBool>>,
    /// What only pipelines of this task are told.
    pub options: T::Options,
}

/// A pipeline for a task, of the model in folder `model`.
///
/// A model of text is a folder with `config.json`, weights, `tokenizer.json`, and
/// `generation_config.json` if there is one; or one file of weights beside these. One of pictures
/// is a folder with `model_index.json`.
///
/// ```no_run
/// use outsize_generate::{GenerateOptions, TextTask, pipeline};
/// use outsize_plan::{Budget, Strategy};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut pipe = pipeline(TextTask::Text2TextGeneration, "path/to/flan-t5-xl")
///     .device_map(Strategy::Auto)
///     .max_memory(Budget::parse("cpu=2GB")?)
///     .batch_size(8)
///     .build()?;
/// for answer in pipe.generate_batch(&["Is 7 prime?", "Is 8 prime?"], &GenerateOptions::default())? {
///     println!("{}", answer.text);
/// }
/// # Ok(())
/// # }
/// ```
pub fn pipeline<T: PipelineTask>(task: T, model: impl Into<PathBuf>) -> PipelineBuilder<T> {
    PipelineBuilder {
        task,
        model: model.into(),
        max_memory: None,
        planning: Planning::default(),
        compute: ActivationDtype::F32,
        stop: None,
        options: T::Options::default(),
    }
}

impl<T: PipelineTask> PipelineBuilder<T> {
    /// How weights are placed: by default as is predicted to be the fastest.
    pub fn device_map(mut self, choice: impl Into<DeviceMapChoice>) -> Self {
        (self.planning.strategy, self.planning.device_map) = match choice.into() {
            DeviceMapChoice::Strategy(strategy) => (strategy, None),
            DeviceMapChoice::Given(map) => (Strategy::default(), Some(map)),
        };
        self
    }

    /// The most memory to hold, in bytes, the process itself included: by default nine tenths of
    /// the main memory that is available.
    pub fn max_memory(mut self, budget: Budget) -> Self {
        self.max_memory = Some(budget);
        self
    }

    /// The dtype of activations in matmuls: by default f32.
    pub fn compute(mut self, dtype: ActivationDtype) -> Self {
        self.compute = dtype;
        self
    }

    /// How fast the machine is, for predictions and the placement that they choose.
    pub fn figures(mut self, figures: HardwareProfile) -> Self {
        self.planning.figures = figures;
        self
    }

    /// A flag that ends the work, in the middle of a pass, once another thread or a signal sets it.
    pub fn stop(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop = Some(flag);
        self
    }

    /// Opens the model and places it within the budget.
    ///
    /// # Errors
    /// A model that is for another task; a file that is missing, broken, or asks for something that
    /// is not built in; a budget that is too small, and how many bytes would do.
    pub fn build(self) -> Result<T::Pipeline, T::Error> {
        T::build(self)
    }

    /// The budget: the one that was said, or [`default_budget`].
    pub fn budget(&self) -> Budget {
        let budget = self.max_memory.clone();
        budget.unwrap_or_else(|| default_budget(&Machine::detect(), current_rss().unwrap_or(0)))
    }
}

/// The budget of main memory if none is given: most of what is free, and the `held` bytes that this
/// process has already.
pub fn default_budget(machine: &Machine, held: u64) -> Budget {
    let mut budget = Budget::default();
    for (tier, share) in detected_budget(machine, held) {
        if tier == Tier::Cpu {
            budget.set(tier, share.value);
        }
    }
    budget
}
