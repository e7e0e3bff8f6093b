//! What the transformer's `config.json` says.

use super::super::transformer_heads::transformer_heads;
use crate::Error;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_HIDDEN, MAX_LAYERS, epsilon, theta};
use crate::layers::axis_widths;

/// Coordinates of a token: picture, row, column, and place in the text.
pub(super) const AXES: usize = 4;

/// What the inner layer of an MLP may be wider by, at most.
const MAX_RATIO: f64 = 64.0;

/// The configuration of a FLUX.2 transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct Flux2Transformer2dConfig {
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
    /// Sines and cosines that tell a time, and guidance.
    pub timestep_guidance_channels: usize,
    /// Width of the inner layer of an MLP.
    pub inner: usize,
    /// Whether it can be told how closely to follow the text.
    pub guidance_embeds: bool,
    /// Elements of a head that each coordinate of a token rotates.
    pub axes_dims_rope: [usize; AXES],
    /// Base of the frequencies of positions.
    pub rope_theta: f64,
    /// Added to variances and mean squares by norms.
    pub eps: f64,
    /// Whether the last norm's shifts come before its scales, as in the software that FLUX.2 was
    /// published for, under [`SHIFT_FIRST`](crate::arch::SHIFT_FIRST).
    pub shift_first: bool,
}

impl Flux2Transformer2dConfig {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let in_channels = fields.size_or("in_channels", 128, MAX_HIDDEN)?;
        let [num_attention_heads, attention_head_dim] = transformer_heads(fields, [48, 128])?;
        let hidden = num_attention_heads * attention_head_dim;
        let ratio = fields.number_within_or("mlp_ratio", 3.0, 1.0 / hidden as f64, MAX_RATIO)?;
        let channels = fields.size_or("timestep_guidance_channels", 256, MAX_HIDDEN)?;
        if !channels.is_multiple_of(2) {
            let expected = "it must be even".to_owned();
            return Err(fields.refuse("timestep_guidance_channels", expected));
        }
        Ok(Self {
            in_channels,
            out_channels: fields.size_or("out_channels", in_channels, MAX_HIDDEN)?,
            num_layers: fields.size_or("num_layers", 8, MAX_LAYERS)?,
            num_single_layers: fields.size_or("num_single_layers", 48, MAX_LAYERS)?,
            num_attention_heads,
            attention_head_dim,
            joint_attention_dim: fields.size_or("joint_attention_dim", 15_360, MAX_HIDDEN)?,
            timestep_guidance_channels: channels,
            inner: (hidden as f64 * ratio) as usize,
            guidance_embeds: fields.flag_or("guidance_embeds", true)?,
            axes_dims_rope: axis_widths(
                fields,
                "axes_dims_rope",
                [32; AXES],
                ("attention_head_dim", attention_head_dim),
            )?,
            rope_theta: theta(fields, "rope_theta", 2000.0)?,
            eps: epsilon(fields, "eps", 1e-6)?,
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
    ("eps", Read),
    ("guidance_embeds", Read),
    ("in_channels", Read),
    ("joint_attention_dim", Read),
    ("mlp_ratio", Read),
    ("num_attention_heads", Read),
    ("num_layers", Read),
    ("num_single_layers", Read),
    ("out_channels", Read),
    ("patch_size", Effect::ONE),
    ("rope_theta", Read),
    ("timestep_guidance_channels", Read),
];
