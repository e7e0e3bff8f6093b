//! A model that is opened to learn and not placed: all but its weights is read.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use outsize_checkpoint::{Checkpoint, model_folder};
use outsize_core::{LEAST_RING, Planning, many_parameters_bytes, memory_overhead, process_bytes};
use outsize_generate::{
    ChatTemplates, Error as TextError, GenerationConfig, Tokenizer, TokenizerFile, default_budget,
    read_config,
};
use outsize_lora::{LoraAdapter, LoraConfig, LoraTarget, MAX_RANK};
use outsize_machine::{Machine, current_rss};
use outsize_models::{Init, MAX_BATCH, ModelConfig};
use outsize_plan::{Budget, DeviceMap, Tier, Tree, infer};

use crate::example::ExampleReader;
use crate::memory::{largest_block, pass_bytes, used_values};
use crate::settings::FinetuneSettings;
use crate::tuner::Finetuner;
use crate::{Examples, FinetuneError, LearningAdapter};

/// Tokens of the longest example if nothing is said.
const CONTEXT: usize = 512;

/// A model that is opened to learn and not placed.
#[derive(Debug)]
pub struct OpenedFinetune {
    settings: FinetuneSettings,
    config: ModelConfig,
    checkpoint: Checkpoint,
    tree: Tree,
    lora: LoraConfig,
    targets: Vec<LoraTarget>,
    /// What it goes on with.
    start: Option<LoraAdapter>,
    reader: ExampleReader,
    /// What the process takes by itself, the tokenizer and examples, in bytes.
    process: u64,
    examples: AtomicU64,
}

impl OpenedFinetune {
    pub(crate) fn new(settings: FinetuneSettings) -> Result<Self, FinetuneError> {
        let folder = model_folder(&settings.model);
        let config = read_config(folder)?;
        let longest = config.cache().longest_context;
        let context = settings.context.unwrap_or(CONTEXT.min(longest));
        check("the context", context, 2, longest)?;
        check("the batch", settings.batch, 1, MAX_BATCH)?;
        let start = match &settings.adapter {
            Some(folder) => Some(LoraAdapter::open(folder, &config)?),
            None => None,
        };
        let lora = start.as_ref().map_or(&settings.lora, LoraAdapter::config).clone();
        for rank in lora.rank_pattern.values().chain([&lora.rank]) {
            check("the rank", *rank, 1, MAX_RANK)?;
        }
        if !lora.alpha.is_finite() {
            let (value, expected) = (lora.alpha.to_string(), "it must be a number".into());
            return Err(FinetuneError::Setting { what: "alpha", value, expected });
        }
        let targets = lora.targets(&config)?;
        if let Some(target) = targets.iter().find(|target| config.block_of(&target.path).is_none())
        {
            let path = target.path.clone();
            return Err(outsize_models::Error::OutsideBlocks { path }.into());
        }
        let checkpoint = Checkpoint::open(&settings.model).map_err(outsize_core::Error::from)?;
        let tree = config.tree(&folder.to_string_lossy(), checkpoint.tensors())?;

        let process = process_bytes(current_rss().unwrap_or(0));
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
        Ok(Self {
            settings,
            config,
            checkpoint,
            tree,
            lora,
            targets,
            start,
            reader,
            process,
            examples,
        })
    }

    /// Reads a file of examples: JSON, one object a line, each an [`ExampleFormat`](crate::ExampleFormat).
    ///
    /// # Errors
    /// A line that is none, with its number.
    pub fn read_examples(&self, path: impl AsRef<Path>) -> Result<Examples, FinetuneError> {
        let examples = Examples::read(path.as_ref(), &self.reader)?;
        self.examples.fetch_add(examples.bytes(), Ordering::Relaxed);
        Ok(examples)
    }

    /// Places the model within the budget, and begins to read it.
    ///
    /// # Errors
    /// How many bytes of budget would do.
    pub fn build(self) -> Result<Finetuner, FinetuneError> {
        let (map, kept) = self.placed()?;
        let Self { settings, config, checkpoint, lora, targets, start, reader, .. } = self;
        let adapter = match &start {
            Some(start) => {
                let parts = start.parts()?;
                LearningAdapter::from_parts(targets, &parts).map_err(|path| {
                    let reason = "it has no matrices".into();
                    outsize_core::Error::Adapter { path, reason }
                })?
            }
            None => LearningAdapter::new(targets, settings.seed),
        };
        let init = Init { compute: settings.compute, ..Init::new(&burn::tensor::Device::flex()) };
        let options = config.options(checkpoint.tensors());
        let model = config.dispatch(&init, &checkpoint, &map, &options)?;
        Ok(Finetuner { model, config, lora, adapter, reader, kept, settings })
    }

    /// Where the weights live, and of how many blocks activations are kept: as is predicted to be the fastest.
    fn placed(&self) -> Result<(DeviceMap, usize), FinetuneError> {
        let Self { settings, config, checkpoint, tree, targets, .. } = self;
        let (context, budget) = (self.reader.context, budget(settings.max_memory.as_ref())?);
        let process = (self.process)
            .saturating_add(self.examples.load(Ordering::Relaxed))
            .saturating_add(many_parameters_bytes(tree))
            .saturating_add(LearningAdapter::learning_bytes(targets));
        let blocks = config.cache().layers.len();
        let forward = 2.0 * (settings.batch * context) as f64 * used_values(tree);
        let mut best: Option<(f64, DeviceMap, usize)> = None;
        for kept in (0..=4).map(|quarters| blocks * quarters / 4) {
            let sizes = [settings.batch, context];
            let pass = pass_bytes(config, targets, settings.compute, sizes, kept);
            let unsupported = || FinetuneError::Unsupported { model_type: config.model_type() };
            let options = outsize_core::Options {
                planning: Planning { figures: settings.figures.clone(), ..Planning::default() },
                needs: memory_overhead(process, pass.ok_or_else(unsupported)?),
                ..config.options(checkpoint.tensors())
            };
            let map = match (infer_learning(config, tree, &budget, &options), &best) {
                (Ok(map), _) => map,
                (Err(error), None) => return Err(outsize_core::Error::from(error).into()),
                (Err(_), Some(_)) => break,
            };
            // Forward, once more where activations are not kept, and backward.
            let passes = 3.0 - kept as f64 / blocks.max(1) as f64;
            let computing = passes * forward / settings.figures.cpu.product_flops;
            // Forward and backward.
            let reading =
                2.0 * map.streamed_bytes() as f64 / settings.figures.disk.bytes_per_second;
            let seconds = computing.max(reading);
            if best.as_ref().is_none_or(|(least, ..)| seconds < *least) {
                best = Some((seconds, map, kept));
            }
        }
        let (_, map, kept) = best.expect("the first is an error or the best so far");
        Ok((map, kept))
    }
}

/// Places weights for passes forward and backward.
fn infer_learning(
    config: &ModelConfig,
    tree: &Tree,
    budget: &Budget,
    options: &outsize_core::Options,
) -> Result<DeviceMap, outsize_plan::Error> {
    let options = outsize_plan::Options { no_split: Vec::new(), ..options.plan() };
    let with_ring = |min_ring| outsize_plan::Options { min_ring, ..options.clone() };
    // A block that stays in the ring from its pass forward to the one backward is read once for both.
    let large = with_ring(LEAST_RING.saturating_add(largest_block(config, tree)));
    infer(tree, budget, &large).or_else(|_| infer(tree, budget, &with_ring(LEAST_RING)))
}

/// The budget that was given, or most of what is free.
fn budget(given: Option<&Budget>) -> Result<Budget, FinetuneError> {
    let held = current_rss().unwrap_or(0);
    let budget = given.cloned().unwrap_or_else(|| default_budget(&Machine::detect(), held));
    let has_gpu = budget.iter().any(|(tier, bytes)| matches!(tier, Tier::Gpu(_)) && bytes > 0);
    match has_gpu {
        true => Err(FinetuneError::Gpu),
        false => Ok(budget),
    }
}

fn check(what: &'static str, value: usize, least: usize, most: usize) -> Result<(), FinetuneError> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(FinetuneError::Setting {
            what,
            value: value.to_string(),
            expected: format!("it must be from {least} to {most}"),
        }),
    }
}
