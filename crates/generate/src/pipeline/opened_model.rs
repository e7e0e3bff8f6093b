//! Models whose files are opened, before they are placed.

use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use outsize_checkpoint::Checkpoint;
use outsize_core::{Devices, Planning, gpu, process_bytes};
use outsize_lora::LoraAdapter;
use outsize_models::{CacheOptions, Error as ModelError, Init, KvCache, MAX_BATCH, ModelConfig};
use outsize_plan::{
    Budget, DeviceMap, Error as PlanError, Options, Shortfall, Tier, TierUse, Tree, predict,
};

use super::drafts::{DraftModel, Drafter, Drafts, cannot_draft};
use super::placement::streamed_range;
use super::{Pipeline, PipelineError, PipelineSettings, Step};
use crate::error::Error;
use crate::gpu_context::gpu_contexts;
use crate::planning::{GenerationWorkload, Plan, Planner};
use crate::tokenizer::Tokenizer;
use crate::tokenizer_file::TokenizerFile;

/// Bytes of a tokenizer.json that the account of the process itself has room for.
const SMALL_TOKENIZER: u64 = 16 << 20;

/// Tokens of a prompt that a model which drafts is run on at once, at most.
const DRAFT_PROMPT: usize = 256;

/// How many times its length a large tokenizer.json takes to load, as those of 200,000 tokens and
/// more do.
const LARGE_TOKENIZER_TIMES: u64 = 15;

/// Bytes that a tokenizer grows by while it is used: its caches.
const TOKENIZER_GROWTH: u64 = 8 << 20;

/// Bytes by which what a process holds at first differs from one time to the next.
const PROCESS_JITTER: u64 = 2 << 20;

/// A model that is opened and not placed: its configuration and the headers of its checkpoint are
/// read.
#[derive(Debug)]
pub struct OpenedModel {
    pub(super) config: ModelConfig,
    pub(super) checkpoint: Checkpoint,
    tree: Tree,
    /// What the process takes by itself, in bytes.
    process: u64,
    /// What it held before the model was opened, in bytes, if the system says so.
    begun: Option<u64>,
    /// What drafts tokens; else they are looked up in the text.
    draft: Option<Box<Self>>,
    /// What is added to its linear layers.
    pub(super) adapter: Option<LoraAdapter>,
}

impl OpenedModel {
    /// Opens the checkpoint in `folder`, which holds a model of configuration `config`. What the
    /// process holds before is counted as its own: a tokenizer is to be loaded later.
    ///
    /// # Errors
    /// What is wrong with the checkpoint.
    pub fn new(folder: &Path, config: ModelConfig) -> Result<Self, PipelineError> {
        // What headers take is counted by parameters, as where a model is planned and not run.
        let begun = outsize_machine::begun_rss();
        let process = process_bytes(begun.unwrap_or(0));
        let checkpoint = Checkpoint::open(folder).map_err(outsize_core::Error::from)?;
        let tree = config.tree(&folder.to_string_lossy(), checkpoint.tensors())?;
        Ok(Self { config, checkpoint, tree, process, begun, draft: None, adapter: None })
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Has a smaller model that knows the same tokens draft those that come next, where the KV
    /// cache is [made for drafts](CacheOptions::draft_tokens): it stays in main memory whole. Else
    /// drafts are what came after the same tokens earlier in the text.
    ///
    /// # Errors
    /// A model that cannot take tokens back.
    pub fn draft_with(&mut self, draft: Self) -> Result<(), PipelineError> {
        if let Some(reason) = cannot_draft(draft.config.cache(), &CacheOptions::new(1)) {
            return Err(PipelineError::DraftModel { reason });
        }
        self.draft = Some(Box::new(draft));
        Ok(())
    }

    /// What a model that drafts for such a workload is opened with: whatever it takes. And so many
    /// bytes beside the process.
    fn draft_settings(
        &self,
        draft: &Self,
        settings: &PipelineSettings,
    ) -> Result<(PipelineSettings, u64), PipelineError> {
        let of_target = &settings.workload;
        let cache = CacheOptions {
            context: of_target.cache.context.min(draft.config.cache().longest_context),
            ..of_target.cache
        };
        let workload = GenerationWorkload {
            compute: of_target.compute,
            ..GenerationWorkload::new(cache, of_target.prompt.min(DRAFT_PROMPT))
        };
        let mut max_memory = Budget::default();
        max_memory.set(Tier::Cpu, u64::MAX >> 1);
        let stop = settings.stop.clone();
        let mut settings =
            PipelineSettings { max_memory, workload, planning: Planning::default(), stop };
        let (_, plan) = draft.plan_alone(&settings)?;
        let of_cpu = plan.map.tiers().iter().find(|used| used.tier == Tier::Cpu);
        let bytes = of_cpu.map_or(0, TierUse::sum);
        settings.max_memory.set(Tier::Cpu, bytes);
        Ok((settings, bytes.saturating_sub(draft.process)))
    }

    /// Whether the budget is enough, as [`dispatch`](Self::dispatch) finds it.
    ///
    /// # Errors
    /// How many bytes of budget would do.
    pub fn check(&self, settings: &PipelineSettings) -> Result<(), PipelineError> {
        self.plan(settings)?;
        Ok(())
    }

    /// Where everything is to live, and what knows it; and what a model that drafts is opened with.
    fn plan(
        &self,
        settings: &PipelineSettings,
    ) -> Result<((Planner, Plan), Option<PipelineSettings>), PipelineError> {
        let cache = &settings.workload.cache;
        if cache.draft_tokens == 0 {
            return Ok((self.plan_alone(settings)?, None));
        }
        if let Some(reason) = cannot_draft(self.config.cache(), cache) {
            return Err(PipelineError::Drafts { reason });
        }
        let Some(draft) = &self.draft else {
            return Ok((self.plan_alone(settings)?, None));
        };
        let (of_draft, bytes) = self.draft_settings(draft, settings)?;
        let mut settings = settings.clone();
        let process = settings.workload.process.max(self.process);
        settings.workload.process = process.saturating_add(bytes);
        Ok((self.plan_alone(&settings)?, Some(of_draft)))
    }

    /// The same without what drafts tokens.
    fn plan_alone(&self, settings: &PipelineSettings) -> Result<(Planner, Plan), PipelineError> {
        let (planner, budget) = (self.planner(settings)?, &settings.max_memory);
        let plan = planner.plan(budget).or_else(|error| match &error {
            // What a refusal asked for does, although the process held a little less then.
            PlanError::TooSmall(Shortfall { tier: Tier::Cpu, budget: given, least, .. })
                if given.saturating_add(PROCESS_JITTER) >= *least =>
            {
                planner.with_less_process(PROCESS_JITTER).plan(budget).map_err(|_| error)
            }
            _ => Err(error),
        });
        Ok((planner, plan.map_err(outsize_core::Error::from)?))
    }

    /// Reads the tokenizer.json in `folder`, and counts in `settings` what it will take. A large
    /// one may take more than the budget: what is refused is refused before it is read, or else
    /// before it is loaded.
    ///
    /// # Errors
    /// How many bytes of budget would do. The inner error is that of reading: some programs can do
    /// without a tokenizer.
    pub fn tokenizer_file(
        &self,
        folder: &Path,
        settings: &mut PipelineSettings,
    ) -> Result<Result<TokenizerFile, Error>, PipelineError> {
        let length = TokenizerFile::length(folder);
        if length > SMALL_TOKENIZER {
            settings.workload.tokenizer = length;
            if self.check(settings).is_err() {
                // The file is not read for a better figure.
                settings.workload.tokenizer = length.saturating_mul(LARGE_TOKENIZER_TIMES);
                self.check(settings)?;
            }
        }
        let file = TokenizerFile::read(folder);
        settings.workload.tokenizer = file.as_ref().map_or(0, TokenizerFile::memory);
        self.check(settings)?;
        Ok(file)
    }

    /// Loads the tokenizer in `folder`, and counts in `settings` first what that may take, then
    /// what it holds.
    ///
    /// # Errors
    /// As [`tokenizer_file`](Self::tokenizer_file); the inner error is that of loading too.
    pub fn load_tokenizer(
        &self,
        folder: &Path,
        settings: &mut PipelineSettings,
    ) -> Result<Result<Tokenizer, Error>, PipelineError> {
        let tokenizer = self.tokenizer_file(folder, settings)?.and_then(Tokenizer::load);
        self.count_loaded_tokenizer(settings);
        Ok(tokenizer)
    }

    /// Counts the tokenizer in `settings` as what the process has grown by, once it is loaded:
    /// loading it may take much more.
    pub fn count_loaded_tokenizer(&self, settings: &mut PipelineSettings) {
        if let (Some(begun), Some(held)) = (self.begun, outsize_machine::begun_rss()) {
            let grown = held.saturating_sub(begun).saturating_add(TOKENIZER_GROWTH);
            settings.workload.tokenizer = settings.workload.tokenizer.min(grown);
        }
    }

    fn planner(&self, settings: &PipelineSettings) -> Result<Planner, PipelineError> {
        let most = self.config.cache().longest_context;
        let mut workload = settings.workload.clone();
        let context = workload.cache.context;
        if context > most {
            return Err(PipelineError::Context { context, most });
        }
        let sequences = workload.cache.sequences();
        if !(1..=MAX_BATCH).contains(&sequences) {
            return Err(ModelError::Batch { batch: sequences, max: MAX_BATCH }.into());
        }
        workload.process = workload.process.max(self.process);
        workload.adapter = self.adapter.as_ref().map(LoraAdapter::memory).unwrap_or_default();
        let gpus = settings.max_memory.iter().filter_map(|(tier, bytes)| match tier {
            Tier::Gpu(number) if bytes > 0 => Some(number),
            _ => None,
        });
        for number in gpus {
            // Before the GPU is opened.
            let contexts = gpu_contexts();
            gpu(number)?;
            let context = contexts.get(&number).copied().unwrap_or(0);
            workload.gpu_context = workload.gpu_context.max(context);
            // With what its driver takes of the process's memory.
            let held = outsize_machine::current_rss().unwrap_or(0);
            workload.process = workload.process.max(process_bytes(held));
        }
        let options = Options {
            // In the words of the tree.
            no_split: Vec::new(),
            ..self.options(settings).plan()
        };
        let (tree, config) = (self.tree.clone(), Some(self.config.clone()));
        let mut planner = Planner::new(tree, config, workload, options);
        if let Some(map) = &settings.planning.device_map {
            planner.place_by(map.clone());
        }
        Ok(planner)
    }

    fn options(&self, settings: &PipelineSettings) -> outsize_core::Options {
        outsize_core::Options {
            planning: settings.planning.clone(),
            stop: settings.stop.clone(),
            ..self.config.options(self.checkpoint.tensors())
        }
    }

    /// Places the model within the budget, and begins to read. `observe` is told of every step.
    ///
    /// # Errors
    /// How many bytes of budget would do; drafts that the model or the workload cannot have.
    pub fn dispatch(
        mut self,
        settings: &PipelineSettings,
        observe: impl FnMut(Step<'_>),
    ) -> Result<Pipeline, PipelineError> {
        let (plan, of_draft) = self.plan(settings)?;
        let (most, vocabulary) = (settings.workload.cache.draft_tokens, self.config.vocab_size());
        let draft = self.draft.take().zip(of_draft).map(|(draft, settings)| {
            let plan = draft.plan_alone(&settings)?;
            draft.dispatch_alone(&settings, plan, |_| {})
        });
        let drafter = match draft.transpose()? {
            Some(pipeline) => Drafter::Model(DraftModel::new(pipeline)),
            None => Drafter::PromptLookup,
        };
        let mut pipeline = self.dispatch_alone(settings, plan, observe)?;
        pipeline.drafts = (most > 0).then(|| Drafts::new(drafter, most, vocabulary));
        Ok(pipeline)
    }

    fn dispatch_alone(
        self,
        settings: &PipelineSettings,
        (planner, plan): (Planner, Plan),
        mut observe: impl FnMut(Step<'_>),
    ) -> Result<Pipeline, PipelineError> {
        let (map, workload) = (&plan.map, &plan.options.workload);
        let prediction = predict(planner.tree(), map, &plan.options.figures, workload);
        let chunk = workload.chunk as usize;
        let predicted_tokens = workload.prompt.saturating_mul(workload.batch);
        observe(Step::Planned { map, prediction: &prediction });
        let (config, checkpoint) = (&self.config, &self.checkpoint);
        let streamed = streamed_range(config, checkpoint, map);
        // Before dispatching, which begins to read: the system lets a process map memory and fill
        // what it has by turns only.
        let device = Device::flex();
        let workload = settings.workload.clone().for_model(config);
        let devices = Devices::of_map(map)?;
        let devices = config.cache_devices(map, &devices);
        let cache = KvCache::on(config.cache(), &workload.cache, &devices)?;
        let init = Init { device, compute: settings.workload.compute };
        let parts = self.adapter.as_ref().map(LoraAdapter::parts).transpose()?;
        let model = config.dispatch(&init, checkpoint, map, &self.options(settings))?;
        if let Some(parts) = parts {
            model.set_low_rank(&parts)?;
        }
        observe(Step::Dispatched);
        let (spec, done) = (config.cache().clone(), Arc::default());
        let start = config.decoder_start().map(|token| [token]);
        let reusable = reusable_bytes(map, workload.reusable_bytes(config, chunk));
        let drafts = None;
        Ok(Pipeline {
            model,
            cache,
            vocab_size: config.vocab_size(),
            start,
            chunk,
            prediction,
            predicted_tokens,
            streamed,
            spec,
            reusable,
            drafts,
            done,
        })
    }
}

/// Bytes that buffers of activations, in use and kept, may take together: what was planned for such
/// buffers, and what is free in main memory. Other activations may have their peak while many are
/// kept.
fn reusable_bytes(map: &DeviceMap, planned: u64) -> usize {
    let of_cpu = map.tiers().iter().find(|used| used.tier == Tier::Cpu);
    match of_cpu.map(TierUse::free) {
        Some(Some(free)) => free.saturating_add(planned).try_into().unwrap_or(usize::MAX),
        _ => usize::MAX,
    }
}
