//! From a checkpoint's folder and a budget to a model that can learn.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outsize_checkpoint::{Checkpoint, model_folder};
use outsize_core::{LEAST_RING, Planning, many_parameters_bytes, memory_overhead, process_bytes};
use outsize_generate::{
    ChatTemplates, GenerationConfig, Tokenizer, TokenizerFile, default_budget, read_config,
};
use outsize_lora::{LoraAdapter, LoraConfig, LoraTarget, ModulePattern};
use outsize_machine::{Machine, current_rss};
use outsize_models::{ActivationDtype, Init, ModelConfig};
use outsize_plan::{Budget, DeviceMap, Tier, Tree, infer};

use crate::memory::{largest_block, pass_bytes, used_values};
use crate::tuner::Finetuner;
use crate::{FinetuneError, LearningAdapter};

/// The rank and alpha of an adapter if nothing is said, as PEFT users mostly choose them.
const RANK: usize = 16;
const ALPHA: f64 = 32.0;

/// Tokens of the longest example if nothing is said.
const CONTEXT: usize = 512;

/// A model that is to be opened to learn: see [`finetune`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it builds"]
pub struct FinetuneBuilder {
    model: PathBuf,
    lora: LoraConfig,
    adapter: Option<PathBuf>,
    max_memory: Option<Budget>,
    planning: Planning,
    compute: ActivationDtype,
    context: Option<usize>,
    batch: usize,
    seed: u64,
    stop: Option<Arc<AtomicBool>>,
}

/// An adapter of the model in folder `model` that is to learn: one of rank 16 for all linear layers, with alpha 32, if nothing
/// else is said.
pub fn finetune(model: impl Into<PathBuf>) -> FinetuneBuilder {
    FinetuneBuilder {
        model: model.into(),
        lora: LoraConfig::new(RANK, ALPHA, ModulePattern::AllLinear),
        adapter: None,
        max_memory: None,
        planning: Planning::default(),
        compute: ActivationDtype::F32,
        context: None,
        batch: 1,
        seed: 0,
        stop: None,
    }
}

impl FinetuneBuilder {
    /// Which layers get an adapter, and of what rank.
    pub fn lora(mut self, config: LoraConfig) -> Self {
        self.lora = config;
        self
    }

    /// Goes on with the adapter in a folder, which says which layers have one.
    pub fn adapter(mut self, folder: impl Into<PathBuf>) -> Self {
        self.adapter = Some(folder.into());
        self
    }

    /// The most memory to hold, in bytes, the process itself included: by default nine tenths of the main memory that is
    /// available.
    pub fn max_memory(mut self, budget: Budget) -> Self {
        self.max_memory = Some(budget);
        self
    }

    /// How weights are placed.
    pub fn planning(mut self, planning: Planning) -> Self {
        self.planning = planning;
        self
    }

    /// The dtype of activations in matmuls of a pass forward: by default f32. Gradients are f32.
    pub fn compute(mut self, dtype: ActivationDtype) -> Self {
        self.compute = dtype;
        self
    }

    /// Tokens of the longest example, of which a longer one is cut: by default 512, or as many as the model can have.
    pub fn context(mut self, tokens: usize) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Examples of one pass over the weights: by default 1.
    pub fn batch_size(mut self, examples: usize) -> Self {
        self.batch = examples;
        self
    }

    /// Draws the values that an adapter begins with: by default 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
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
    /// A model that cannot learn so; a file that is missing, broken, or asks for something that is not built in; a budget that
    /// is too small, and how many bytes would do.
    pub fn build(self) -> Result<Finetuner, FinetuneError> {
        let folder = model_folder(&self.model).to_owned();
        let config = read_config(&folder)?;
        let longest = config.cache().longest_context;
        let context = self.context.unwrap_or(CONTEXT.min(longest));
        check("the context", context, 2, longest)?;
        check("the batch", self.batch, 1, outsize_models::MAX_BATCH)?;
        let start = match &self.adapter {
            Some(folder) => Some(LoraAdapter::open(folder, &config)?),
            None => None,
        };
        let lora = start.as_ref().map_or(&self.lora, LoraAdapter::config).clone();
        let targets = lora.targets(&config)?;

        let checkpoint = Checkpoint::open(&self.model).map_err(outsize_core::Error::from)?;
        let tree = config.tree(&folder.to_string_lossy(), checkpoint.tensors())?;
        let file = TokenizerFile::read(&folder)?;
        let (map, kept) =
            self.placed(&tree, &config, &checkpoint, &targets, context, file.memory())?;
        let tokenizer = Tokenizer::load(file)?;
        let template = ChatTemplates::open(&folder)?.default_template().ok();
        let eos = GenerationConfig::open(&folder)?.eos_token_id;

        let options = outsize_core::Options {
            planning: self.planning.clone(),
            stop: self.stop.clone(),
            ..config.options(checkpoint.tensors())
        };
        let adapter = match start {
            Some(start) => {
                LearningAdapter::from_parts(targets, &start.parts()?).map_err(|path| {
                    outsize_core::Error::Adapter { path, reason: "it has no matrices".into() }
                })?
            }
            None => LearningAdapter::new(targets, self.seed),
        };
        let init = Init { compute: self.compute, ..Init::new(&burn::tensor::Device::flex()) };
        let model = config.dispatch(&init, &checkpoint, &map, &options)?;
        Ok(Finetuner {
            model,
            config,
            lora,
            adapter,
            tokenizer,
            template,
            eos,
            context,
            batch: self.batch,
            kept,
        })
    }

    /// Where the weights live, and of how many blocks activations are kept: as is predicted to be the fastest.
    fn placed(
        &self,
        tree: &Tree,
        config: &ModelConfig,
        checkpoint: &Checkpoint,
        targets: &[LoraTarget],
        context: usize,
        tokenizer: u64,
    ) -> Result<(DeviceMap, usize), FinetuneError> {
        let held = current_rss().unwrap_or(0);
        let budget = self.max_memory.clone();
        let budget = budget.unwrap_or_else(|| default_budget(&Machine::detect(), held));
        if budget.iter().any(|(tier, bytes)| matches!(tier, Tier::Gpu(_)) && bytes > 0) {
            return Err(FinetuneError::Gpu);
        }
        let process = process_bytes(held)
            .saturating_add(many_parameters_bytes(tree))
            .saturating_add(LearningAdapter::learning_bytes(targets))
            .saturating_add(tokenizer);
        let blocks = config.cache().layers.len();
        let figures = &self.planning.figures;
        let forward = 2.0 * (self.batch * context) as f64 * used_values(tree);
        let mut best: Option<(f64, DeviceMap, usize)> = None;
        for kept in (0..=4).map(|quarters| blocks * quarters / 4) {
            let pass = pass_bytes(config, targets, self.compute, [self.batch, context], kept);
            let unsupported = || FinetuneError::Unsupported { model_type: config.model_type() };
            let options = outsize_core::Options {
                planning: self.planning.clone(),
                needs: memory_overhead(process, pass.ok_or_else(unsupported)?),
                ..config.options(checkpoint.tensors())
            };
            let map = match (infer_learning(tree, &budget, &options), &best) {
                (Ok(map), _) => map,
                (Err(error), None) => return Err(outsize_core::Error::from(error).into()),
                (Err(_), Some(_)) => break,
            };
            // Forward, once more where activations are not kept, and backward.
            let passes = 3.0 - kept as f64 / blocks.max(1) as f64;
            let computing = passes * forward / figures.cpu.product_flops;
            // Forward and backward.
            let reading = 2.0 * map.streamed_bytes() as f64 / figures.disk.bytes_per_second;
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
    tree: &Tree,
    budget: &Budget,
    options: &outsize_core::Options,
) -> Result<DeviceMap, outsize_plan::Error> {
    let options = outsize_plan::Options { no_split: Vec::new(), ..options.plan() };
    let with_ring = |min_ring| outsize_plan::Options { min_ring, ..options.clone() };
    // A block that stays in the ring from its pass forward to the one backward is read once for both.
    let large = with_ring(LEAST_RING.saturating_add(largest_block(tree)));
    infer(tree, budget, &large).or_else(|_| infer(tree, budget, &with_ring(LEAST_RING)))
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
