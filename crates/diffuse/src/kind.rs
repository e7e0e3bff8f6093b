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
    /// Z-Image. Z-Image Team 2025.
    ZImage,
    /// FLUX.2 klein. Black Forest Labs 2026.
    Flux2Klein,
    /// Qwen-Image. Qwen Team 2025.
    QwenImage,
}

use PipelineKind::{
    Flux, Flux2Klein, LatentConsistency, QwenImage, StableDiffusion, StableDiffusionXl, ZImage,
};

impl PipelineKind {
    /// All that are built in.
    pub const ALL: [Self; 7] = [
        StableDiffusion,
        StableDiffusionXl,
        LatentConsistency,
        Flux,
        ZImage,
        Flux2Klein,
        QwenImage,
    ];

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
            ZImage => &["ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline"],
            Flux2Klein => &["Flux2KleinPipeline"],
            QwenImage => {
                &["QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"]
            }
        }
    }

    /// Its parts, in the order in which they take turns: text encoders, the denoiser, the autoencoder.
    pub fn parts(self) -> &'static [PipelinePart] {
        use PipelinePart::{TextEncoder, TextEncoder2, Transformer, Unet, Vae};
        match self {
            StableDiffusion | LatentConsistency => &[TextEncoder, Unet, Vae],
            StableDiffusionXl => &[TextEncoder, TextEncoder2, Unet, Vae],
            Flux => &[TextEncoder, TextEncoder2, Transformer, Vae],
            ZImage | Flux2Klein | QwenImage => &[TextEncoder, Transformer, Vae],
        }
    }

    /// The classes that a part may have, the usual one first.
    pub(crate) fn classes_of(self, part: PipelinePart) -> &'static [&'static str] {
        match (part, self) {
            (PipelinePart::TextEncoder, ZImage | Flux2Klein) => &["Qwen3ForCausalLM", "Qwen3Model"],
            (PipelinePart::TextEncoder, QwenImage) => &["Qwen2_5_VLForConditionalGeneration"],
            (PipelinePart::TextEncoder, _) => &["CLIPTextModel"],
            (PipelinePart::TextEncoder2, Flux) => &["T5EncoderModel"],
            (PipelinePart::TextEncoder2, _) => &["CLIPTextModelWithProjection"],
            (PipelinePart::Unet, _) => &["UNet2DConditionModel"],
            (PipelinePart::Transformer, ZImage) => &["ZImageTransformer2DModel"],
            (PipelinePart::Transformer, Flux2Klein) => &["Flux2Transformer2DModel"],
            (PipelinePart::Transformer, QwenImage) => &["QwenImageTransformer2DModel"],
            (PipelinePart::Transformer, _) => &["FluxTransformer2DModel"],
            (PipelinePart::VaeEncoder | PipelinePart::Vae, Flux2Klein) => &["AutoencoderKLFlux2"],
            (PipelinePart::VaeEncoder | PipelinePart::Vae, QwenImage) => {
                &["AutoencoderKLQwenImage"]
            }
            (PipelinePart::VaeEncoder | PipelinePart::Vae, _) => &["AutoencoderKL"],
        }
    }

    /// The folders of the text encoders' tokenizers, and the classes that each may have.
    pub(crate) fn tokenizers(self) -> &'static [(&'static str, &'static [&'static str])] {
        const CLIP: &[&str] = &["CLIPTokenizer", "CLIPTokenizerFast"];
        match self {
            StableDiffusion | LatentConsistency => &[("tokenizer", CLIP)],
            StableDiffusionXl => &[("tokenizer", CLIP), ("tokenizer_2", CLIP)],
            Flux => &[("tokenizer", CLIP), ("tokenizer_2", &["T5TokenizerFast", "T5Tokenizer"])],
            ZImage | Flux2Klein | QwenImage => {
                &[("tokenizer", &["Qwen2Tokenizer", "Qwen2TokenizerFast"])]
            }
        }
    }

    /// Whether its denoiser was trained by flow matching, and takes no other scheduler than such.
    pub(crate) fn matches_flows(self) -> bool {
        matches!(self, Flux | ZImage | Flux2Klein | QwenImage)
    }

    /// Whether it takes pictures to go by instead of one to begin with.
    pub fn takes_references(self) -> bool {
        self == Flux2Klein
    }

    /// Whether there is guidance with a negative prompt alone, as in diffusers.
    pub fn needs_negative_prompt(self) -> bool {
        self == QwenImage
    }

    /// How much more a prompt counts than the negative one if nobody says it, as in diffusers.
    pub fn guidance_scale(self) -> f32 {
        match self {
            StableDiffusion => 7.5,
            StableDiffusionXl | ZImage => 5.0,
            LatentConsistency => 8.5,
            Flux => 3.5,
            Flux2Klein | QwenImage => 4.0,
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
            (Flux | QwenImage, _) | (ZImage, false) => 0.6,
            // The latter begins with noise alone.
            (ZImage, true) | (Flux2Klein, _) => 1.0,
        }
    }

    /// Steps if nobody says how many, as in diffusers; of models that were distilled to need fewer see
    /// [`ImageModel::steps`](crate::ImageModel::steps).
    pub fn steps(self) -> usize {
        match self {
            StableDiffusion | StableDiffusionXl | ZImage | Flux2Klein | QwenImage => 50,
            LatentConsistency => 4,
            Flux => 28,
        }
    }
}
