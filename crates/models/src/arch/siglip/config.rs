//! What a `config.json` says of the vision encoder of Gemma 3, Command A Vision, Aya Vision,
//! Idefics3 and SmolVLM.

use crate::Error;
use crate::arch::cohere;
use crate::arch::idefics3::{IDEFICS3, SMOLVLM};
use crate::arch::vision_fields::{IMAGE_TOKEN, vision_fields, vision_heads};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, epsilon, token_id,
};
use crate::layers::Activation;

/// The most pixels of an image's side.
const MAX_SIDE: usize = 1 << 14;

/// The configuration of a vision encoder, and of what follows it.
#[derive(Debug, Clone, PartialEq)]
pub struct SiglipVisionConfig {
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Heads of attention; divide `hidden_size`.
    pub num_attention_heads: usize,
    /// The non-linear function of the MLP.
    pub activation: Activation,
    /// What norms add to the variance.
    pub layer_norm_eps: f64,
    /// Pixels of an image's side.
    pub image_size: usize,
    /// Pixels of a patch's side; divide those of an image.
    pub patch_size: usize,
    /// Tokens of an image's side; divide its patches.
    pub tokens: usize,
    /// What makes features of states.
    pub projector: SiglipProjectorConfig,
    /// Width of the language model.
    pub text_hidden_size: usize,
    /// The token that stands for a token of an image.
    pub image_token: u32,
}

/// What makes features of the states of a token's patches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SiglipProjectorConfig {
    /// A matrix, of the norm of their mean; an image is one square.
    Mean {
        /// Whether the norm scales by one more than its weight.
        adds_one: bool,
    },
    /// Two matrices, of all of them side by side; an image is tiles.
    Gated {
        /// What comes of the first one, gates included.
        inner: usize,
    },
    /// The same of their norm, of states as the last block gives them.
    NormedGated {
        /// What comes of the first one, gates included.
        inner: usize,
        /// What the norm adds to the variance.
        epsilon: f64,
    },
    /// A matrix, of all of them side by side; an image is tiles.
    Shuffled,
}

impl SiglipVisionConfig {
    pub(super) fn read(model_type: &str, fields: &Fields<'_>) -> Result<Self, Error> {
        let vision = vision_fields(fields, &[VISION])?;
        let text = fields.required_object("text_config")?;
        let [hidden, heads, patch, text_hidden] = match model_type {
            IDEFICS3 | SMOLVLM => [1152, 16, 32, 4096],
            _ => [768, 12, 16, 2304],
        };
        let hidden_size = vision.size_or("hidden_size", hidden, MAX_HIDDEN)?;
        let num_attention_heads =
            vision_heads(&vision, "num_attention_heads", heads, [hidden_size, 1])?;
        let image_size = vision.size_or("image_size", 224, MAX_SIDE)?;
        let patch_size = vision.size_or("patch_size", patch, image_size)?;
        if !image_size.is_multiple_of(patch_size) {
            return Err(
                vision.refuse("patch_size", format!("it must divide image_size, {image_size}"))
            );
        }
        let patches = image_size / patch_size;
        let text_hidden_size = text.size_or("hidden_size", text_hidden, MAX_HIDDEN)?;
        let (tokens, projector, image_token) = match model_type {
            cohere::VISION => {
                let (tokens, inner) = gated(fields, patches, 36_864)?;
                (tokens, SiglipProjectorConfig::Gated { inner }, 255_036)
            }
            cohere::AYA_VISION => {
                let (tokens, inner) = gated(fields, patches, text_hidden_size)?;
                let epsilon = epsilon(fields, "adapter_layer_norm_eps", 1e-6)?;
                (tokens, SiglipProjectorConfig::NormedGated { inner, epsilon }, 255_036)
            }
            IDEFICS3 | SMOLVLM => {
                let tokens = merged(fields, "scale_factor", patches)?;
                (tokens, SiglipProjectorConfig::Shuffled, 128_257)
            }
            _ => {
                let adds_one = vision.flag_or("rms_norm_add_unit_offset", true)?;
                (tokens(fields, patches)?, SiglipProjectorConfig::Mean { adds_one }, 262_144)
            }
        };
        Ok(Self {
            num_hidden_layers: vision.size_or("num_hidden_layers", 12, MAX_LAYERS)?,
            hidden_size,
            intermediate_size: vision.size_or("intermediate_size", 3072, MAX_INTERMEDIATE)?,
            num_attention_heads,
            activation: config::activation(&vision, "hidden_act", Activation::GeluTanh)?,
            layer_norm_eps: epsilon(&vision, "layer_norm_eps", 1e-6)?,
            image_size,
            patch_size,
            tokens,
            projector,
            text_hidden_size,
            image_token: token_id(fields, &IMAGE_TOKEN, image_token)?,
        })
    }

    /// Patches of an image, or of a tile.
    pub(super) fn patches(&self) -> usize {
        (self.image_size / self.patch_size).pow(2)
    }

    /// Whether a norm comes behind the last block.
    pub(super) fn has_last_norm(&self) -> bool {
        !matches!(self.projector, SiglipProjectorConfig::NormedGated { .. })
    }

    /// Whether an image is tiles.
    pub(super) fn is_tiled(&self) -> bool {
        !matches!(self.projector, SiglipProjectorConfig::Mean { .. })
    }
}

/// Tokens of the side of an image of Gemma 3, which has so many patches.
fn tokens(fields: &Fields<'_>, patches: usize) -> Result<usize, Error> {
    let count = fields.size_or("mm_tokens_per_image", 256, patches * patches)?;
    let tokens = count.isqrt();
    if tokens * tokens != count || !patches.is_multiple_of(tokens) {
        let expected = format!("its root must divide the patches of an image's side, {patches}");
        return Err(fields.refuse("mm_tokens_per_image", expected));
    }
    Ok(tokens)
}

/// The same of a tile of Cohere's, and what comes of the first matrix that makes features.
fn gated(fields: &Fields<'_>, patches: usize, absent: usize) -> Result<(usize, usize), Error> {
    let tokens = merged(fields, "downsample_factor", patches)?;
    let field = "alignment_intermediate_size";
    let inner = fields.size_or(field, absent, MAX_INTERMEDIATE)?;
    if !inner.is_multiple_of(2) {
        return Err(fields.refuse(field, "it must be even: half of it are gates".to_owned()));
    }
    Ok((tokens, inner))
}

/// Tokens of the side of a tile that has so many patches; the field says those of a token.
fn merged(fields: &Fields<'_>, field: &'static str, patches: usize) -> Result<usize, Error> {
    let factor = fields.size_or(field, 2, patches)?;
    if !patches.is_multiple_of(factor) {
        let expected = format!("it must divide the patches of a tile's side, {patches}");
        return Err(fields.refuse(field, expected));
    }
    Ok(patches / factor)
}

const VISION: &[KnownField] = &[
    ("attention_dropout", Harmless),
    ("dtype", Harmless),
    ("hidden_act", Read),
    ("hidden_size", Read),
    ("image_size", Read),
    ("initializer_range", Harmless),
    ("intermediate_size", Read),
    ("layer_norm_eps", Read),
    ("max_image_size", Harmless),
    (
        "model_type",
        Only(&[
            "\"siglip_vision_model\"",
            "\"idefics3\"",
            "\"idefics3_vision\"",
            "\"smolvlm\"",
            "\"smolvlm_vision\"",
        ]),
    ),
    ("num_attention_heads", Read),
    ("num_channels", Only(&["3"])),
    ("num_hidden_layers", Read),
    ("patch_size", Read),
    ("rms_norm_add_unit_offset", Read),
    ("size", Harmless),
    ("tie_word_embeddings", Harmless),
    ("torch_dtype", Harmless),
    ("use_base_siglip", Harmless),
    ("vision_use_head", Effect::OFF),
];
