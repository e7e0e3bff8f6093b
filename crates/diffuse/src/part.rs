//! One part of a pipeline: described, planned, dispatched.

use std::path::Path;

use outsize_checkpoint::Checkpoint;
use outsize_core::{Dispatched, decide};
use outsize_models::{Component, ComponentConfig, Init, WeightKind};
use outsize_plan::{DeviceMap, Estimate, MemoryOverhead, Passes, Tree, estimate};

use crate::error::Error;
use crate::folder::PartFiles;
use crate::settings::ImageSettings;

/// The parts of a pipeline, in the order in which they take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelinePart {
    /// Prompts to what the denoiser is told.
    TextEncoder,
    /// Noisy latents to less noisy ones, step by step.
    Unet,
    /// Latents to pictures.
    Vae,
}

impl PipelinePart {
    /// All, in their order.
    pub const ALL: [Self; 3] = [Self::TextEncoder, Self::Unet, Self::Vae];

    /// The name of its folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::TextEncoder => "text_encoder",
            Self::Unet => "unet",
            Self::Vae => "vae",
        }
    }
}

/// Where the weights of a part live while it is its turn.
#[derive(Debug, Clone)]
pub struct PartPlan {
    /// Which part.
    pub part: PipelinePart,
    /// What there is to place.
    pub tree: Tree,
    /// Where it lives, and what it takes.
    pub map: DeviceMap,
}

/// A part whose configuration and headers are read.
#[derive(Debug)]
pub(crate) struct OpenedPart<C: Component> {
    pub part: PipelinePart,
    pub config: ComponentConfig<C>,
    pub tree: Tree,
    checkpoint: Checkpoint,
}

impl<C: Component> OpenedPart<C> {
    pub fn open(part: PipelinePart, files: &PartFiles) -> Result<Self, Error> {
        let config = ComponentConfig::from_json(&files.config_text()?)
            .map_err(|error| Error::field(&files.config, error))?;
        let checkpoint = Checkpoint::open(&files.weights).map_err(outsize_core::Error::from)?;
        let place = files.weights.parent().unwrap_or(Path::new("")).to_string_lossy();
        let tree = config.tree(&place, checkpoint.tensors())?;
        Ok(Self { part, config, tree, checkpoint })
    }

    pub fn plan(&self, settings: &ImageSettings, needs: MemoryOverhead) -> Result<PartPlan, Error> {
        let map = decide(&self.tree, &self.options(settings, needs))?;
        Ok(PartPlan { part: self.part, tree: self.tree.clone(), map })
    }

    /// What the part takes as it is stored.
    pub fn estimate(
        &self,
        settings: &ImageSettings,
        needs: MemoryOverhead,
    ) -> Result<Estimate, Error> {
        let options = self.options(settings, needs).plan();
        let passes = Passes { longest: options.clone(), shortest: options };
        Ok(estimate(&self.tree, None, Some(&passes)).map_err(outsize_core::Error::from)?)
    }

    pub fn dispatch(
        &self,
        settings: &ImageSettings,
        plan: &PartPlan,
    ) -> Result<Dispatched<C>, outsize_core::Error> {
        let mut init = Init::new(&settings.device);
        init.compute = settings.compute;
        let options = self.options(settings, *plan.map.needs());
        self.config.dispatch(&init, &self.checkpoint, &plan.map, &options)
    }

    fn options(&self, settings: &ImageSettings, needs: MemoryOverhead) -> outsize_core::Options {
        outsize_core::Options {
            budget: settings.max_memory.clone(),
            needs,
            planning: settings.planning.clone(),
            stop: settings.stop.clone(),
            ..self.config.options(self.checkpoint.tensors())
        }
    }

    /// The most that packed activations of one linear layer take, in bytes; of at most so many `rows`.
    pub fn packed_bytes(&self, settings: &ImageSettings, rows: u64) -> u64 {
        let linear = |kind| kind == WeightKind::Linear;
        let weights = self.config.weights();
        let products =
            weights.iter().filter(|weight| linear(weight.kind) && weight.shape.len() == 2);
        let packed = products.map(|weight| {
            let width = weight.shape[1] as u64;
            outsize_kernels::matmul::packed_bytes(settings.compute, rows, width)
        });
        packed.max().unwrap_or(0)
    }
}
