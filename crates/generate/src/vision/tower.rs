//! Vision models of any architecture.

use std::fmt::Debug;

use burn::tensor::Tensor;
use outsize_checkpoint::{Checkpoint, TensorInfo};
use outsize_core::{Dispatched, Error as CoreError, Options};
use outsize_models::arch::{
    Gemma4UnifiedVisionModel, Gemma4VisionModel, GlmVisionModel, InternVlVisionModel,
    KimiVisionModel, Llama4VisionModel, PixtralVisionModel, QwenVisionModel, SiglipVisionModel,
};
use outsize_models::{
    ActivationDtype, ComponentConfig, Error, ImageFeatures, Init, PatchLayout, PicturePass,
    PictureSize, VisionModel,
};
use outsize_plan::{DeviceMap, Tree};

/// A vision model that is described.
pub(super) trait VisionTower: Debug + Send {
    fn layout(&self) -> PatchLayout;

    /// How its checkpoint is matched and read.
    fn options(&self, tensors: &[TensorInfo]) -> Options;

    /// What there is to place, and what a pass over so many patches does with it.
    fn tree(&self, place: &str, tensors: &[TensorInfo], patches: usize) -> Result<Tree, CoreError>;

    /// What a pass over so many patches takes beside weights, in bytes.
    fn pass_bytes(&self, compute: ActivationDtype, patches: usize) -> u64;

    fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &Options,
    ) -> Result<Box<dyn OpenedTower>, CoreError>;
}

/// A vision model that is dispatched.
pub(super) trait OpenedTower {
    /// As [`VisionModel::see`].
    fn see(&self, pixels: Tensor<2>, sides: [usize; 2]) -> Result<ImageFeatures, CoreError>;
}

impl<M: VisionModel> VisionTower for ComponentConfig<M> {
    fn layout(&self) -> PatchLayout {
        M::layout(&self.config)
    }

    fn options(&self, tensors: &[TensorInfo]) -> Options {
        ComponentConfig::options(self, tensors)
    }

    fn tree(&self, place: &str, tensors: &[TensorInfo], patches: usize) -> Result<Tree, CoreError> {
        let mut tree = ComponentConfig::tree(self, place, tensors)?;
        let latents = PictureSize { batch: 1, rows: patches, columns: 1 };
        self.add_work(&mut tree, &PicturePass { latents, tokens: 0 });
        Ok(tree)
    }

    fn pass_bytes(&self, compute: ActivationDtype, patches: usize) -> u64 {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let activations = self.model().activation_bytes(patches, threads);
        activations.saturating_add(self.packed_bytes(compute, patches as u64))
    }

    fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &Options,
    ) -> Result<Box<dyn OpenedTower>, CoreError> {
        Ok(Box::new(ComponentConfig::dispatch(self, init, checkpoint, map, options)?))
    }
}

impl<M: VisionModel> OpenedTower for Dispatched<M> {
    fn see(&self, pixels: Tensor<2>, sides: [usize; 2]) -> Result<ImageFeatures, CoreError> {
        self.run(|model| model.see(pixels, sides))
    }
}

/// Reads the text of a `config.json`.
pub(super) type ReadTower = fn(&str) -> Result<Box<dyn VisionTower>, Error>;

fn read<M: VisionModel>(text: &str) -> Result<Box<dyn VisionTower>, Error> {
    Ok(Box::new(ComponentConfig::<M>::from_json(text)?))
}

/// What reads the vision model of a `config.json` with this text, if its images are built in.
pub(super) fn read_tower(config: &str) -> Option<ReadTower> {
    let fields: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    towers().find(|(known, _)| fields["model_type"] == *known).map(|(_, read)| read)
}

/// The values of `model_type` whose images are built in, and what reads their vision models.
pub(super) fn towers() -> impl Iterator<Item = (&'static str, ReadTower)> {
    fn of<M: VisionModel>() -> impl Iterator<Item = (&'static str, ReadTower)> {
        M::MODEL_TYPES.iter().map(|(model_type, _)| (*model_type, read::<M> as ReadTower))
    }
    of::<QwenVisionModel>()
        .chain(of::<PixtralVisionModel>())
        .chain(of::<SiglipVisionModel>())
        .chain(of::<Gemma4VisionModel>())
        .chain(of::<Gemma4UnifiedVisionModel>())
        .chain(of::<GlmVisionModel>())
        .chain(of::<KimiVisionModel>())
        .chain(of::<Llama4VisionModel>())
        .chain(of::<InternVlVisionModel>())
}
