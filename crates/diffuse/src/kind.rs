//! The kinds of pipelines that are built in.

use crate::pipeline_part::PipelinePart;

/// A kind of text-to-image pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelineKind {
    /// Stable Diffusion 1 and 2. Rombach et al. 2022.
    StableDiffusion,
    /// Stable Diffusion XL. Podell et al. 2023.
    StableDiffusionXl,
    /// Latent consistency models, made of Stable Diffusion. Luo et al. 2023.
    LatentConsistency,
    /// FLUX.1. Black Forest Labs 2024.
    Flux,
}

use PipelineKind::{Flux, LatentConsistency, StableDiffusion, StableDiffusionXl};

impl PipelineKind {
    /// All that are built in.
    pub const ALL: [Self; 4] = [StableDiffusion, StableDiffusionXl, LatentConsistency, Flux];

    /// What diffusers calls the class.
    pub fn class_name(self) -> &'static str {
        self.class_names()[0]
    }

    /// The same, and the classes that run the same parts to change a picture.
    pub(crate) fn class_names(self) -> &'static [&'static str] {
        match self {
            StableDiffusion => &[
                "StableDiffusionPipeline",
                "StableDiffusionImg2ImgPipeline",
                "StableDiffusionInpaintPipeline",
            ],
            StableDiffusionXl => &[
                "StableDiffusionXLPipeline",
                "StableDiffusionXLImg2ImgPipeline",
                "StableDiffusionXLInpaintPipeline",
            ],
            LatentConsistency => {
                &["LatentConsistencyModelPipeline", "LatentConsistencyModelImg2ImgPipeline"]
            }
            Flux => &["FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline"],
        }
    }

    /// Its parts, in the order in which they take turns: text encoders, the denoiser, the autoencoder.
    pub fn parts(self) -> &'static [PipelinePart] {
        use PipelinePart::{TextEncoder, TextEncoder2, Transformer, Unet, Vae};
        match self {
            StableDiffusion | LatentConsistency => &[TextEncoder, Unet, Vae],
            StableDiffusionXl => &[TextEncoder, TextEncoder2, Unet, Vae],
            Flux => &[TextEncoder, TextEncoder2, Transformer, Vae],
        }
    }

    /// The class of a part.
    pub(crate) fn class_of(self, part: PipelinePart) -> &'static str {
        match part {
            PipelinePart::TextEncoder => "CLIPTextModel",
            PipelinePart::TextEncoder2 if self == Flux => "T5EncoderModel",
            PipelinePart::TextEncoder2 => "CLIPTextModelWithProjection",
            PipelinePart::Unet => "UNet2DConditionModel",
            PipelinePart::Transformer => "FluxTransformer2DModel",
            PipelinePart::VaeEncoder | PipelinePart::Vae => "AutoencoderKL",
        }
    }

    /// The folders of the text encoders' tokenizers, and the classes that each may have.
    pub(crate) fn tokenizers(self) -> &'static [(&'static str, &'static [&'static str])] {
        const CLIP: &[&str] = &["CLIPTokenizer", "CLIPTokenizerFast"];
        match self {
            StableDiffusion | LatentConsistency => &[("tokenizer", CLIP)],
            StableDiffusionXl => &[("tokenizer", CLIP), ("tokenizer_2", CLIP)],
            Flux => &[("tokenizer", CLIP), ("tokenizer_2", &["T5TokenizerFast", "T5Tokenizer"])],
        }
    }

    /// How much more a prompt counts than the negative one if nobody says it, as in diffusers.
    pub fn guidance_scale(self) -> f32 {
        match self {
            StableDiffusion => 7.5,
            StableDiffusionXl => 5.0,
            LatentConsistency => 8.5,
            Flux => 3.5,
        }
    }

    /// How much of a picture to begin with is lost in noise if nobody says it, as in diffusers: of one with a mask, and of
    /// others.
    pub fn strength(self, has_mask: bool) -> f32 {
        match (self, has_mask) {
            (StableDiffusion | LatentConsistency, false) => 0.8,
            (StableDiffusion | LatentConsistency, true) => 1.0,
            (StableDiffusionXl, false) => 0.3,
            (StableDiffusionXl, true) => 0.9999,
            (Flux, _) => 0.6,
        }
    }

    /// Steps if nobody says how many, as in diffusers.
    pub fn steps(self) -> usize {
        match self {
            StableDiffusion | StableDiffusionXl => 50,
            LatentConsistency => 4,
            Flux => 28,
        }
    }
}
