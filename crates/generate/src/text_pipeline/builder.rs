//! From a task and a checkpoint's folder to a pipeline.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outsize_core::Planning;
use outsize_machine::{Machine, current_rss, detected_budget};
use outsize_models::{ActivationDtype, CacheOptions, KvDtype, WhenFull};
use outsize_plan::{Budget, HardwareProfile, ManualMap, Strategy, Tier};

use super::TextPipeline;
use crate::generation_config::GenerationConfig;
use crate::pipeline::{OpenedModel, PipelineError, PipelineSettings, read_config};
use crate::planning::GenerationWorkload;
use crate::task::Task;
use crate::tokenizer::Tokenizer;

/// Tokens of context, and of a prompt that an encoder reads, where the caller does not say.
const DEFAULT_TOKENS: usize = 512;

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
pub struct PipelineBuilder {
    task: Task,
    model: PathBuf,
    max_memory: Option<Budget>,
    planning: Planning,
    compute: ActivationDtype,
    context: Option<usize>,
    prompt: Option<usize>,
    beams: Option<usize>,
    cache: CacheOptions,
    stop: Option<Arc<AtomicBool>>,
}

/// A pipeline for a task, of the checkpoint in folder `model`: `config.json`, weights, `tokenizer.json`, and
/// `generation_config.json` if there is one. Or `model` is one file of weights beside these.
///
/// ```no_run
/// use outsize_generate::{GenerateOptions, Task, pipeline};
/// use outsize_plan::{Budget, Strategy};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut pipe = pipeline(Task::Text2TextGeneration, "path/to/flan-t5-xl")
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
pub fn pipeline(task: Task, model: impl Into<PathBuf>) -> PipelineBuilder {
    PipelineBuilder {
        task,
        model: model.into(),
        max_memory: None,
        planning: Planning::default(),
        compute: ActivationDtype::F32,
        context: None,
        prompt: None,
        beams: None,
        cache: CacheOptions::new(0),
        stop: None,
    }
}

impl PipelineBuilder {
    /// How weights are placed: by default as is predicted to be the fastest.
    pub fn device_map(mut self, choice: impl Into<DeviceMapChoice>) -> Self {
        (self.planning.strategy, self.planning.device_map) = match choice.into() {
            DeviceMapChoice::Strategy(strategy) => (strategy, None),
            DeviceMapChoice::Given(map) => (Strategy::default(), Some(map)),
        };
        self
    }

    /// The most memory to hold, in bytes, the process itself included: by default nine tenths of the main memory that is
    /// available.
    pub fn max_memory(mut self, budget: Budget) -> Self {
        self.max_memory = Some(budget);
        self
    }

    /// Tokens of prompt and answer together, or of the answer if an encoder reads the prompt: by default 512, or as many as the
    /// model can have.
    pub fn context(mut self, tokens: usize) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Tokens of the longest prompt that an encoder reads: by default 512. Of other models the context is the limit.
    pub fn prompt_tokens(mut self, tokens: usize) -> Self {
        self.prompt = Some(tokens);
        self
    }

    /// Texts that are run side by side: by default 1.
    pub fn batch_size(mut self, texts: usize) -> Self {
        self.cache.batch = texts;
        self
    }

    /// The most beams that each text is searched with: by default as many as generation_config.json asks for, or 1.
    pub fn num_beams(mut self, beams: usize) -> Self {
        self.beams = Some(beams);
        self
    }

    /// The dtype of the KV cache: by default f32.
    pub fn kv_dtype(mut self, dtype: KvDtype) -> Self {
        self.cache.dtype = dtype;
        self
    }

    /// The dtype of activations in matmuls: by default f32.
    pub fn compute(mut self, dtype: ActivationDtype) -> Self {
        self.compute = dtype;
        self
    }

    /// What happens to a text that is longer than the context: by default it ends.
    pub fn when_full(mut self, rule: WhenFull) -> Self {
        self.cache.when_full = rule;
        self
    }

    /// How fast the machine is, for predictions and the placement that they choose.
    pub fn figures(mut self, figures: HardwareProfile) -> Self {
        self.planning.figures = figures;
        self
    }

    /// A flag that ends texts, in the middle of a pass, once another thread or a signal sets it.
    pub fn stop(mut self, flag: Arc<AtomicBool>) -> Self {
        self.stop = Some(flag);
        self
    }

    /// Opens the checkpoint, places the model within the budget, and begins to read.
    ///
    /// # Errors
    /// A model that is for another task; a file that is missing, broken, or asks for something that is not built in; a context
    /// that the model cannot have; a budget that is too small, and how many bytes would do.
    pub fn build(self) -> Result<TextPipeline, PipelineError> {
        let folder = match self.model.parent() {
            Some(parent) if self.model.is_file() => parent,
            _ => &self.model,
        };
        let config = read_config(folder)?;
        let right = Task::of(&config);
        if right != self.task {
            let (model_type, task) = (config.model_type(), self.task);
            return Err(PipelineError::Task { model_type, task, right });
        }
        let defaults = GenerationConfig::open(folder)?;
        defaults.check_start(&config)?;
        let model = OpenedModel::new(&self.model, config)?;
        let mut settings = self.settings(&model, &defaults);
        let file = model.tokenizer_file(folder, &mut settings)?;
        let tokenizer = Tokenizer::load(file?)?;
        let config = model.config().clone();
        let pipeline = model.dispatch(&settings, |_| {})?;
        Ok(TextPipeline { pipeline, tokenizer, defaults, config })
    }

    fn settings(&self, model: &OpenedModel, defaults: &GenerationConfig) -> PipelineSettings {
        let longest = model.config().cache().longest_context;
        let context = self.context.unwrap_or(DEFAULT_TOKENS.min(longest));
        let prompt = match self.task {
            Task::TextGeneration => context,
            Task::Text2TextGeneration => self.prompt.unwrap_or(DEFAULT_TOKENS),
        };
        let beams = self.beams.or(defaults.num_beams).unwrap_or(1);
        let cache = CacheOptions { context, beams, ..self.cache };
        PipelineSettings {
            max_memory: self
                .max_memory
                .clone()
                .unwrap_or_else(|| default_budget(&Machine::detect(), current_rss().unwrap_or(0))),
            workload: GenerationWorkload {
                compute: self.compute,
                ..GenerationWorkload::new(cache, prompt)
            },
            planning: self.planning.clone(),
            stop: self.stop.clone(),
        }
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
