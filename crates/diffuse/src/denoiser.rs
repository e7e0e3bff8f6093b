//! The denoisers of pipelines, whatever their modules.

use std::path::Path;

use burn::tensor::Tensor;
use outsize_checkpoint::Checkpoint;
use outsize_core::Turns;
use outsize_models::arch::{AddedConditions, Unet2dConditionModel};
use outsize_models::{Component, PicturePass};
use outsize_stream::Stats;

use crate::denoising::Denoising;
use crate::error::Error;
use crate::part::{AnyPart, Part, PartDescription, PartPlan, PassBytes, PipelinePart};
use crate::progress::ImageProgress;
use crate::settings::ImageSettings;

/// A denoiser that is described.
#[derive(Debug)]
pub(crate) enum Denoiser {
    Unet(Part<Unet2dConditionModel>),
}

use Denoiser::Unet;

/// What a denoiser is told of the texts, in main memory.
#[derive(Debug)]
pub(crate) struct Conditions {
    /// Their tokens, `[texts, tokens, width]` f32.
    pub context: Tensor<3>,
    /// What else it is told.
    pub added: Option<AddedConditions>,
}

impl Denoiser {
    /// The denoiser `part` of the pipeline at `place`.
    pub fn new(
        part: PipelinePart,
        place: &Path,
        description: &PartDescription,
    ) -> Result<Self, Error> {
        Ok(Unet(Part::new(part, place, description)?))
    }

    pub fn any(&self) -> &dyn AnyPart {
        match self {
            Unet(part) => part,
        }
    }

    /// Channels of latents.
    pub fn channels(&self) -> usize {
        match self {
            Unet(part) => part.config.config.in_channels,
        }
    }

    /// Rows and columns of latents that it was trained with.
    pub fn sample_size(&self) -> Option<usize> {
        match self {
            Unet(part) => part.config.config.sample_size,
        }
    }

    /// What a pass holds.
    pub fn pass_bytes(
        &self,
        settings: &ImageSettings,
        pass: &PicturePass,
        threads: usize,
    ) -> PassBytes {
        let convolutions = outsize_kernels::matmul::convolution_bytes() * threads as u64;
        let (activations, packed) = match self {
            // Matmuls of pixels are convolutions; what is left is the embedding of a time.
            Unet(part) => (
                part.config.model().activation_bytes(pass.latents, pass.tokens, threads),
                convolutions.saturating_add(part.packed_bytes(settings, pass.latents.batch as u64)),
            ),
        };
        PassBytes { activations, on_gpu: activations, beside_gpu: 0, packed }
    }

    /// The latents of all pictures, when it is its turn.
    pub fn denoise(
        &self,
        turns: &Turns,
        checkpoint: &Checkpoint,
        settings: &ImageSettings,
        plan: &PartPlan,
        work: (&Denoising<'_>, Conditions),
        observe: &mut dyn FnMut(ImageProgress<'_>),
    ) -> Result<(Vec<Vec<f32>>, Stats), Error> {
        let (denoising, Conditions { context, added }) = work;
        match self {
            Unet(part) => {
                let pass = |model: &Unet2dConditionModel, latents, timestep| {
                    model.forward(latents, timestep, context.clone(), added.as_ref())
                };
                run(part, turns, checkpoint, settings, plan, (denoising, &pass), observe)
            }
        }
    }
}

/// The latents of all pictures by a module, of which `pass` runs one.
fn run<C: Component + Send + 'static>(
    part: &Part<C>,
    turns: &Turns,
    checkpoint: &Checkpoint,
    settings: &ImageSettings,
    plan: &PartPlan,
    (denoising, pass): (&Denoising<'_>, &dyn Fn(&C, Tensor<4>, f32) -> Tensor<4>),
    observe: &mut dyn FnMut(ImageProgress<'_>),
) -> Result<(Vec<Vec<f32>>, Stats), Error> {
    let module = turns.module(|| part.dispatch(checkpoint, settings, plan));
    let latents = (0..denoising.request.seeds.len()).map(|picture| {
        let pass = |latents: Tensor<4>, timestep: f32| {
            module.run(|module| module.run(|model| pass(model, latents, timestep)))?
        };
        denoising.latents(picture, &pass, observe)
    });
    let latents = latents.collect::<Result<Vec<_>, _>>()?;
    Ok((latents, module.run(|module| module.stats())?))
}
