//! The denoisers of pipelines, whatever their modules.

use std::path::Path;

use burn::tensor::Tensor;
use outsize_models::PicturePass;
use outsize_models::arch::{
    AddedConditions, Flux2Transformer2dConfig, Flux2Transformer2dModel, FluxTransformer2dConfig,
    FluxTransformer2dModel, QwenImageTransformer2dModel, SHIFT_FIRST, Sd3Transformer2dModel,
    Unet2dConditionModel, ZImageTransformer2dModel,
};

use crate::adapter::{AdapterFile, ModuleNames};
use crate::error::Error;
use crate::kind::PipelineKind;
use crate::part::{AnyPart, Part, PartDescription, PassBytes};
use crate::pipeline_part::PipelinePart;
use crate::published::UnetNames;
use crate::settings::ImageSettings;

/// A denoiser that is described.
#[derive(Debug)]
pub(crate) enum Denoiser {
    Unet(Box<Part<Unet2dConditionModel>>),
    /// Of tokens of two by two latents.
    Sd3(Box<Part<Sd3Transformer2dModel>>),
    /// The same, beside a picture to go by or without one.
    Flux(Box<Part<FluxTransformer2dModel>>),
    /// Of tokens of two by two latents.
    ZImage(Box<Part<ZImageTransformer2dModel>>),
    /// The same, beside any number of pictures to go by, and whether it is told how closely to
    /// follow the text.
    Flux2(Box<Part<Flux2Transformer2dModel>>, bool),
    /// The same.
    QwenImage(Box<Part<QwenImageTransformer2dModel>>),
}

use Denoiser::{Flux, Flux2, QwenImage, Sd3, Unet, ZImage};

/// Latents that a transformer was trained with, where its configuration does not say: rows, and
/// columns.
const SAMPLE_SIZE: usize = 128;

/// Rows of latents, and columns, that make a token of a transformer.
pub(crate) const PACKING: usize = 2;

/// What a denoiser is told of the texts, in main memory.
#[derive(Debug)]
pub(crate) struct Conditions {
    /// Their tokens, `[texts, tokens, width]` f32.
    pub context: Tensor<3>,
    /// Of texts that need not be of the same length the tokens of each, which are its last ones.
    pub lengths: Vec<usize>,
    /// What else a denoiser of Stable Diffusion XL is told.
    pub added: Option<AddedConditions>,
    /// Each text as a whole, `[texts, pooled]` f32, for a transformer.
    pub pooled: Option<Tensor<2>>,
}

/// How a prompt counts more than a negative one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Guidance {
    /// How much more.
    pub scale: f32,
    /// Whether that is counted from what is made of the prompt, instead of from what is made of the
    /// negative one.
    pub from_prompt: bool,
    /// Whether each token is then made as long as that which is made of the prompt.
    pub keeps_lengths: bool,
}

impl Denoiser {
    /// The denoiser `part` of a pipeline of that kind at `place`.
    pub fn new(
        kind: PipelineKind,
        part: PipelinePart,
        place: &Path,
        description: &PartDescription,
    ) -> Result<Self, Error> {
        let mut tensors = description.tensors.iter();
        let first = tensors.any(|tensor| tensor.name.starts_with(SHIFT_FIRST));
        match kind {
            kind if kind.is_flux1() => {
                let change = |config: &mut FluxTransformer2dConfig| {
                    config.shift_first = first;
                    Ok(())
                };
                Ok(Flux(Box::new(Part::changed(part, place, description, change)?)))
            }
            kind if kind.is_flux2() => {
                let change = |config: &mut Flux2Transformer2dConfig| {
                    config.shift_first = first;
                    Ok(())
                };
                let part =
                    Part::<Flux2Transformer2dModel>::changed(part, place, description, change)?;
                // Klein is never told, even if it could be.
                let is_told = kind == PipelineKind::Flux2 && part.config.config.guidance_embeds;
                Ok(Flux2(Box::new(part), is_told))
            }
            PipelineKind::StableDiffusion3 => {
                Ok(Sd3(Box::new(Part::new(part, place, description)?)))
            }
            PipelineKind::ZImage => Ok(ZImage(Box::new(Part::new(part, place, description)?))),
            kind if kind.is_qwen_image() => {
                Ok(QwenImage(Box::new(Part::new(part, place, description)?)))
            }
            _ => Ok(Unet(Box::new(Part::new(part, place, description)?))),
        }
    }

    pub fn any(&self) -> &dyn AnyPart {
        match self {
            Unet(part) => &**part,
            Sd3(part) => &**part,
            Flux(part) => &**part,
            ZImage(part) => &**part,
            Flux2(part, _) => &**part,
            QwenImage(part) => &**part,
        }
    }

    /// Adds what an adapter's file has for it.
    pub fn adapt(&mut self, file: &AdapterFile) -> Result<Vec<String>, Error> {
        match self {
            Unet(part) => {
                let names = UnetNames::new(&part.config.config);
                part.adapt(file, &ModuleNames::Unet(names))
            }
            Flux(part) => {
                let shift_first = part.config.config.shift_first;
                part.adapt(file, &ModuleNames::Flux { shift_first })
            }
            ZImage(part) => part.adapt(file, &ModuleNames::ZImage),
            Sd3(part) => part.adapt(file, &ModuleNames::Plain),
            QwenImage(part) => part.adapt(file, &ModuleNames::Plain),
            Flux2(part, _) => {
                let shift_first = part.config.config.shift_first;
                part.adapt(file, &ModuleNames::Flux { shift_first })
            }
        }
    }

    /// Channels of latents that go in.
    pub fn channels(&self) -> usize {
        let packed = self.packing() * self.packing();
        match self {
            Unet(part) => part.config.config.in_channels,
            Sd3(part) => part.config.config.in_channels,
            Flux(part) => part.config.config.in_channels / packed,
            Flux2(part, _) => part.config.config.in_channels / packed,
            QwenImage(part) => part.config.config.in_channels / packed,
            ZImage(part) => part.config.config.in_channels,
        }
    }

    /// Rows of latents, and columns, that it sees as one.
    pub fn packing(&self) -> usize {
        match self {
            Unet(_) => 1,
            Sd3(_) | Flux(_) | ZImage(_) | Flux2(..) | QwenImage(_) => PACKING,
        }
    }

    /// Whether it is told how closely to follow the text, instead of looking at a negative prompt
    /// too.
    pub fn is_guided(&self) -> bool {
        match self {
            Unet(part) => part.config.config.guidance_channels.is_some(),
            Flux2(_, is_told) => *is_told,
            Sd3(_) | ZImage(_) | QwenImage(_) => false,
            Flux(part) => part.config.config.guidance_embeds,
        }
    }

    /// Whether it can look at a negative prompt, in twice the work.
    pub fn hears_negative(&self) -> bool {
        !matches!(self, Flux(_)) && !self.is_guided()
    }

    /// Rows and columns of latents that it was trained with.
    pub fn sample_size(&self) -> Option<usize> {
        match self {
            Unet(part) => part.config.config.sample_size,
            Sd3(part) => Some(part.config.config.sample_size),
            Flux(_) | ZImage(_) | Flux2(..) | QwenImage(_) => Some(SAMPLE_SIZE),
        }
    }

    /// The most rows and columns of latents, if it has a table of places.
    pub fn most_size(&self) -> Option<usize> {
        match self {
            Sd3(part) => Some(PACKING * part.config.config.pos_embed_max_size),
            _ => None,
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
        let (size, tokens) = (pass.latents, pass.tokens);
        let activations = match self {
            Unet(part) => part.config.model().activation_bytes(size, tokens, threads),
            Sd3(part) => part.config.model().activation_bytes(size, tokens, threads),
            Flux(part) => part.config.model().activation_bytes(size, tokens, threads),
            ZImage(part) => part.config.model().activation_bytes(size, tokens, threads),
            Flux2(part, _) => part.config.model().activation_bytes(size, tokens, threads),
            QwenImage(part) => part.config.model().activation_bytes(size, tokens, threads),
        };
        // Matmuls of pixels are convolutions; what is left has a row for each text.
        let products = self.any().packed_bytes(settings, size.batch as u64);
        let packed = convolutions.saturating_add(products);
        let alone = PassBytes { activations, on_gpu: activations, beside_gpu: 0, packed };
        alone.and(self.any().adapter_bytes(pass))
    }
}
