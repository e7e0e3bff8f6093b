//! What the transformer's `config.json` says.

use super::super::transformer_heads::transformer_heads;
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{Fields, KnownField, MAX_HIDDEN, MAX_LAYERS};
use crate::layers::axis_widths;

/// Coordinates of a token.
pub(super) const AXES: usize = 3;

/// What norms add to variances and mean squares.
pub(super) const EPSILON: f64 = 1e-6;

/// Base of the frequencies of positions.
pub(super) const THETA: f64 = 10_000.0;

/// Rows of latents, and columns, that make a token.
const PATCH: usize = 2;

/// The configuration of Qwen-Image's transformer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QwenImageTransformer2dConfig {
    /// Channels of packed latents.
    pub in_channels: usize,
    /// Channels of the result, unpacked.
    pub out_channels: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Heads of attention.
    pub num_attention_heads: usize,
    /// Width of a head.
    pub attention_head_dim: usize,
    /// Width of a text's tokens.
    pub joint_attention_dim: usize,
    /// Elements of a head that each coordinate of a token rotates: picture, row and column.
    pub axes_dims_rope: [usize; AXES],
    /// Whether pictures to go by are told that there is no noise left, instead of the time of the
    /// one that is made.
    pub zero_cond_t: bool,
}

impl QwenImageTransformer2dConfig {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let in_channels = fields.size_or("in_channels", 64, MAX_HIDDEN)?;
        let [num_attention_heads, attention_head_dim] = transformer_heads(fields, [24, 128])?;
        // In diffusers an explicit `null` is not what is usual.
        let usual = if fields.has("out_channels") { in_channels } else { 16 };
        Ok(Self {
            in_channels,
            out_channels: fields.size_or("out_channels", usual, MAX_HIDDEN)?,
            num_layers: fields.size_or("num_layers", 60, MAX_LAYERS)?,
            num_attention_heads,
            attention_head_dim,
            joint_attention_dim: fields.size_or("joint_attention_dim", 3584, MAX_HIDDEN)?,
            axes_dims_rope: axis_widths(
                fields,
                "axes_dims_rope",
                [16, 56, 56],
                ("attention_head_dim", attention_head_dim),
            )?,
            zero_cond_t: fields.flag_or("zero_cond_t", false)?,
        })
    }

    /// Width of the residual streams.
    pub(super) fn hidden(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Values of a token of the result.
    pub fn packed_out_channels(&self) -> usize {
        PATCH * PATCH * self.out_channels
    }
}

pub(super) const FIELDS: &[KnownField] = &[
    ("_class_name", Read),
    ("_diffusers_version", Harmless),
    ("attention_head_dim", Read),
    ("axes_dims_rope", Read),
    // Of pictures that are told how closely to follow the text, or in layers.
    ("guidance_embeds", Effect::OFF),
    ("in_channels", Read),
    ("joint_attention_dim", Read),
    ("num_attention_heads", Read),
    ("num_layers", Read),
    ("out_channels", Read),
    ("patch_size", Only(&["2"])),
    // diffusers passes it over: nothing is told of a text as a whole.
    ("pooled_projection_dim", Harmless),
    ("use_additional_t_cond", Effect::OFF),
    ("use_layer3d_rope", Effect::OFF),
    ("zero_cond_t", Read),
];
