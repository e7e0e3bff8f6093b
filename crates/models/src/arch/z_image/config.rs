//! What the transformer's `config.json` says.

use crate::Error;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, epsilon, theta};
use crate::layers::axis_widths;

/// Coordinates of a token.
pub(super) const AXES: usize = 3;

/// Rows of latents, and columns, that make a token.
const PATCH: usize = 2;

/// The configuration of Z-Image's transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct ZImageTransformer2dConfig {
    /// Channels of latents, of which a token has two rows and columns.
    pub in_channels: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Blocks over all tokens.
    pub n_layers: usize,
    /// Blocks over the tokens of pictures alone before them, and as many over those of texts.
    pub n_refiner_layers: usize,
    /// Heads of attention.
    pub n_heads: usize,
    /// Added to mean squares by norms of the residual stream.
    pub norm_eps: f64,
    /// Width of a text's tokens.
    pub cap_feat_dim: usize,
    /// Base of the frequencies of positions.
    pub rope_theta: f64,
    /// What a time is multiplied by.
    pub t_scale: f64,
    /// Elements of a head that each coordinate of a token rotates: its place in the text, row and
    /// column.
    pub axes_dims: [usize; AXES],
}

impl ZImageTransformer2dConfig {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let dim = fields.size_or("dim", 3840, MAX_HIDDEN)?;
        let n_heads = fields.size_or("n_heads", 30, MAX_HEADS)?;
        if !dim.is_multiple_of(n_heads) {
            return Err(fields.refuse("n_heads", format!("it must divide dim, {dim}")));
        }
        Ok(Self {
            in_channels: fields.size_or("in_channels", 16, MAX_HIDDEN)?,
            dim,
            n_layers: fields.size_or("n_layers", 30, MAX_LAYERS)?,
            n_refiner_layers: fields.size_or("n_refiner_layers", 2, MAX_LAYERS)?,
            n_heads,
            norm_eps: epsilon(fields, "norm_eps", 1e-5)?,
            cap_feat_dim: fields.size_or("cap_feat_dim", 2560, MAX_HIDDEN)?,
            rope_theta: theta(fields, "rope_theta", 256.0)?,
            t_scale: fields.number_within_or("t_scale", 1000.0, 1e-6, 1e6)?,
            axes_dims: axis_widths(
                fields,
                "axes_dims",
                [32, 48, 48],
                ("dim / n_heads", dim / n_heads),
            )?,
        })
    }

    /// Width of the MLP's inner layer.
    pub(super) fn inner(&self) -> usize {
        (self.dim as f64 / 3.0 * 8.0) as usize
    }

    /// Values of a token of a picture.
    pub(super) fn packed_channels(&self) -> usize {
        PATCH * PATCH * self.in_channels
    }
}

pub(super) const FIELDS: &[KnownField] = &[
    ("_class_name", Read),
    ("_diffusers_version", Harmless),
    ("all_f_patch_size", Effect::Only(&["[1]"])),
    ("all_patch_size", Effect::Only(&["[2]"])),
    ("axes_dims", Read),
    // The lengths of tables of angles, which are not made here.
    ("axes_lens", Harmless),
    ("cap_feat_dim", Read),
    ("dim", Read),
    ("in_channels", Read),
    ("n_heads", Read),
    // diffusers passes it over: there are as many as heads.
    ("n_kv_heads", Harmless),
    ("n_layers", Read),
    ("n_refiner_layers", Read),
    ("norm_eps", Read),
    ("qk_norm", Effect::ON),
    ("rope_theta", Read),
    ("siglip_feat_dim", Effect::UNSET),
    ("t_scale", Read),
];
