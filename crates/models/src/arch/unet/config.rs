//! What the denoiser's `config.json` says.

use serde_json::Value;

use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{self, Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN};

/// The most levels, blocks of a level and transformer blocks of one that a configuration may ask
/// for.
pub(crate) const MAX_LEVELS: usize = 12;
pub(crate) const MAX_BLOCKS: usize = 32;

/// What the embedding of time is wider by than the first level.
const TIME_EXPANSION: usize = 4;

/// The configuration of a denoiser.
#[derive(Debug, Clone, PartialEq)]
pub struct Unet2dConditionConfig {
    /// Channels of latents.
    pub in_channels: usize,
    /// Channels of the result.
    pub out_channels: usize,
    /// The levels, from that of the latents' size down.
    pub levels: Vec<UnetLevel>,
    /// Whether each level has transformers on the way down.
    pub down_attention: Vec<bool>,
    /// The same on the way up, from the lowest level on.
    pub up_attention: Vec<bool>,
    /// Residual blocks of a level on the way down; on the way up there is one more.
    pub layers: usize,
    /// Groups of the norms.
    pub groups: usize,
    /// What norms add to variances.
    pub epsilon: f64,
    /// Width of the text.
    pub cross_attention_dim: usize,
    /// Whether cosines come before sines.
    pub flip_sin_to_cos: bool,
    /// What is taken off the number of frequencies.
    pub freq_shift: f64,
    /// Whether projections are stored as linear layers, not as convolutions.
    pub use_linear_projection: bool,
    /// Rows and columns of latents that it was trained with (`sample_size`).
    pub sample_size: Option<usize>,
    /// What is added to the embedding of time (`addition_embed_type`).
    pub addition: Option<UnetAddition>,
    /// In how many values it is told how closely to follow the text, as consistency models are
    /// (`time_cond_proj_dim`).
    pub guidance_channels: Option<usize>,
}

/// An embedding of a text as a whole and of sizes, which is added to that of time (`text_time`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnetAddition {
    /// Channels that each of the sizes is told in.
    pub size_channels: usize,
    /// Width of all that goes in: the text and the sizes.
    pub inputs: usize,
}

/// A level of a denoiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnetLevel {
    /// Channels of a pixel.
    pub channels: usize,
    /// Heads of attention; they divide the channels.
    pub heads: usize,
    /// Blocks of each transformer.
    pub transformer_layers: usize,
}

impl Unet2dConditionConfig {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        for field in ["mid_block_type", "norm_num_groups"] {
            if fields.has(field) && fields.get(field).is_none() {
                let expected = "models that leave it out are not supported".to_owned();
                return Err(fields.refuse(field, expected));
            }
        }
        let channels = sizes(fields, "block_out_channels", &[320, 640, 1280, 1280], MAX_HIDDEN)?;
        let count = channels.len();
        let groups = fields.size_or("norm_num_groups", 32, MAX_HIDDEN)?;
        divides(fields, "norm_num_groups", groups, &channels)?;
        // The field that is called a width has always been the number of heads.
        let field = match fields.get("num_attention_heads") {
            Some(_) => "num_attention_heads",
            None => "attention_head_dim",
        };
        let heads = by_level(fields, field, 8, count, MAX_HEADS)?;
        let layers = by_level(fields, "transformer_layers_per_block", 1, count, MAX_BLOCKS)?;
        let mut levels = Vec::with_capacity(count);
        for ((&channels, heads), transformer_layers) in channels.iter().zip(heads).zip(layers) {
            if !channels.is_multiple_of(heads) || channels / heads > MAX_HEAD_DIM {
                let expected = format!(
                    "it is the number of heads, which must divide the level's {channels} channels, and make heads of at \
                     most {MAX_HEAD_DIM}"
                );
                return Err(fields.refuse(field, expected));
            }
            levels.push(UnetLevel { channels, heads, transformer_layers });
        }
        let down = ("down_block_types", ["DownBlock2D", "CrossAttnDownBlock2D"]);
        let up = ("up_block_types", ["UpBlock2D", "CrossAttnUpBlock2D"]);
        Ok(Self {
            in_channels: fields.size_or("in_channels", 4, MAX_HIDDEN)?,
            out_channels: fields.size_or("out_channels", 4, MAX_HIDDEN)?,
            levels,
            down_attention: attention(fields, down, count, [true, true, true, false])?,
            up_attention: attention(fields, up, count, [false, true, true, true])?,
            layers: fields.size_or("layers_per_block", 2, MAX_BLOCKS)?,
            groups,
            epsilon: config::epsilon(fields, "norm_eps", 1e-5)?,
            cross_attention_dim: fields.size_or("cross_attention_dim", 1280, MAX_HIDDEN)?,
            flip_sin_to_cos: fields.flag_or("flip_sin_to_cos", true)?,
            freq_shift: match fields.number_or("freq_shift", 0.0)? {
                // More would divide by nothing, or turn periods round.
                shift if (0.0..=1.0).contains(&shift) && channels[0] >= 4 => shift,
                _ => return Err(fields.refuse("freq_shift", "it must be from 0 to 1".to_owned())),
            },
            use_linear_projection: fields.flag_or("use_linear_projection", false)?,
            sample_size: match fields.get("sample_size") {
                Some(_) => Some(fields.size("sample_size", 1 << 16)?),
                None => None,
            },
            addition: match fields.get("addition_embed_type") {
                Some(_) => Some(UnetAddition {
                    size_channels: fields.size("addition_time_embed_dim", MAX_HIDDEN)?,
                    inputs: fields.size("projection_class_embeddings_input_dim", MAX_HIDDEN)?,
                }),
                None => None,
            },
            guidance_channels: match fields.get("time_cond_proj_dim") {
                Some(_) => match fields.size("time_cond_proj_dim", MAX_HIDDEN)? {
                    channels if channels >= 4 => Some(channels),
                    _ => {
                        let expected = "it must be at least 4".to_owned();
                        return Err(fields.refuse("time_cond_proj_dim", expected));
                    }
                },
                None => None,
            },
        })
    }

    /// Width of the embedding of time.
    pub(super) fn time_width(&self) -> usize {
        self.levels.first().map_or(0, |level| TIME_EXPANSION * level.channels)
    }
}

/// Which levels have transformers, of the names of blocks without and with them; `default` is cut
/// or repeated if the field is absent.
fn attention(
    fields: &Fields<'_>,
    (field, [without, with]): (&str, [&str; 2]),
    count: usize,
    default: [bool; 4],
) -> Result<Vec<bool>, Error> {
    let refuse = || {
        let expected = format!(
            "only a list of {count}, one for each level, of \"{without}\" and \"{with}\" is supported"
        );
        fields.refuse(field, expected)
    };
    let Some(value) = fields.get(field) else {
        return if count == default.len() { Ok(default.to_vec()) } else { Err(refuse()) };
    };
    let list = value.as_array().filter(|list| list.len() == count).ok_or_else(refuse)?;
    list.iter()
        .map(|name| match name.as_str() {
            Some(name) if name == without => Ok(false),
            Some(name) if name == with => Ok(true),
            _ => Err(refuse()),
        })
        .collect()
}

/// A list of one to [`MAX_LEVELS`] whole numbers from 1 to `max`.
pub(crate) fn sizes(
    fields: &Fields<'_>,
    field: &str,
    default: &[usize],
    max: usize,
) -> Result<Vec<usize>, Error> {
    let Some(value) = fields.get(field) else {
        return Ok(default.to_vec());
    };
    let list = value.as_array().filter(|list| (1..=MAX_LEVELS).contains(&list.len()));
    let sizes = list.and_then(|list| list.iter().map(|value| size(value, max)).collect());
    sizes.ok_or_else(|| {
        let expected =
            format!("it must be a list of 1 to {MAX_LEVELS} whole numbers from 1 to {max}");
        fields.refuse(field, expected)
    })
}

/// A whole number from 1 to `max` for each of `count` levels: of a list, or one for all.
fn by_level(
    fields: &Fields<'_>,
    field: &str,
    default: usize,
    count: usize,
    max: usize,
) -> Result<Vec<usize>, Error> {
    let sizes = match fields.get(field) {
        None => Some(vec![default; count]),
        Some(Value::Array(list)) if list.len() == count => {
            list.iter().map(|value| size(value, max)).collect()
        }
        Some(Value::Array(_)) => None,
        Some(value) => size(value, max).map(|size| vec![size; count]),
    };
    sizes.ok_or_else(|| {
        let expected = format!(
            "it must be a whole number from 1 to {max}, or a list of {count} such, one for each level"
        );
        fields.refuse(field, expected)
    })
}

fn size(value: &Value, max: usize) -> Option<usize> {
    let size = usize::try_from(value.as_u64()?).ok()?;
    (1..=max).contains(&size).then_some(size)
}

/// Refuses groups that do not divide the channels of each level.
pub(crate) fn divides(
    fields: &Fields<'_>,
    field: &str,
    groups: usize,
    channels: &[usize],
) -> Result<(), Error> {
    match channels.iter().find(|channels| !channels.is_multiple_of(groups)) {
        None => Ok(()),
        Some(channels) => {
            let expected = format!("it must divide block_out_channels, of which one is {channels}");
            Err(fields.refuse(field, expected))
        }
    }
}

pub(super) const FIELDS: &[KnownField] = &[
    ("_class_name", Read),
    ("_diffusers_version", Harmless),
    ("act_fn", Only(&["\"silu\"", "\"swish\""])),
    ("addition_embed_type", Only(&["\"text_time\""])),
    ("addition_embed_type_num_heads", Harmless),
    ("addition_time_embed_dim", Read),
    ("attention_head_dim", Read),
    ("attention_type", Only(&["\"default\""])),
    ("block_out_channels", Read),
    ("center_input_sample", Effect::OFF),
    ("class_embed_type", Effect::UNSET),
    ("class_embeddings_concat", Effect::OFF),
    ("conv_in_kernel", Only(&["3"])),
    ("conv_out_kernel", Only(&["3"])),
    ("cross_attention_dim", Read),
    ("cross_attention_norm", Effect::UNSET),
    ("down_block_types", Read),
    ("downsample_padding", Effect::ONE),
    ("dropout", Harmless),
    ("dual_cross_attention", Effect::OFF),
    ("encoder_hid_dim", Effect::UNSET),
    ("encoder_hid_dim_type", Effect::UNSET),
    ("flip_sin_to_cos", Read),
    ("freq_shift", Read),
    ("in_channels", Read),
    ("layers_per_block", Read),
    ("mid_block_only_cross_attention", Effect::OFF),
    ("mid_block_scale_factor", Effect::ONE),
    ("mid_block_type", Only(&["\"UNetMidBlock2DCrossAttn\""])),
    ("norm_eps", Read),
    ("norm_num_groups", Read),
    ("num_attention_heads", Read),
    ("num_class_embeds", Effect::UNSET),
    ("only_cross_attention", Effect::OFF),
    ("out_channels", Read),
    ("projection_class_embeddings_input_dim", Read),
    ("resnet_out_scale_factor", Effect::ONE),
    ("resnet_skip_time_act", Effect::OFF),
    ("resnet_time_scale_shift", Only(&["\"default\""])),
    ("reverse_transformer_layers_per_block", Effect::UNSET),
    ("sample_size", Read),
    ("time_cond_proj_dim", Read),
    ("time_embedding_act_fn", Effect::UNSET),
    ("time_embedding_dim", Effect::UNSET),
    ("time_embedding_type", Only(&["\"positional\""])),
    ("timestep_post_act", Effect::UNSET),
    ("transformer_layers_per_block", Read),
    ("up_block_types", Read),
    // Scores are f32 in any case.
    ("upcast_attention", Harmless),
    ("use_linear_projection", Read),
];
