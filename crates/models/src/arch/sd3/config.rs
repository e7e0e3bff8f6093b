//! What the transformer's `config.json` says.

use super::super::transformer_heads::transformer_heads;
use crate::Error;
use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{Fields, KnownField, MAX_HIDDEN, MAX_LAYERS, numbers};

/// What norms add to variances and mean squares.
pub(super) const EPSILON: f64 = 1e-6;

/// Rows of latents, and columns, that make a token.
const PATCH: usize = 2;

/// The most rows and columns of tokens.
const MAX_SIDE: usize = 1 << 12;

/// The configuration of the transformer of Stable Diffusion 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sd3Transformer2dConfig {
    /// Channels of latents.
    pub in_channels: usize,
    /// Channels of the result.
    pub out_channels: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Heads of attention.
    pub num_attention_heads: usize,
    /// Width of a head.
    pub attention_head_dim: usize,
    /// Width of a text's tokens.
    pub joint_attention_dim: usize,
    /// Width of what is known of a text as a whole.
    pub pooled_projection_dim: usize,
    /// Rows and columns of latents that it was trained with.
    pub sample_size: usize,
    /// Rows and columns of the table of places.
    pub pos_embed_max_size: usize,
    /// The blocks in which a picture's tokens attend to each other besides.
    pub dual_attention_layers: Vec<usize>,
    /// Whether queries and keys are normalised.
    pub has_norms: bool,
}

impl Sd3Transformer2dConfig {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let in_channels = fields.size_or("in_channels", 16, MAX_HIDDEN)?;
        let [num_attention_heads, attention_head_dim] = transformer_heads(fields, [18, 64])?;
        // In diffusers an explicit `null` is not what is usual.
        let usual = if fields.has("out_channels") { in_channels } else { 16 };
        let config = Self {
            in_channels,
            out_channels: fields.size_or("out_channels", usual, MAX_HIDDEN)?,
            num_layers: fields.size_or("num_layers", 18, MAX_LAYERS)?,
            num_attention_heads,
            attention_head_dim,
            joint_attention_dim: fields.size_or("joint_attention_dim", 4096, MAX_HIDDEN)?,
            pooled_projection_dim: fields.size_or("pooled_projection_dim", 2048, MAX_HIDDEN)?,
            sample_size: fields.size_or("sample_size", 128, PATCH * MAX_SIDE)?,
            pos_embed_max_size: fields.size_or("pos_embed_max_size", 96, MAX_SIDE)?,
            dual_attention_layers: match fields.get("dual_attention_layers") {
                Some(value) => numbers(value).ok_or_else(|| {
                    let expected = "it must be a list of blocks".to_owned();
                    fields.refuse("dual_attention_layers", expected)
                })?,
                None => Vec::new(),
            },
            has_norms: fields.text("qk_norm")?.is_some(),
        };
        let width = fields.size_or("caption_projection_dim", 1152, MAX_HIDDEN)?;
        if width != config.hidden() {
            let expected = format!("it must be the width of all heads, {}", config.hidden());
            return Err(fields.refuse("caption_projection_dim", expected));
        }
        Ok(config)
    }

    /// Width of the residual streams.
    pub(super) fn hidden(&self) -> usize {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Values of a token: of latents that go in, and of what comes out.
    pub fn packed_channels(&self) -> [usize; 2] {
        [self.in_channels, self.out_channels].map(|channels| PATCH * PATCH * channels)
    }
}

pub(super) const FIELDS: &[KnownField] = &[
    ("_class_name", Read),
    ("_diffusers_version", Harmless),
    ("attention_head_dim", Read),
    ("caption_projection_dim", Read),
    ("dual_attention_layers", Read),
    ("in_channels", Read),
    ("joint_attention_dim", Read),
    ("num_attention_heads", Read),
    ("num_layers", Read),
    ("out_channels", Read),
    ("patch_size", Only(&["2"])),
    ("pooled_projection_dim", Read),
    ("pos_embed_max_size", Read),
    ("qk_norm", Only(&["null", "\"rms_norm\""])),
    ("sample_size", Read),
];
