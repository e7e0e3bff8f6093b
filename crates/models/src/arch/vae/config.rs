//! What the autoencoder's `config.json` says.

use crate::Error;
use crate::arch::unet::{MAX_BLOCKS, divides, sizes};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{Fields, KnownField, MAX_HIDDEN, epsilon};

/// What diffusers calls the autoencoder of FLUX.2.
pub(super) const FLUX2: &str = "AutoencoderKLFlux2";

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
    /// The same of the decoder, if they are others.
    pub decoder_channels: Vec<usize>,
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
    /// Of latents that are normalised as a batch norm does, what is added to variances.
    pub batch_norm_eps: Option<f64>,
}

impl AutoencoderKlConfig {
    /// Of an autoencoder that diffusers calls `class`.
    pub(super) fn read(class: &str, fields: &Fields<'_>) -> Result<Self, Error> {
        let is_flux2 = class == FLUX2;
        let usual: &[usize] = if is_flux2 { &[128, 256, 512, 512] } else { &[64] };
        let [usual_latent, usual_layers] = if is_flux2 { [32, 2] } else { [4, 1] };
        let channels = sizes(fields, "block_out_channels", usual, MAX_HIDDEN)?;
        let decoder_channels = match is_flux2 {
            true => sizes(fields, "decoder_block_out_channels", &channels, MAX_HIDDEN)?,
            false => channels.clone(),
        };
        if decoder_channels.len() != channels.len() {
            let expected = format!("it must have {} numbers too", channels.len());
            return Err(fields.refuse("decoder_block_out_channels", expected));
        }
        let groups = fields.size_or("norm_num_groups", 32, MAX_HIDDEN)?;
        divides(fields, "norm_num_groups", groups, &channels)?;
        divides(fields, "norm_num_groups", groups, &decoder_channels)?;
        check_blocks(fields, "up_block_types", "UpDecoderBlock2D", channels.len(), usual.len())?;
        Ok(Self {
            latent_channels: fields.size_or("latent_channels", usual_latent, MAX_HIDDEN)?,
            in_channels: fields.size_or("in_channels", 3, MAX_HIDDEN)?,
            out_channels: fields.size_or("out_channels", 3, MAX_HIDDEN)?,
            channels,
            decoder_channels,
            layers: fields.size_or("layers_per_block", usual_layers, MAX_BLOCKS)?,
            groups,
            // What batch norm does needs none of them.
            scaling_factor: match fields.number_or("scaling_factor", 0.18215)? {
                _ if is_flux2 => 1.0,
                factor if factor != 0.0 => factor,
                _ => return Err(fields.refuse("scaling_factor", "it must not be 0".to_owned())),
            },
            shift_factor: fields.number_or("shift_factor", 0.0)?,
            use_quant_conv: fields.flag_or("use_quant_conv", true)?,
            use_post_quant_conv: fields.flag_or("use_post_quant_conv", true)?,
            mid_block_add_attention: fields.flag_or("mid_block_add_attention", true)?,
            batch_norm_eps: match is_flux2 {
                true => Some(epsilon(fields, "batch_norm_eps", 1e-4)?),
                false => None,
            },
        })
    }

    /// Refuses what its encoder has that is not built in.
    pub(super) fn check_encoder(&self, fields: &Fields<'_>) -> Result<(), Error> {
        let usual = if self.batch_norm_eps.is_some() { 4 } else { 1 };
        check_blocks(fields, "down_block_types", "DownEncoderBlock2D", self.channels.len(), usual)
    }
}

/// Refuses all but a list of `count` names of the one class of blocks that is built in. Without a list there are as many as usual.
fn check_blocks(
    fields: &Fields<'_>,
    types: &'static str,
    class: &str,
    count: usize,
    usual: usize,
) -> Result<(), Error> {
    let Some(value) = fields.get(types) else {
        return if count == usual { Ok(()) } else { Err(fields.missing(types)) };
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

/// Of every autoencoder.
const BOTH: &[KnownField] = &[
    ("_class_name", Read),
    ("_diffusers_version", Harmless),
    ("act_fn", Only(&["\"silu\"", "\"swish\""])),
    ("block_out_channels", Read),
    ("down_block_types", Read),
    ("in_channels", Read),
    ("latent_channels", Read),
    ("layers_per_block", Read),
    ("mid_block_add_attention", Read),
    ("norm_num_groups", Read),
    ("out_channels", Read),
    ("sample_size", Harmless),
    ("up_block_types", Read),
    ("use_post_quant_conv", Read),
    ("use_quant_conv", Read),
];

/// What the autoencoder of that class has.
pub(super) fn fields(class: &str) -> &'static [&'static [KnownField]] {
    const SCALED: &[KnownField] = &[
        // Activations are f32 in any case.
        ("force_upcast", Harmless),
        ("latents_mean", Effect::UNSET),
        ("latents_std", Effect::UNSET),
        ("scaling_factor", Read),
        ("shift_factor", Read),
    ];
    const NORMALIZED: &[KnownField] = &[
        ("batch_norm_eps", Read),
        // Of training.
        ("batch_norm_momentum", Harmless),
        ("decoder_block_out_channels", Read),
        ("patch_size", Only(&["[2,2]"])),
    ];
    match class {
        FLUX2 => &[BOTH, NORMALIZED],
        _ => &[BOTH, SCALED],
    }
}
