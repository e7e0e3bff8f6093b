//! What a `config.json` says of the vision encoder of InternVL.

use crate::Error;
use crate::arch::vision_fields::{vision_fields, vision_heads};
use crate::arch::vision_tile::VisionTile;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, epsilon, token_id,
};
use crate::layers::Activation;

/// The configuration of a vision encoder, and of what follows it.
#[derive(Debug, Clone, PartialEq)]
pub struct InternVlVisionConfig {
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Heads of attention; divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Whether queries, keys and values have biases.
    pub attention_bias: bool,
    /// Whether queries and keys are normed, all heads together.
    pub query_key_norms: bool,
    /// Whether norms of blocks divide by root mean squares alone.
    pub rms_norms: bool,
    /// What these norms add.
    pub layer_norm_eps: f64,
    /// The non-linear function of the MLP.
    pub activation: Activation,
    /// The tiles that it sees.
    pub tile: VisionTile,
    /// The non-linear function between the last two layers.
    pub projector_activation: Activation,
    /// Width of the language model.
    pub text_hidden_size: usize,
    /// The token that stands for an image in a prompt.
    pub image_token: u32,
}

impl InternVlVisionConfig {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let vision = vision_fields(fields, &[VISION])?;
        let text = fields.required_object("text_config")?;
        let hidden_size = vision.size_or("hidden_size", 1024, MAX_HIDDEN)?;
        let num_attention_heads =
            vision_heads(&vision, "num_attention_heads", 16, [hidden_size, 1])?;
        Ok(Self {
            num_hidden_layers: vision.size_or("num_hidden_layers", 24, MAX_LAYERS)?,
            hidden_size,
            intermediate_size: vision.size_or("intermediate_size", 4096, MAX_INTERMEDIATE)?,
            num_attention_heads,
            attention_bias: vision.flag_or("attention_bias", false)?,
            query_key_norms: vision.flag_or("use_qk_norm", false)?,
            rms_norms: vision.text("norm_type")? == Some("rms_norm"),
            layer_norm_eps: epsilon(&vision, "layer_norm_eps", 1e-6)?,
            activation: config::activation(&vision, "hidden_act", Activation::Gelu)?,
            tile: VisionTile::read(&vision, (fields, "downsample_ratio"))?,
            projector_activation: config::activation(
                fields,
                "projector_hidden_act",
                Activation::Gelu,
            )?,
            text_hidden_size: text.size("hidden_size", MAX_HIDDEN)?,
            image_token: token_id(fields, &["image_token_id"], 151_667)?,
        })
    }
}

/// Of the whole, what the text part passes over.
pub(super) const PROJECTOR: &[KnownField] = &[
    ("vision_feature_layer", Only(&["-1"])),
    ("vision_feature_select_strategy", Only(&["\"default\""])),
];

const VISION: &[KnownField] = &[
    ("architectures", Harmless),
    ("attention_bias", Read),
    ("attention_dropout", Harmless),
    ("dropout", Harmless),
    ("dtype", Harmless),
    ("hidden_act", Read),
    ("hidden_dropout_prob", Harmless),
    ("hidden_size", Read),
    ("image_size", Read),
    ("initializer_factor", Harmless),
    ("initializer_range", Harmless),
    ("intermediate_size", Read),
    ("layer_norm_eps", Read),
    // What the factors of branches begin with.
    ("layer_scale_init_value", Harmless),
    ("model_type", Only(&["\"internvl_vision\""])),
    ("norm_type", Only(&["\"layer_norm\"", "\"rms_norm\""])),
    ("num_attention_heads", Read),
    ("num_channels", Only(&["3"])),
    ("num_hidden_layers", Read),
    ("patch_size", Read),
    ("projection_dropout", Harmless),
    ("torch_dtype", Harmless),
    ("use_absolute_position_embeddings", Effect::ON),
    ("use_mask_token", Effect::OFF),
    ("use_mean_pooling", Effect::ON),
    ("use_qk_norm", Read),
];
