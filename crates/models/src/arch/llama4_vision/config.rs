//! What a `config.json` says of the vision encoder of Llama 4.

use crate::Error;
use crate::arch::vision_fields::{IMAGE_TOKEN, vision_fields, vision_heads};
use crate::arch::vision_tile::VisionTile;
use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{
    Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, rope_object, theta, token_id,
};

/// The configuration of a vision encoder, and of what follows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Llama4VisionConfig {
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer, and of the patches of a token side by side.
    pub intermediate_size: usize,
    /// Heads of attention; divide `hidden_size`.
    pub num_attention_heads: usize,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// The tiles that it sees.
    pub tile: VisionTile,
    /// Width of the encoder's features.
    pub projector_dim: usize,
    /// Width of the language model.
    pub text_hidden_size: usize,
    /// The token that stands for a token of an image in a text.
    pub image_token: u32,
}

impl Llama4VisionConfig {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let vision = vision_fields(fields, &[VISION])?;
        let text = fields.required_object("text_config")?;
        let hidden_size = vision.size_or("hidden_size", 768, MAX_HIDDEN)?;
        let num_attention_heads =
            vision_heads(&vision, "num_attention_heads", 16, [hidden_size, 4])?;
        let tile = VisionTile::read(&vision, (&vision, "pixel_shuffle_ratio"))?;
        let intermediate_size = vision.size_or("intermediate_size", 5632, MAX_INTERMEDIATE)?;
        let merged = hidden_size * tile.merge_size * tile.merge_size;
        if intermediate_size != merged {
            let expected = format!(
                "it must be as wide as the patches of a token together, {merged} with this hidden_size and pixel_shuffle_ratio"
            );
            return Err(vision.refuse("intermediate_size", expected));
        }
        let projector_dim = vision.size_or("projector_input_dim", 4096, MAX_HIDDEN)?;
        for (field, default) in [("projector_output_dim", 4096), ("vision_output_dim", 7680)] {
            if vision.size_or(field, default, MAX_HIDDEN)? != projector_dim {
                let expected = format!("it must be projector_input_dim, {projector_dim}");
                return Err(vision.refuse(field, expected));
            }
        }
        let rope_theta = theta(&vision, "rope_theta", 10_000.0)?;
        Ok(Self {
            num_hidden_layers: vision.size_or("num_hidden_layers", 34, MAX_LAYERS)?,
            hidden_size,
            intermediate_size,
            num_attention_heads,
            rope_theta: match rope_object(&vision)? {
                Some(rope) => theta(&rope, "rope_theta", rope_theta)?,
                None => rope_theta,
            },
            tile,
            projector_dim,
            text_hidden_size: text.size_or("hidden_size", 5120, MAX_HIDDEN)?,
            image_token: token_id(fields, &IMAGE_TOKEN, 200_092)?,
        })
    }
}

const VISION: &[KnownField] = &[
    ("attention_dropout", Harmless),
    ("dtype", Harmless),
    // Nobody asks for it: it is GELU.
    ("hidden_act", Harmless),
    ("hidden_size", Read),
    ("image_size", Read),
    ("initializer_range", Harmless),
    ("intermediate_size", Read),
    ("model_type", Only(&["\"llama4_vision_model\""])),
    ("multi_modal_projector_bias", Harmless),
    // Nor for this one.
    ("norm_eps", Harmless),
    ("num_attention_heads", Read),
    ("num_channels", Only(&["3"])),
    ("num_hidden_layers", Read),
    ("patch_size", Read),
    ("pixel_shuffle_ratio", Read),
    ("projector_dropout", Harmless),
    ("projector_input_dim", Read),
    ("projector_output_dim", Read),
    ("rope_parameters", Read),
    ("rope_theta", Read),
    ("torch_dtype", Harmless),
    ("vision_feature_layer", Harmless),
    ("vision_feature_select_strategy", Harmless),
    ("vision_output_dim", Read),
];
