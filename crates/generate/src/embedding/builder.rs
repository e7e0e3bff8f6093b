//! Embeddings as a task of [`pipeline`](crate::pipeline()).

use std::path::{Path, PathBuf};

use outsize_checkpoint::model_folder;
use outsize_models::{CacheOptions, Logits, ModelConfig};

use super::EmbeddingPipeline;
use super::recipe::EmbeddingRecipe;
use super::tokenizer::EmbeddingTokenizer;
use crate::builder::{PipelineBuilder, PipelineTask};
use crate::error::Error;
use crate::pipeline::{OpenedModel, PipelineError, PipelineSettings, read_config_as};
use crate::planning::GenerationWorkload;

/// Tokens of a text where the caller does not say.
const DEFAULT_TOKENS: usize = 512;

/// Texts become vectors: the task of an [`EmbeddingPipeline`], `feature-extraction` in
/// transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingTask;

/// What only pipelines of embeddings are told.
#[derive(Debug, Clone)]
pub struct EmbeddingPipelineOptions {
    context: Option<usize>,
    batch: usize,
    adapter: Option<PathBuf>,
}

impl Default for EmbeddingPipelineOptions {
    fn default() -> Self {
        Self { context: None, batch: 1, adapter: None }
    }
}

impl PipelineBuilder<EmbeddingTask> {
    /// Tokens of the longest text, special ones included; what is longer is cut off: by default
    /// 512, or as many as the model can have.
    pub fn context(mut self, tokens: usize) -> Self {
        self.options.context = Some(tokens);
        self
    }

    /// Texts that are run side by side: by default 1.
    pub fn batch_size(mut self, texts: usize) -> Self {
        self.options.batch = texts;
        self
    }

    /// Adds what the LoRA adapter in a folder says, as PEFT publishes them, to the model's linear
    /// layers.
    pub fn adapter(mut self, folder: impl Into<PathBuf>) -> Self {
        self.options.adapter = Some(folder.into());
        self
    }
}

impl PipelineTask for EmbeddingTask {
    type Options = EmbeddingPipelineOptions;
    type Pipeline = EmbeddingPipeline;
    type Error = PipelineError;

    /// Opens the checkpoint, places the model within the budget, and begins to read.
    fn build(builder: PipelineBuilder<Self>) -> Result<EmbeddingPipeline, PipelineError> {
        let folder = model_folder(&builder.model);
        let recipe = EmbeddingRecipe::open(folder)?;
        let mut model = OpenedModel::new(&builder.model, read_embedding_config(folder)?)?;
        if let Some(adapter) = &builder.options.adapter {
            model.adapt(adapter)?;
        }
        let longest = model.config().cache().longest_context;
        let context = builder.options.context.unwrap_or(DEFAULT_TOKENS.min(longest));
        let cache = CacheOptions { batch: builder.options.batch, ..CacheOptions::new(context) };
        let mut settings = PipelineSettings {
            max_memory: builder.budget(),
            workload: GenerationWorkload {
                compute: builder.compute,
                logits: Logits::Hidden,
                ..GenerationWorkload::new(cache, context)
            },
            planning: builder.planning,
            stop: builder.stop,
        };
        let tokenizer = model.load_tokenizer(folder, &mut settings)??;
        let tokenizer = EmbeddingTokenizer::new(tokenizer, recipe, model.config(), context);
        Ok(EmbeddingPipeline::new(model.dispatch(&settings, |_| {})?, tokenizer))
    }
}

/// Reads the configuration of a model whose hidden states are wanted from its folder, as
/// [`read_config`](crate::read_config) does that of others.
///
/// # Errors
/// As there; and a model whose prompts an encoder reads.
pub fn read_embedding_config(folder: &Path) -> Result<ModelConfig, PipelineError> {
    let config = read_config_as(folder, ModelConfig::without_head)?;
    match config.decoder_start() {
        Some(_) => Err(Error::EmbeddingEncoder.into()),
        None => Ok(config),
    }
}
