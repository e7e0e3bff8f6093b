//! A model that is opened to learn and not placed: all but its weights is read.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use outsize_checkpoint::{Checkpoint, model_folder};
use outsize_core::{many_parameters_bytes, process_bytes};
use outsize_generate::{
    ChatTemplates, Error as TextError, GenerationConfig, Tokenizer, TokenizerFile, default_budget,
    read_config,
};
use outsize_machine::{Machine, begun_rss, current_rss};
use outsize_models::{MAX_BATCH, ModelConfig};
use outsize_plan::{Budget, Tier, Tree};

use crate::example::ExampleReader;
use crate::settings::FinetuneSettings;
use crate::{Examples, FinetuneError};

/// Tokens of the longest example if nothing is said.
const CONTEXT: usize = 512;

/// What any training opens of a model.
#[derive(Debug)]
pub(crate) struct OpenedModel {
    pub settings: FinetuneSettings,
    pub config: ModelConfig,
    pub checkpoint: Checkpoint,
    pub tree: Tree,
    pub reader: ExampleReader,
    /// What the process takes by itself, and the tokenizer, in bytes.
    process: u64,
    examples: AtomicU64,
}

impl OpenedModel {
    pub fn new(settings: FinetuneSettings) -> Result<Self, FinetuneError> {
        let folder = model_folder(&settings.model);
        let config = read_config(folder)?;
        let longest = config.cache().longest_context;
        let context = settings.context.unwrap_or(CONTEXT.min(longest));
        check("the context", context, 2, longest)?;
        check("the batch", settings.batch, 1, MAX_BATCH)?;
        let checkpoint = Checkpoint::open(&settings.model).map_err(outsize_core::Error::from)?;
        let tree = config.tree(&folder.to_string_lossy(), checkpoint.tensors())?;

        let process = process_bytes(begun_rss().unwrap_or(0));
        let file = TokenizerFile::read(folder)?;
        let process = process.saturating_add(file.memory());
        let template = match ChatTemplates::open(folder)?.default_template() {
            Err(TextError::NoChatTemplate { .. }) => None,
            template => Some(template?),
        };
        let reader = ExampleReader {
            tokenizer: Tokenizer::load(file)?,
            template,
            eos: GenerationConfig::open(folder)?.eos_token_id,
            context,
            vocab_size: config.vocab_size(),
        };
        let examples = AtomicU64::new(0);
        Ok(Self { settings, config, checkpoint, tree, reader, process, examples })
    }

    pub fn read_examples(&self, path: &Path) -> Result<Examples, FinetuneError> {
        let examples = Examples::read(path, &self.reader)?;
        self.examples.fetch_add(examples.bytes(), Ordering::Relaxed);
        Ok(examples)
    }

    /// What the process takes besides what a pass does, in bytes.
    pub fn process(&self) -> u64 {
        (self.process)
            .saturating_add(self.examples.load(Ordering::Relaxed))
            .saturating_add(many_parameters_bytes(&self.tree))
    }

    /// The budget that was given, or most of what is free.
    pub fn budget(&self) -> Result<Budget, FinetuneError> {
        let held = current_rss().unwrap_or(0);
        let given = self.settings.max_memory.clone();
        let budget = given.unwrap_or_else(|| default_budget(&Machine::detect(), held));
        let has_gpu = budget.iter().any(|(tier, bytes)| matches!(tier, Tier::Gpu(_)) && bytes > 0);
        match has_gpu {
            true => Err(FinetuneError::Gpu),
            false => Ok(budget),
        }
    }

    pub fn unsupported(&self) -> FinetuneError {
        FinetuneError::Unsupported { model_type: self.config.model_type() }
    }
}

pub(crate) fn check(
    what: &'static str,
    value: usize,
    least: usize,
    most: usize,
) -> Result<(), FinetuneError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(FinetuneError::Setting {
            what,
            value: value.to_string(),
            expected: format!("it must be from {least} to {most}"),
        }),
    }
}
