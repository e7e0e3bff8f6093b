//! What a `config.json` says of the vision encoder of Mistral 3 and Mistral Large 4.

use crate::Error;
use crate::arch::vision_fields::{IMAGE_TOKEN, MAX_PATCH, vision_fields, vision_heads};
use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, epsilon, rope_object,
    theta, token_id,
};
use crate::layers::Activation;

/// The configuration of a vision encoder, and of what follows it.
#[derive(Debug, Clone, PartialEq)]
pub struct PixtralVisionConfig {
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
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether neighbours are rotated together, in place of elements half a head apart.
    pub rope_interleaved: bool,
    /// Patches of a token's side.
    pub spatial_merge_size: usize,
    /// Width of the language model.
    pub text_hidden_size: usize,
    /// What the norm behind the encoder adds to mean squares.
    pub rms_norm_eps: f64,
    /// The non-linear function between the last two layers.
    pub projector_activation: Activation,
    /// Whether these have biases.
    pub projector_bias: bool,
    /// The token that stands for an image in a prompt.
    pub image_token: u32,
}

impl PixtralVisionConfig {
    /// Of a model whose language model is so wide if its file does not say.
    pub(super) fn read(fields: &Fields<'_>, text_width: usize) -> Result<Self, Error> {
        let vision = vision_fields(fields, &[VISION])?;
        let text = fields.required_object("text_config")?;
        let hidden_size = vision.size_or("hidden_size", 1024, MAX_HIDDEN)?;
        let num_attention_heads =
            vision_heads(&vision, "num_attention_heads", 16, [hidden_size, 4])?;
        let head = hidden_size / num_attention_heads;
        if vision.get("head_dim").is_some() && vision.size("head_dim", MAX_HIDDEN)? != head {
            let expected =
                format!("the heads must be as wide as hidden_size together: {head} each");
            return Err(vision.refuse("head_dim", expected));
        }
        let rope_theta = theta(&vision, "rope_theta", 10_000.0)?;
        let rope_theta = match rope_object(&vision)? {
            Some(rope) => theta(&rope, "rope_theta", rope_theta)?,
            None => rope_theta,
        };
        Ok(Self {
            num_hidden_layers: vision.size_or("num_hidden_layers", 24, MAX_LAYERS)?,
            hidden_size,
            intermediate_size: vision.size_or("intermediate_size", 4096, MAX_INTERMEDIATE)?,
            num_attention_heads,
            activation: config::activation(&vision, "hidden_act", Activation::Gelu)?,
            patch_size: vision.size_or("patch_size", 16, MAX_PATCH)?,
            rope_theta,
            rope_interleaved: vision.flag_or("rope_interleaved", false)?,
            spatial_merge_size: fields.size_or("spatial_merge_size", 2, MAX_PATCH)?,
            text_hidden_size: text.size_or("hidden_size", text_width, MAX_HIDDEN)?,
            rms_norm_eps: epsilon(&text, "rms_norm_eps", 1e-5)?,
            projector_activation: config::activation(
                fields,
                "projector_hidden_act",
                Activation::Gelu,
            )?,
            projector_bias: fields.flag_or("multimodal_projector_bias", false)?,
            image_token: token_id(fields, &IMAGE_TOKEN, 10)?,
        })
    }
}

/// Of the whole, what the text part passes over.
pub(super) const PROJECTOR: &[KnownField] = &[("vision_feature_layer", Only(&["-1", "[-1]"]))];

const VISION: &[KnownField] = &[
    ("attention_dropout", Harmless),
    ("dtype", Harmless),
    ("head_dim", Read),
    ("hidden_act", Read),
    ("hidden_size", Read),
    ("image_size", Harmless),
    ("initializer_range", Harmless),
    ("intermediate_size", Read),
    ("model_type", Only(&["\"pixtral\""])),
    ("num_attention_heads", Read),
    ("num_channels", Only(&["3"])),
    ("num_hidden_layers", Read),
    ("patch_size", Read),
    ("rope_interleaved", Read),
    ("rope_parameters", Read),
    ("rope_scaling", Read),
    ("rope_theta", Read),
    ("torch_dtype", Harmless),
    ("vocab_size", Harmless),
];
