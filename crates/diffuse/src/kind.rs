//! The kinds of pipelines that are built in.

use crate::pipeline_part::PipelinePart;

/// A kind of text-to-image pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelineKind {
    /// Stable Diffusion 1 and 2. Rombach et al. 2022.
    StableDiffusion,
    /// Stable Diffusion XL. Podell et al. 2023.
    StableDiffusionXl,
    /// Stable Diffusion 3 and 3.5. Esser et al. 2024.
    StableDiffusion3,
    /// Latent consistency models, made of Stable Diffusion. Luo et al. 2023.
    LatentConsistency,
    /// FLUX.1. Black Forest Labs 2024.
    Flux,
    /// FLUX.1 Fill, which fills in what a mask shows. Black Forest Labs 2024.
    FluxFill,
    /// FLUX.1 Kontext, which changes a picture. Black Forest Labs 2025.
    FluxKontext,
    /// Z-Image. Z-Image Team 2025.
    ZImage,
    /// FLUX.2 dev. Black Forest Labs 2025.
    Flux2,
    /// FLUX.2 klein. Black Forest Labs 2026.
    Flux2Klein,
    /// Qwen-Image. Qwen Team 2025.
    QwenImage,
    /// Qwen-Image-Edit, which changes a picture. Qwen Team 2025.
    QwenImageEdit,
    /// Qwen-Image-Edit 2509 and 2511, which go by several.
    QwenImageEditPlus,
}

use PipelineKind::{
    Flux, Flux2, Flux2Klein, FluxFill, FluxKontext, LatentConsistency, QwenImage, QwenImageEdit,
    QwenImageEditPlus, StableDiffusion, StableDiffusion3, StableDiffusionXl, ZImage,
};

impl PipelineKind {
    /// All that are built in.
    pub const ALL: [Self; 13] = [
        StableDiffusion,
        StableDiffusionXl,
        StableDiffusion3,
        LatentConsistency,
        Flux,
        FluxFill,
        FluxKontext,
        ZImage,
        Flux2,
        Flux2Klein,
        QwenImage,
        QwenImageEdit,
        QwenImageEditPlus,
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
            StableDiffusion3 => &[
                "StableDiffusion3Pipeline",
                "StableDiffusion3Img2ImgPipeline",
                "StableDiffusion3InpaintPipeline",
            ],
            LatentConsistency => {
                &["LatentConsistencyModelPipeline", "LatentConsistencyModelImg2ImgPipeline"]
            }
            Flux => &["FluxPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline"],
            FluxFill => &["FluxFillPipeline"],
            FluxKontext => &["FluxKontextPipeline"],
            ZImage => &["ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline"],
            Flux2 => &["Flux2Pipeline"],
            Flux2Klein => &["Flux2KleinPipeline"],
            QwenImage => {
                &["QwenImagePipeline", "QwenImageImg2ImgPipeline", "QwenImageInpaintPipeline"]
            }
            QwenImageEdit => &["QwenImageEditPipeline"],
            QwenImageEditPlus => &["QwenImageEditPlusPipeline"],
        }
    }

    /// Its parts, in the order in which they take turns: text encoders, the denoiser, the
    /// autoencoder.
    pub fn parts(self) -> &'static [PipelinePart] {
        use PipelinePart::{TextEncoder, TextEncoder2, TextEncoder3, Transformer, Unet, Vae};
        match self {
            StableDiffusion | LatentConsistency => &[TextEncoder, Unet, Vae],
            StableDiffusionXl => &[TextEncoder, TextEncoder2, Unet, Vae],
            StableDiffusion3 => &[TextEncoder, TextEncoder2, TextEncoder3, Transformer, Vae],
            Flux | FluxFill | FluxKontext => &[TextEncoder, TextEncoder2, Transformer, Vae],
            ZImage | Flux2 | Flux2Klein | QwenImage | QwenImageEdit | QwenImageEditPlus => {
                &[TextEncoder, Transformer, Vae]
            }
        }
    }

    /// The classes that a part may have, the usual one first.
    pub(crate) fn classes_of(self, part: PipelinePart) -> &'static [&'static str] {
        match (part, self) {
            (PipelinePart::TextEncoder, ZImage | Flux2Klein) => &["Qwen3ForCausalLM", "Qwen3Model"],
            (PipelinePart::TextEncoder, StableDiffusion3) => &["CLIPTextModelWithProjection"],
            (PipelinePart::TextEncoder, Flux2) => &["Mistral3ForConditionalGeneration"],
            (PipelinePart::VisionEncoder | PipelinePart::TextEncoder, kind)
                if kind.is_qwen_image() =>
            {
                &["Qwen2_5_VLForConditionalGeneration"]
            }
            (PipelinePart::VisionEncoder | PipelinePart::TextEncoder, _) => &["CLIPTextModel"],
            (PipelinePart::TextEncoder2, kind) if kind.is_flux1() => &["T5EncoderModel"],
            (PipelinePart::TextEncoder3, _) => &["T5EncoderModel"],
            (PipelinePart::Transformer, StableDiffusion3) => &["SD3Transformer2DModel"],
            (PipelinePart::TextEncoder2, _) => &["CLIPTextModelWithProjection"],
            (PipelinePart::Unet, _) => &["UNet2DConditionModel"],
            (PipelinePart::Transformer, ZImage) => &["ZImageTransformer2DModel"],
            (PipelinePart::Transformer, kind) if kind.is_flux2() => &["Flux2Transformer2DModel"],
            (PipelinePart::Transformer, kind) if kind.is_qwen_image() => {
                &["QwenImageTransformer2DModel"]
            }
            (PipelinePart::Transformer, _) => &["FluxTransformer2DModel"],
            (PipelinePart::VaeEncoder | PipelinePart::Vae, kind) if kind.is_flux2() => {
                &["AutoencoderKLFlux2"]
            }
            (PipelinePart::VaeEncoder | PipelinePart::Vae, kind) if kind.is_qwen_image() => {
                &["AutoencoderKLQwenImage"]
            }
            (PipelinePart::VaeEncoder | PipelinePart::Vae, _) => &["AutoencoderKL"],
        }
    }

    /// The folders of the text encoders' tokenizers, and the classes that each may have.
    pub(crate) fn tokenizers(self) -> &'static [(&'static str, &'static [&'static str])] {
        const CLIP: &[&str] = &["CLIPTokenizer", "CLIPTokenizerFast"];
        const T5: &[&str] = &["T5TokenizerFast", "T5Tokenizer"];
        match self {
            StableDiffusion | LatentConsistency => &[("tokenizer", CLIP)],
            StableDiffusionXl => &[("tokenizer", CLIP), ("tokenizer_2", CLIP)],
            StableDiffusion3 => &[("tokenizer", CLIP), ("tokenizer_2", CLIP), ("tokenizer_3", T5)],
            Flux | FluxFill | FluxKontext => &[("tokenizer", CLIP), ("tokenizer_2", T5)],
            Flux2 => &[("tokenizer", &["PixtralProcessor"])],
            ZImage | Flux2Klein | QwenImage | QwenImageEdit | QwenImageEditPlus => {
                &[("tokenizer", &["Qwen2Tokenizer", "Qwen2TokenizerFast"])]
            }
        }
    }

    /// Whether its denoiser was trained by flow matching, and takes no other scheduler than such.
    pub(crate) fn matches_flows(self) -> bool {
        matches!(self, ZImage | StableDiffusion3)
            || self.is_flux1()
            || self.is_flux2()
            || self.is_qwen_image()
    }

    /// Whether it is a FLUX.1.
    pub(crate) fn is_flux1(self) -> bool {
        matches!(self, Flux | FluxFill | FluxKontext)
    }

    /// Whether it is a FLUX.2.
    pub(crate) fn is_flux2(self) -> bool {
        matches!(self, Flux2 | Flux2Klein)
    }

    /// Whether it is a Qwen-Image, which may change pictures.
    pub(crate) fn is_qwen_image(self) -> bool {
        matches!(self, QwenImage | QwenImageEdit | QwenImageEditPlus)
    }

    /// Whether it takes pictures to go by instead of one to begin with.
    pub fn takes_references(self) -> bool {
        self == FluxKontext || self.is_flux2() || self.needs_references()
    }

    /// Whether it does nothing without them; its text encoder sees them too.
    pub fn needs_references(self) -> bool {
        matches!(self, QwenImageEdit | QwenImageEditPlus)
    }

    /// The most of them.
    pub(crate) fn most_references(self) -> usize {
        if matches!(self, FluxKontext | QwenImageEdit) { 1 } else { usize::MAX }
    }

    /// Whether there is guidance with a negative prompt alone, as in diffusers.
    pub fn needs_negative_prompt(self) -> bool {
        self.is_qwen_image()
    }

    /// How much more a prompt counts than the negative one if nobody says it, as in diffusers.
    pub fn guidance_scale(self) -> f32 {
        match self {
            StableDiffusion => 7.5,
            StableDiffusionXl | ZImage => 5.0,
            LatentConsistency => 8.5,
            StableDiffusion3 => 7.0,
            Flux | FluxKontext => 3.5,
            FluxFill => 30.0,
            Flux2 | Flux2Klein | QwenImage | QwenImageEdit | QwenImageEditPlus => 4.0,
        }
    }

    /// How much of a picture to begin with is lost in noise if nobody says it, as in diffusers: of
    /// one with a mask, and of others.
    pub fn strength(self, has_mask: bool) -> f32 {
        match (self, has_mask) {
            (StableDiffusion | LatentConsistency, false) => 0.8,
            (StableDiffusion | LatentConsistency, true) => 1.0,
            (StableDiffusionXl, false) => 0.3,
            (StableDiffusionXl, true) => 0.9999,
            (StableDiffusion3 | Flux | QwenImage, _) | (ZImage, false) => 0.6,
            // The latter begins with noise alone.
            (ZImage, true)
            | (
                FluxFill | FluxKontext | Flux2 | Flux2Klein | QwenImageEdit | QwenImageEditPlus,
                _,
            ) => 1.0,
        }
    }

    /// Steps if nobody says how many, as in diffusers; of models that were distilled to need fewer
    /// see [`ImageModel::steps`](crate::ImageModel::steps).
    pub fn steps(self) -> usize {
        match self {
            StableDiffusion | StableDiffusionXl | FluxFill | ZImage | Flux2 | Flux2Klein
            | QwenImage | QwenImageEdit | QwenImageEditPlus => 50,
            LatentConsistency => 4,
            StableDiffusion3 | Flux | FluxKontext => 28,
        }
    }
}
