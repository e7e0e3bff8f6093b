//! What the autoencoder's `config.json` says.

use crate::Error;
use crate::arch::unet::{MAX_BLOCKS, divides, sizes};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{Fields, KnownField, MAX_HIDDEN};

/// The configuration of an autoencoder.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoencoderKlConfig {
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Channels of the picture that goes in.
    pub in_channels: usize,
    /// Channels of the picture that comes out.
    pub out_channels: usize,
    /// Channels of each level, from that of the picture's size down (`block_out_channels`).
    pub channels: Vec<usize>,
    /// Residual blocks of a level of the encoder; the decoder has one more.
    pub layers: usize,
    /// Groups of the norms.
    pub groups: usize,
    /// What latents of a denoiser are divided by before they are decoded.
    pub scaling_factor: f64,
    /// What is then added to them.
    pub shift_factor: f64,
    /// Whether a 1x1 convolution comes behind the encoder.
    pub use_quant_conv: bool,
    /// Whether a 1x1 convolution comes before the decoder.
    pub use_post_quant_conv: bool,
    /// Whether the lowest level has attention.
    pub mid_block_add_attention: bool,
}

impl AutoencoderKlConfig {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let channels = sizes(fields, "block_out_channels", &[64], MAX_HIDDEN)?;
        let groups = fields.size_or("norm_num_groups", 32, MAX_HIDDEN)?;
        divides(fields, "norm_num_groups", groups, &channels)?;
        check_blocks(fields, "up_block_types", "UpDecoderBlock2D", channels.len())?;
        Ok(Self {
            latent_channels: fields.size_or("latent_channels", 4, MAX_HIDDEN)?,
            in_channels: fields.size_or("in_channels", 3, MAX_HIDDEN)?,
            out_channels: fields.size_or("out_channels", 3, MAX_HIDDEN)?,
            channels,
            layers: fields.size_or("layers_per_block", 1, MAX_BLOCKS)?,
            groups,
            scaling_factor: match fields.number_or("scaling_factor", 0.18215)? {
                factor if factor != 0.0 => factor,
                _ => return Err(fields.refuse("scaling_factor", "it must not be 0".to_owned())),
            },
            shift_factor: fields.number_or("shift_factor", 0.0)?,
            use_quant_conv: fields.flag_or("use_quant_conv", true)?,
            use_post_quant_conv: fields.flag_or("use_post_quant_conv", true)?,
            mid_block_add_attention: fields.flag_or("mid_block_add_attention", true)?,
        })
    }

    /// Refuses what its encoder has that is not built in.
    pub(super) fn check_encoder(&self, fields: &Fields<'_>) -> Result<(), Error> {
        check_blocks(fields, "down_block_types", "DownEncoderBlock2D", self.channels.len())
    }
}

/// Refuses all but a list of `count` names of the one class of blocks that is built in.
fn check_blocks(
    fields: &Fields<'_>,
    types: &'static str,
    class: &str,
    count: usize,
) -> Result<(), Error> {
    let Some(value) = fields.get(types) else {
        return if count == 1 { Ok(()) } else { Err(fields.missing(types)) };
    };
    let plain = |name: &serde_json::Value| name.as_str() == Some(class);
    match value.as_array().filter(|list| list.len() == count && list.iter().all(plain)) {
        Some(_) => Ok(()),
        None => {
            let expected =
                format!("only a list of {count}, one for each level, of \"{class}\" is supported");
            Err(fields.refuse(types, expected))
        }
    }
}

pub(super) const FIELDS: &[KnownField] = &[
    ("_class_name", Read),
    ("_diffusers_version", Harmless),
    ("act_fn", Only(&["\"silu\"", "\"swish\""])),
    ("block_out_channels", Read),
    ("down_block_types", Read),
    ("in_channels", Read),
    ("use_quant_conv", Read),
    // Activations are f32 in any case.
    ("force_upcast", Harmless),
    ("latent_channels", Read),
    ("latents_mean", Effect::UNSET),
    ("latents_std", Effect::UNSET),
    ("layers_per_block", Read),
    ("mid_block_add_attention", Read),
    ("norm_num_groups", Read),
    ("out_channels", Read),
    ("sample_size", Harmless),
    ("scaling_factor", Read),
    ("shift_factor", Read),
    ("up_block_types", Read),
    ("use_post_quant_conv", Read),
];
