//! Pipelines of text.

use std::path::PathBuf;

use outsize_checkpoint::model_folder;
use outsize_models::{CacheOptions, KvDtype, WhenFull};

use super::TextPipeline;
use crate::builder::{PipelineBuilder, PipelineTask};
use crate::generation_config::GenerationConfig;
use crate::pipeline::{OpenedModel, PipelineError, PipelineSettings, read_config};
use crate::planning::GenerationWorkload;
use crate::task::TextTask;

/// Tokens of context, and of a prompt that an encoder reads, where the caller does not say.
const DEFAULT_TOKENS: usize = 512;

/// What only pipelines of text are told.
#[derive(Debug, Clone)]
pub struct TextPipelineOptions {
    context: Option<usize>,
    prompt: Option<usize>,
    beams: Option<usize>,
    draft: Option<PathBuf>,
    adapter: Option<PathBuf>,
    cache: CacheOptions,
}

impl Default for TextPipelineOptions {
    fn default() -> Self {
        let cache = CacheOptions::new(0);
        Self { context: None, prompt: None, beams: None, draft: None, adapter: None, cache }
    }
}

impl PipelineBuilder<TextTask> {
    /// Tokens of prompt and answer together, or of the answer if an encoder reads the prompt: by
    /// default 512, or as many as the model can have.
    pub fn context(mut self, tokens: usize) -> Self {
        self.options.context = Some(tokens);
        self
    }

    /// Tokens of the longest prompt that an encoder reads: by default 512. Of other models the
    /// context is the limit.
    pub fn prompt_tokens(mut self, tokens: usize) -> Self {
        self.options.prompt = Some(tokens);
        self
    }

    /// Texts that are run side by side: by default 1.
    pub fn batch_size(mut self, texts: usize) -> Self {
        self.options.cache.batch = texts;
        self
    }

    /// The most beams that each text is searched with: by default as many as generation_config.json
    /// asks for, or 1.
    pub fn num_beams(mut self, beams: usize) -> Self {
        self.options.beams = Some(beams);
        self
    }

    /// Has a smaller model that knows the same tokens guess up to `tokens` next ones, which one
    /// pass verifies: the texts stay the same. It stays in main memory whole. For one text at a
    /// time.
    pub fn draft_model(mut self, model: impl Into<PathBuf>, tokens: usize) -> Self {
        (self.options.draft, self.options.cache.draft_tokens) = (Some(model.into()), tokens);
        self
    }

    /// Has up to `tokens` next ones guessed to be those that came after the same tokens earlier in
    /// the text, as [`draft_model`](Self::draft_model) has a model guess them.
    pub fn prompt_lookup(mut self, tokens: usize) -> Self {
        (self.options.draft, self.options.cache.draft_tokens) = (None, tokens);
        self
    }

    /// Adds what the LoRA adapter in a folder says, as PEFT publishes them, to the model's linear
    /// layers. One that [drafts](Self::draft_model) stays as it is.
    pub fn adapter(mut self, folder: impl Into<PathBuf>) -> Self {
        self.options.adapter = Some(folder.into());
        self
    }

    /// The dtype of the KV cache: by default f32.
    pub fn kv_dtype(mut self, dtype: KvDtype) -> Self {
        self.options.cache.dtype = dtype;
        self
    }

    /// What happens to a text that is longer than the context: by default it ends.
    pub fn when_full(mut self, rule: WhenFull) -> Self {
        self.options.cache.when_full = rule;
        self
    }

    fn settings(&self, model: &OpenedModel, defaults: &GenerationConfig) -> PipelineSettings {
        let TextPipelineOptions { context, prompt, beams, cache, .. } = &self.options;
        let longest = model.config().cache().longest_context;
        let context = context.unwrap_or(DEFAULT_TOKENS.min(longest));
        let prompt = match self.task {
            TextTask::TextGeneration => context,
            TextTask::Text2TextGeneration => prompt.unwrap_or(DEFAULT_TOKENS),
        };
        let beams = beams.or(defaults.num_beams).unwrap_or(1);
        let cache = CacheOptions { context, beams, ..*cache };
        PipelineSettings {
            max_memory: self.budget(),
            workload: GenerationWorkload {
                compute: self.compute,
                ..GenerationWorkload::new(cache, prompt)
            },
            planning: self.planning.clone(),
            stop: self.stop.clone(),
        }
    }
}

impl PipelineTask for TextTask {
    type Options = TextPipelineOptions;
    type Pipeline = TextPipeline;
    type Error = PipelineError;

    /// Opens the checkpoint, places the model within the budget, and begins to read.
    fn build(builder: PipelineBuilder<Self>) -> Result<TextPipeline, PipelineError> {
        let path = &builder.model;
        let folder = model_folder(path);
        let config = read_config(folder)?;
        let (task, right) = (builder.task, Self::of(&config));
        if right != task {
            return Err(PipelineError::Task { model_type: config.model_type(), task, right });
        }
        let defaults = GenerationConfig::open(folder)?;
        defaults.check_start(&config)?;
        let mut model = OpenedModel::new(path, config)?;
        if let Some(draft) = &builder.options.draft {
            model.draft_with(OpenedModel::new(draft, read_config(model_folder(draft))?)?)?;
        }
        if let Some(adapter) = &builder.options.adapter {
            model.adapt(adapter)?;
        }
        let mut settings = builder.settings(&model, &defaults);
        let tokenizer = model.load_tokenizer(folder, &mut settings)??;
        let config = model.config().clone();
        let pipeline = model.dispatch(&settings, |_| {})?;
        Ok(TextPipeline { pipeline, tokenizer, defaults, config })
    }
}
