//! A model on which an adapter is to learn, opened and not placed.

use std::path::Path;

use outsize_core::{Planning, memory_overhead};
use outsize_lora::{LoraAdapter, LoraConfig, LoraTarget, MAX_RANK};
use outsize_models::Init;
use outsize_plan::DeviceMap;

use crate::memory::{infer_learning, pass_bytes, used_values};
use crate::opened_model::{OpenedModel, check};
use crate::settings::FinetuneSettings;
use crate::tuner::Finetuner;
use crate::{Examples, FinetuneError, LearningAdapter};

/// A model that is opened to learn and not placed.
#[derive(Debug)]
pub struct OpenedFinetune {
    model: OpenedModel,
    lora: LoraConfig,
    targets: Vec<LoraTarget>,
    /// What it goes on with.
    start: Option<LoraAdapter>,
}

impl OpenedFinetune {
    pub(crate) fn new(settings: FinetuneSettings) -> Result<Self, FinetuneError> {
        let model = OpenedModel::new(settings)?;
        let (settings, config) = (&model.settings, &model.config);
        let start = match &settings.adapter {
            Some(folder) => Some(LoraAdapter::open(folder, config)?),
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
        let targets = lora.targets(config)?;
        // An adapter may leave experts out.
        let targets = start.as_ref().map_or(targets, |start| start.targets().cloned().collect());
        if let Some(target) = targets.iter().find(|target| config.block_of(&target.path).is_none())
        {
            let path = target.path.clone();
            return Err(outsize_models::Error::OutsideBlocks { path }.into());
        }
        Ok(Self { model, lora, targets, start })
    }

    /// Reads a file of examples: JSON, one object a line, each an
    /// [`ExampleFormat`](crate::ExampleFormat).
    ///
    /// # Errors
    /// A line that is none, with its number.
    pub fn read_examples(&self, path: impl AsRef<Path>) -> Result<Examples, FinetuneError> {
        self.model.read_examples(path.as_ref())
    }

    /// Places the model within the budget, and begins to read it.
    ///
    /// # Errors
    /// How many bytes of budget would do.
    pub fn build(self) -> Result<Finetuner, FinetuneError> {
        let (map, kept) = self.placed()?;
        let Self { model, lora, targets, start } = self;
        let OpenedModel { settings, config, checkpoint, reader, .. } = model;
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

    /// Where the weights live, and of how many blocks activations are kept: as is predicted to be
    /// the fastest.
    fn placed(&self) -> Result<(DeviceMap, usize), FinetuneError> {
        let (model, targets) = (&self.model, &self.targets);
        let OpenedModel { settings, config, checkpoint, tree, reader, .. } = model;
        let (context, budget) = (reader.context, model.budget()?);
        let process = model.process().saturating_add(LearningAdapter::learning_bytes(targets));
        let blocks = config.cache().layers.len();
        let forward = 2.0 * (settings.batch * context) as f64 * used_values(tree);
        let mut best: Option<(f64, DeviceMap, usize)> = None;
        for kept in (0..=4).map(|quarters| blocks * quarters / 4) {
            let sizes = [settings.batch, context];
            let pass = pass_bytes(config, targets, settings.compute, sizes, kept);
            let options = outsize_core::Options {
                planning: Planning { figures: settings.figures.clone(), ..Planning::default() },
                needs: memory_overhead(process, pass.ok_or_else(|| model.unsupported())?),
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
