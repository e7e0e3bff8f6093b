//! The denoisers of pipelines, whatever their modules.

use std::path::Path;

use burn::tensor::Tensor;
use outsize_models::PicturePass;
use outsize_models::arch::{AddedConditions, Unet2dConditionModel};

use crate::error::Error;
use crate::part::{AnyPart, Part, PartDescription, PassBytes, PipelinePart};
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

    /// Channels that go in.
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
}
