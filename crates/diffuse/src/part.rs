//! One part of a pipeline: described, planned, dispatched.

use std::path::Path;

use outsize_checkpoint::{Checkpoint, TensorInfo};
use outsize_core::{Dispatched, InTurn, Turns, decide, gpu};
use outsize_models::{ActivationDtype, Component, ComponentConfig, Init, PicturePass, WeightKind};
use outsize_plan::{
    DeviceMap, Estimate, MemoryOverhead, Passes, Prediction, Tier, Tree, Workload, estimate,
    predict,
};

use crate::adapter::{AdaptedLayer, AdaptedLayers, AdapterFile, ModuleNames};
use crate::error::Error;
use crate::pipeline_part::PipelinePart;
use crate::settings::ImageSettings;

/// Where the weights of a part live while it is its turn.
#[derive(Debug, Clone)]
pub struct PartPlan {
    /// Which part.
    pub part: PipelinePart,
    /// What there is to place.
    pub tree: Tree,
    /// Where it lives, and what it takes.
    pub map: DeviceMap,
    /// How fast it is predicted to be: `decode` is a pass after the first.
    pub prediction: Prediction,
}

impl PartPlan {
    /// A pass after the first, as predicted.
    fn seconds(&self) -> f64 {
        self.prediction.decode.seconds
    }
}

/// What a part's configuration and the headers of its weights say.
#[derive(Debug)]
pub struct PartDescription {
    /// The text of the `config.json`.
    pub config: String,
    /// The tensors of its weights.
    pub tensors: Vec<TensorInfo>,
}

/// What a part needs besides its weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartNeeds {
    /// Main memory, where the processors compute it.
    pub alone: MemoryOverhead,
    /// Main memory, where a GPU computes it.
    pub beside_gpu: MemoryOverhead,
    /// What that GPU holds, in bytes.
    pub gpu: u64,
}

/// What a pass of a part holds, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassBytes {
    /// Activations, where the processors compute it.
    pub activations: u64,
    /// Activations in a GPU's memory, where that computes it.
    pub on_gpu: u64,
    /// What is in main memory then.
    pub beside_gpu: u64,
    /// What threads keep of their largest product.
    pub packed: u64,
}

impl PassBytes {
    /// Both at once.
    pub fn and(self, more: Self) -> Self {
        Self {
            activations: self.activations.saturating_add(more.activations),
            on_gpu: self.on_gpu.saturating_add(more.on_gpu),
            beside_gpu: self.beside_gpu.saturating_add(more.beside_gpu),
            packed: self.packed.max(more.packed),
        }
    }
}

/// A part, whatever its module.
pub(crate) trait AnyPart {
    /// Which one it is.
    fn part(&self) -> PipelinePart;

    /// Values in all of its parameters.
    fn parameter_count(&self) -> u64;

    /// Fields of its configuration that nobody here knows.
    fn unknown_fields(&self) -> &[String];

    /// The most that packed activations of one linear layer take, in bytes; of at most so many
    /// `rows`.
    fn packed_bytes(&self, settings: &ImageSettings, rows: u64) -> u64;

    /// Where it lives for such passes, and how fast it is: computed by one of the GPUs that the
    /// budget has or by the processors, whichever is predicted to be the fastest of those that have
    /// room for it.
    fn plan(
        &self,
        settings: &ImageSettings,
        needs: &PartNeeds,
        pass: &PicturePass,
    ) -> Result<PartPlan, Error>;

    /// What its adapters take in a pass.
    fn adapter_bytes(&self, pass: &PicturePass) -> PassBytes;

    /// Adds what an adapter's file has for it. Gives the modules of the file that it was for.
    fn adapt(&mut self, file: &AdapterFile, names: &ModuleNames) -> Result<Vec<String>, Error>;

    /// What it takes as it is stored.
    fn estimate(&self, settings: &ImageSettings, needs: MemoryOverhead) -> Result<Estimate, Error>;
}

/// A part's turn in memory: with what it is dispatched.
pub(crate) struct Turn<'a> {
    pub turns: &'a Turns,
    pub settings: &'a ImageSettings,
    pub plan: &'a PartPlan,
    pub checkpoint: &'a Checkpoint,
}

impl<'a> Turn<'a> {
    /// The part's module, which is dispatched when it is run.
    pub fn module<C: Component + Send + 'static>(&self, part: &'a Part<C>) -> InTurn<'a, C> {
        let Self { settings, plan, checkpoint, .. } = *self;
        self.turns.module(move || part.dispatch(checkpoint, settings, plan))
    }
}

/// A part that is described.
#[derive(Debug)]
pub(crate) struct Part<C: Component> {
    pub part: PipelinePart,
    pub config: ComponentConfig<C>,
    pub tree: Tree,
    /// Without what depends on settings.
    options: outsize_core::Options,
    adapted: AdaptedLayers,
}

impl<C: Component> Part<C> {
    /// Of the pipeline at `place`.
    pub fn new(
        part: PipelinePart,
        place: &Path,
        description: &PartDescription,
    ) -> Result<Self, Error> {
        Self::changed(part, place, description, |_| Ok(()))
    }

    /// The same with a configuration that is changed.
    pub fn changed(
        part: PipelinePart,
        place: &Path,
        description: &PartDescription,
        change: impl FnOnce(&mut C::Config) -> Result<(), outsize_models::Error>,
    ) -> Result<Self, Error> {
        let place = place.join(part.folder());
        let field = |error| Error::field(&place.join("config.json"), error);
        let config = ComponentConfig::from_json(&description.config).map_err(field)?;
        let mut changed = Ok(());
        let config = config.changed(|config| changed = change(config));
        changed.map_err(field)?;
        let tree = config.tree(&place.to_string_lossy(), &description.tensors)?;
        let options = config.options(&description.tensors);
        Ok(Self { part, config, tree, options, adapted: AdaptedLayers::default() })
    }

    /// [`plan`](AnyPart::plan) on one device.
    fn plan_on(
        &self,
        gpu: Option<usize>,
        settings: &ImageSettings,
        needs: &PartNeeds,
        tree: &Tree,
    ) -> Result<PartPlan, Error> {
        let mut options = self.options(settings, needs.alone);
        match gpu {
            Some(_) => {
                (options.gpu, options.gpu_activations) = (gpu, Some(needs.gpu));
                options.needs = needs.beside_gpu;
            }
            None => settings.gpus().for_each(|gpu| options.budget.set(Tier::Gpu(gpu), 0)),
        }
        let map = decide(tree, &options)?;
        let planning = &options.planning;
        let prediction = predict(tree, &map, &planning.figures, &planning.workload);
        Ok(PartPlan { part: self.part, tree: tree.clone(), map, prediction })
    }

    fn dispatch(
        &self,
        checkpoint: &Checkpoint,
        settings: &ImageSettings,
        plan: &PartPlan,
    ) -> Result<Dispatched<C>, outsize_core::Error> {
        for held in plan.map.tiers().iter().filter(|held| held.sum() > 0) {
            if let Tier::Gpu(number) = held.tier {
                // Of the part before.
                gpu(number)?.device.memory_cleanup();
            }
        }
        let mut init = Init::new(&settings.device);
        init.compute = settings.compute;
        let options = self.options(settings, *plan.map.needs());
        let dispatched = self.config.dispatch(&init, checkpoint, &plan.map, &options)?;
        if !self.adapted.is_empty() {
            dispatched.set_low_rank(&self.adapted.read()?)?;
        }
        Ok(dispatched)
    }

    fn options(&self, settings: &ImageSettings, needs: MemoryOverhead) -> outsize_core::Options {
        let mut planning = settings.planning.clone();
        // A pass is one of a text or of latents, whatever the tokens.
        planning.workload = Workload {
            prompt: 1,
            bf16: settings.compute == ActivationDtype::Bf16,
            ..Workload::default()
        };
        outsize_core::Options {
            budget: settings.max_memory.clone(),
            needs,
            planning,
            stop: settings.stop.clone(),
            ..self.options.clone()
        }
    }
}

impl<C: Component> AnyPart for Part<C> {
    fn part(&self) -> PipelinePart {
        self.part
    }

    fn parameter_count(&self) -> u64 {
        self.config.parameter_count()
    }

    fn unknown_fields(&self) -> &[String] {
        &self.config.unknown_fields
    }

    fn packed_bytes(&self, settings: &ImageSettings, rows: u64) -> u64 {
        let linear = |kind| kind == WeightKind::Linear;
        let weights = self.config.weights();
        let products =
            weights.iter().filter(|weight| linear(weight.kind) && weight.shape.len() == 2);
        let Some(width) = products.map(|weight| weight.shape[1] as u64).max() else { return 0 };
        let gated = self.config.gated_width();
        outsize_kernels::matmul::packed_bytes(settings.compute, rows, width, gated)
    }

    fn plan(
        &self,
        settings: &ImageSettings,
        needs: &PartNeeds,
        pass: &PicturePass,
    ) -> Result<PartPlan, Error> {
        let mut tree = self.tree.clone();
        self.config.add_work(&mut tree, pass);
        let gpus = settings.gpus().map(Some);
        let plans = gpus.chain([None]).map(|gpu| self.plan_on(gpu, settings, needs, &tree));
        let faster =
            |best: Result<PartPlan, Error>, other: Result<PartPlan, Error>| match (best, other) {
                (Ok(best), Ok(other)) if other.seconds() < best.seconds() => Ok(other),
                (Err(_), Ok(other)) => Ok(other),
                (best, _) => best,
            };
        plans.reduce(faster).expect("the processors are there")
    }

    fn adapter_bytes(&self, pass: &PicturePass) -> PassBytes {
        let (mut matrices, mut activations, mut on_gpu) = (0, 0, 0);
        for AdaptedLayer { path, outputs, rank, bytes } in self.adapted.iter() {
            let rows = C::weight_use(&self.config.config, path, pass).rows;
            // What goes from the one matrix to the other, what that is scaled to, and what it is
            // packed into.
            let inner = 4 * 3 * rank * rows;
            let more = 4 * outputs * rows;
            // What convolutions give is added to in place.
            let is_product = self.part.is_text_encoder() || rows <= pass.latents.batch as u64;
            activations = if is_product { inner + more } else { inner }.max(activations);
            on_gpu = (inner + more + 2 * bytes).max(on_gpu);
            matrices += bytes;
        }
        activations += matrices;
        PassBytes { activations, on_gpu, beside_gpu: matrices, packed: 0 }
    }

    fn adapt(&mut self, file: &AdapterFile, names: &ModuleNames) -> Result<Vec<String>, Error> {
        self.adapted.add(file, self.part, names, &self.config.weights())
    }

    fn estimate(&self, settings: &ImageSettings, needs: MemoryOverhead) -> Result<Estimate, Error> {
        let options = self.options(settings, needs).plan();
        let passes = Passes { longest: options.clone(), shortest: options };
        Ok(estimate(&self.tree, None, Some(&passes)).map_err(outsize_core::Error::from)?)
    }
}
