//! What the autoencoder's `config.json` says.

use serde_json::Value;

use crate::Error;
use crate::arch::unet::{MAX_BLOCKS, divides, sizes};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{Fields, KnownField, MAX_HIDDEN, epsilon};
use crate::layers::PictureNormKind;

/// What diffusers calls the autoencoder of FLUX.2.
pub(super) const FLUX2: &str = "AutoencoderKLFlux2";

/// What diffusers calls that of Qwen-Image.
pub(super) const QWEN_IMAGE: &str = "AutoencoderKLQwenImage";

/// What one level of channels may be more than that of the picture's size.
const MAX_MULTIPLE: usize = 1 << 10;

/// Means and deviations of the channels of Qwen-Image's latents.
const MEANS: [f64; 16] = [
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517,
    -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
];
const DEVIATIONS: [f64; 16] = [
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
    1.6382, 1.1253, 2.8251, 1.9160,
];

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
    /// The norms.
    pub norm: PictureNormKind,
    /// What each channel of a denoiser's latents is divided by before they are decoded.
    pub scaling_factors: Vec<f64>,
    /// What is then added to it.
    pub shift_factors: Vec<f64>,
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
        if class == QWEN_IMAGE {
            return Self::read_qwen_image(fields);
        }
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
        let latent_channels = fields.size_or("latent_channels", usual_latent, MAX_HIDDEN)?;
        // What batch norm does needs neither factor.
        let scaling_factor = match fields.number_or("scaling_factor", 0.18215)? {
            _ if is_flux2 => 1.0,
            factor if factor != 0.0 => factor,
            _ => return Err(fields.refuse("scaling_factor", "it must not be 0".to_owned())),
        };
        Ok(Self {
            latent_channels,
            in_channels: fields.size_or("in_channels", 3, MAX_HIDDEN)?,
            out_channels: fields.size_or("out_channels", 3, MAX_HIDDEN)?,
            channels,
            decoder_channels,
            layers: fields.size_or("layers_per_block", usual_layers, MAX_BLOCKS)?,
            norm: PictureNormKind::Groups(groups),
            scaling_factors: vec![scaling_factor; latent_channels],
            shift_factors: vec![fields.number_or("shift_factor", 0.0)?; latent_channels],
            use_quant_conv: fields.flag_or("use_quant_conv", true)?,
            use_post_quant_conv: fields.flag_or("use_post_quant_conv", true)?,
            mid_block_add_attention: fields.flag_or("mid_block_add_attention", true)?,
            batch_norm_eps: match is_flux2 {
                true => Some(epsilon(fields, "batch_norm_eps", 1e-4)?),
                false => None,
            },
        })
    }

    /// Of that of Qwen-Image, whose convolutions are those of films.
    fn read_qwen_image(fields: &Fields<'_>) -> Result<Self, Error> {
        let base = fields.size_or("base_dim", 96, MAX_HIDDEN)?;
        let multiples = sizes(fields, "dim_mult", &[1, 2, 4, 4], MAX_MULTIPLE)?;
        let channels: Vec<usize> = multiples.iter().map(|multiple| base * multiple).collect();
        if multiples[0] != 1 || channels.iter().any(|n| !(2..=MAX_HIDDEN).contains(n)) {
            let expected =
                format!("it must begin with 1, and each level have 2 to {MAX_HIDDEN} channels");
            return Err(fields.refuse("dim_mult", expected));
        }
        let halvings = channels.len() - 1;
        let is_flags =
            |list: &Vec<Value>| list.len() == halvings && list.iter().all(Value::is_boolean);
        let temporal = fields.get("temperal_downsample");
        if temporal.map_or(halvings != 3, |value| !value.as_array().is_some_and(is_flags)) {
            let expected = format!("it must be a list of {halvings} of true or false");
            return Err(fields.refuse("temperal_downsample", expected));
        }
        let latent_channels = fields.size_or("z_dim", 16, MAX_HIDDEN)?;
        let by_channel = |field: &'static str, usual: &[f64], least: f64| {
            let Some(value) = fields.get(field) else {
                return Ok(usual.to_vec());
            };
            let number = |value: &Value| value.as_f64().filter(|n| (least..=1e6).contains(n));
            let list = value.as_array().and_then(|list| list.iter().map(number).collect());
            list.ok_or_else(|| {
                fields.refuse(field, format!("it must be a list of numbers from {least} to 1e6"))
            })
        };
        let (shift_factors, deviations) = (
            by_channel("latents_mean", &MEANS, -1e6)?,
            by_channel("latents_std", &DEVIATIONS, 1e-6)?,
        );
        for (field, list) in [("latents_mean", &shift_factors), ("latents_std", &deviations)] {
            if list.len() != latent_channels {
                let expected = format!("it must have {latent_channels} numbers, z_dim");
                return Err(fields.refuse(field, expected));
            }
        }
        let colours = fields.size_or("input_channels", 3, MAX_HIDDEN)?;
        Ok(Self {
            latent_channels,
            in_channels: colours,
            out_channels: colours,
            decoder_channels: channels.clone(),
            channels,
            layers: fields.size_or("num_res_blocks", 2, MAX_BLOCKS)?,
            norm: PictureNormKind::Channels,
            scaling_factors: deviations.iter().map(|deviation| deviation.recip()).collect(),
            shift_factors,
            use_quant_conv: true,
            use_post_quant_conv: true,
            mid_block_add_attention: true,
            batch_norm_eps: None,
        })
    }

    /// What diffusers calls it.
    pub fn class(&self) -> &'static str {
        match (self.norm, self.batch_norm_eps) {
            (PictureNormKind::Channels, _) => QWEN_IMAGE,
            (_, Some(_)) => FLUX2,
            (_, None) => "AutoencoderKL",
        }
    }

    /// Whether it was made for films, of which a picture is one frame.
    pub(super) fn is_of_films(&self) -> bool {
        self.norm == PictureNormKind::Channels
    }

    /// Channels of a picture that had so many before its sides were doubled.
    pub(super) fn doubled_channels(&self, channels: usize) -> usize {
        if self.is_of_films() { channels / 2 } else { channels }
    }

    /// Refuses what its encoder has that is not built in.
    pub(super) fn check_encoder(&self, fields: &Fields<'_>) -> Result<(), Error> {
        if self.is_of_films() {
            return Ok(());
        }
        let usual = if self.batch_norm_eps.is_some() { 4 } else { 1 };
        check_blocks(fields, "down_block_types", "DownEncoderBlock2D", self.channels.len(), usual)
    }
}

/// Refuses all but a list of `count` names of the one class of blocks that is built in. Without a
/// list there are as many as usual.
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
    let plain = |name: &Value| name.as_str() == Some(class);
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
    const OF_FILMS: &[KnownField] = &[
        ("_class_name", Read),
        ("_diffusers_version", Harmless),
        ("attn_scales", Only(&["[]"])),
        ("base_dim", Read),
        ("dim_mult", Read),
        ("dropout", Harmless),
        ("input_channels", Read),
        ("latents_mean", Read),
        ("latents_std", Read),
        ("num_res_blocks", Read),
        ("temperal_downsample", Read),
        ("z_dim", Read),
    ];
    match class {
        QWEN_IMAGE => &[OF_FILMS],
        FLUX2 => &[BOTH, NORMALIZED],
        _ => &[BOTH, SCALED],
    }
}
