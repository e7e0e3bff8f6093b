//! Which parts pipelines have.

/// The parts of a pipeline, in the order in which they take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelinePart {
    /// Pictures to go by to what a text encoder sees of them.
    VisionEncoder,
    /// Prompts to what the denoiser is told.
    TextEncoder,
    /// The same by another encoder.
    TextEncoder2,
    /// The same by a third one.
    TextEncoder3,
    /// A picture to begin with to latents.
    VaeEncoder,
    /// Noisy latents to less noisy ones, step by step.
    Unet,
    /// The same by a transformer without convolutions.
    Transformer,
    /// Latents to pictures.
    Vae,
}

impl PipelinePart {
    /// Whether it reads prompts.
    pub fn is_text_encoder(self) -> bool {
        matches!(self, Self::TextEncoder | Self::TextEncoder2 | Self::TextEncoder3)
    }

    /// Whether it runs once for each step of a picture.
    pub fn is_denoiser(self) -> bool {
        matches!(self, Self::Unet | Self::Transformer)
    }

    /// The name of its folder.
    pub fn folder(self) -> &'static str {
        match self {
            Self::VaeEncoder => Self::Vae.name(),
            Self::VisionEncoder => Self::TextEncoder.name(),
            part => part.name(),
        }
    }

    /// Its name: that of its folder, but for the encoders of pictures.
    pub fn name(self) -> &'static str {
        match self {
            Self::VaeEncoder => "vae_encoder",
            Self::VisionEncoder => "vision_encoder",
            Self::TextEncoder => "text_encoder",
            Self::TextEncoder2 => "text_encoder_2",
            Self::TextEncoder3 => "text_encoder_3",
            Self::Unet => "unet",
            Self::Transformer => "transformer",
            Self::Vae => "vae",
        }
    }
}
