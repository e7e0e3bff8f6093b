//! What the transformer's `config.json` says.

use super::super::transformer_heads::transformer_heads;
use crate::Error;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_HIDDEN, MAX_LAYERS};
use crate::layers::axis_widths;

/// Coordinates of a token.
pub(super) const AXES: usize = 3;

/// What norms add to variances and mean squares.
pub(super) const EPSILON: f64 = 1e-6;

/// The configuration of a Flux transformer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FluxTransformer2dConfig {
    /// Channels of packed latents.
    pub in_channels: usize,
    /// Channels of the result.
    pub out_channels: usize,
    /// Blocks in which pictures and texts have weights of their own.
    pub num_layers: usize,
    /// Blocks in which they have the same.
    pub num_single_layers: usize,
    /// Heads of attention.
    pub num_attention_heads: usize,
    /// Width of a head.
    pub attention_head_dim: usize,
    /// Width of a text's tokens.
    pub joint_attention_dim: usize,
    /// Width of what is known of a text as a whole.
    pub pooled_projection_dim: usize,
    /// Whether it is told how closely to follow the text.
    pub guidance_embeds: bool,
    /// Elements of a head that each coordinate of a token rotates: one that is always 0, row and
    /// column.
    pub axes_dims_rope: [usize; AXES],
    /// Whether the last norm's shifts come before its scales, as in the software that FLUX.1 was
    /// published for, under [`SHIFT_FIRST`](crate::arch::SHIFT_FIRST).
    pub shift_first: bool,
}

impl FluxTransformer2dConfig {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let in_channels = fields.size_or("in_channels", 64, MAX_HIDDEN)?;
        let [num_attention_heads, attention_head_dim] = transformer_heads(fields, [24, 128])?;
        Ok(Self {
            in_channels,
            out_channels: fields.size_or("out_channels", in_channels, MAX_HIDDEN)?,
            num_layers: fields.size_or("num_layers", 19, MAX_LAYERS)?,
            num_single_layers: fields.size_or("num_single_layers", 38, MAX_LAYERS)?,
            num_attention_heads,
            attention_head_dim,
            joint_attention_dim: fields.size_or("joint_attention_dim", 4096, MAX_HIDDEN)?,
            pooled_projection_dim: fields.size_or("pooled_projection_dim", 768, MAX_HIDDEN)?,
            guidance_embeds: fields.flag_or("guidance_embeds", false)?,
            axes_dims_rope: axis_widths(
                fields,
                "axes_dims_rope",
                [16, 56, 56],
                ("attention_head_dim", attention_head_dim),
            )?,
            shift_first: false,
        })
    }

    /// Width of the residual stream.
    pub(super) fn hidden(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }
}

pub(super) const FIELDS: &[KnownField] = &[
    ("_class_name", Read),
    ("_diffusers_version", Harmless),
    ("attention_head_dim", Read),
    ("axes_dims_rope", Read),
    ("guidance_embeds", Read),
    ("in_channels", Read),
    ("joint_attention_dim", Read),
    ("num_attention_heads", Read),
    ("num_layers", Read),
    ("num_single_layers", Read),
    ("out_channels", Read),
    ("patch_size", Effect::ONE),
    ("pooled_projection_dim", Read),
];
