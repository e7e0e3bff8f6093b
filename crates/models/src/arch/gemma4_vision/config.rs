//! What a `config.json` says of the vision encoder of Gemma 4.

use crate::Error;
use crate::arch::vision_fields::{IMAGE_TOKEN, MAX_PATCH, vision_fields, vision_theta};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    self, COMMON, Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE,
    MAX_LAYERS, epsilon, token_id,
};
use crate::layers::Activation;

/// The most rows or columns of patches that there are positions for.
const MAX_POSITIONS: usize = 1 << 16;

/// The configuration of a vision encoder, and of what follows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Gemma4VisionConfig {
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layers.
    pub intermediate_size: usize,
    /// Heads of attention.
    pub num_attention_heads: usize,
    /// Width of one head; a multiple of 4.
    pub head_dim: usize,
    /// The non-linear function of the MLP.
    pub activation: Activation,
    /// What norms add to mean squares.
    pub rms_norm_eps: f64,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Patches of a token's side.
    pub pooling_kernel_size: usize,
    /// Rows and columns of patches that there are positions for.
    pub positions: usize,
    /// Whether what linear layers take and give is clipped.
    pub is_clipped: bool,
    /// Whether what comes of the encoder is shifted and scaled.
    pub is_standardized: bool,
    /// Whether the values of a patch are colours, of each rows, in place of the other way round.
    pub patch_colours_first: bool,
    /// Width of the language model.
    pub text_hidden_size: usize,
    /// Whether the tokens of an image see each other.
    pub sees_itself: bool,
    /// The token that stands for an image in a prompt.
    pub image_token: u32,
    /// What is before an image and behind it.
    pub image_marks: [u32; 2],
}

impl Gemma4VisionConfig {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let vision = vision_fields(fields, &[VISION, COMMON])?;
        let text = fields.required_object("text_config")?;
        if text.get("pad_token_id").is_some_and(|id| *id != 0) {
            let expected = "it must be 0: layers have inputs of it where an image is".to_owned();
            return Err(text.refuse("pad_token_id", expected));
        }
        let heads = vision.size_or("num_attention_heads", 12, MAX_HEADS)?;
        if vision.size_or("num_key_value_heads", 12, MAX_HEADS)? != heads {
            let expected = format!("it must be num_attention_heads, {heads}");
            return Err(vision.refuse("num_key_value_heads", expected));
        }
        let head_dim = vision.size_or("head_dim", 64, MAX_HEAD_DIM)?;
        if !head_dim.is_multiple_of(4) {
            return Err(vision.refuse("head_dim", "it must be a multiple of 4".to_owned()));
        }
        let pooling_kernel_size = vision.size_or("pooling_kernel_size", 3, MAX_PATCH)?;
        let positions = vision.size_or("position_embedding_size", 10_240, MAX_POSITIONS)?;
        if positions < pooling_kernel_size {
            let expected =
                format!("it must be at least the side of a token, {pooling_kernel_size}");
            return Err(vision.refuse("position_embedding_size", expected));
        }
        Ok(Self {
            num_hidden_layers: vision.size_or("num_hidden_layers", 16, MAX_LAYERS)?,
            hidden_size: vision.size_or("hidden_size", 768, MAX_HIDDEN)?,
            intermediate_size: vision.size_or("intermediate_size", 3072, MAX_INTERMEDIATE)?,
            num_attention_heads: heads,
            head_dim,
            activation: config::activation(&vision, "hidden_activation", Activation::GeluTanh)?,
            rms_norm_eps: epsilon(&vision, "rms_norm_eps", 1e-6)?,
            rope_theta: vision_theta(&vision, ROPE, THETA)?,
            patch_size: vision.size_or("patch_size", 16, MAX_PATCH)?,
            pooling_kernel_size,
            positions,
            is_clipped: vision.flag_or("use_clipped_linears", false)?,
            is_standardized: vision.flag_or("standardize", false)?,
            patch_colours_first: vision.flag_or("patch_colours_first", false)?,
            text_hidden_size: text.size_or("hidden_size", 2304, MAX_HIDDEN)?,
            sees_itself: text.text("use_bidirectional_attention")? == Some("vision"),
            image_token: token_id(fields, &IMAGE_TOKEN, 258_880)?,
            image_marks: [
                token_id(fields, &["boi_token_id"], 255_999)?,
                token_id(fields, &["eoi_token_id"], 258_882)?,
            ],
        })
    }
}

/// The base of the rotary frequencies, if nothing else is said.
const THETA: f64 = 100.0;

const ROPE: &[KnownField] =
    &[("rope_theta", Read), ("rope_type", Only(&["\"axial\"", "\"default\""]))];

const VISION: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("default_output_length", Harmless),
    ("global_head_dim", Harmless),
    ("head_dim", Read),
    ("hidden_activation", Read),
    ("hidden_size", Read),
    ("intermediate_size", Read),
    ("max_position_embeddings", Harmless),
    ("model_type", Only(&["\"gemma4_vision\""])),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("num_key_value_heads", Read),
    ("patch_colours_first", Read),
    ("patch_size", Read),
    ("pooling_kernel_size", Read),
    ("position_embedding_size", Read),
    ("rms_norm_eps", Read),
    ("rope_parameters", Read),
    ("standardize", Read),
    ("use_clipped_linears", Read),
];
