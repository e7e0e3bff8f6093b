//! What a `config.json` says of the vision encoder of Kimi K2.5 and of Muse.

use crate::Error;
use crate::arch::qwen_vision::block::{QwenVisionBlockShape, QwenVisionMlpKind, QwenVisionNorm};
use crate::arch::rms_config::field_of;
use crate::arch::vision_fields::{
    AXIAL_ROPE, IMAGE_TOKEN, MAX_PATCH, features_width, vision_fields, vision_heads, vision_theta,
};
use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, epsilon, token_id,
};
use crate::layers::Activation;

/// The most rows of the table of positions.
const MAX_GRID: usize = 1 << 10;

/// The configuration of a vision encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct KimiVisionConfig {
    /// Blocks.
    pub num_hidden_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the inner layer of a block's MLP.
    pub intermediate_size: usize,
    /// Heads of attention; divide `hidden_size`.
    pub num_attention_heads: usize,
    /// The non-linear function of a block's MLP.
    pub activation: Activation,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Frames of a patch: an image is as many alike.
    pub frames: usize,
    /// Patches of a token's side.
    pub merge_size: usize,
    /// Rows and columns of the table of positions.
    pub grid: usize,
    /// Of each block, whether its patches see those of their window alone, squares as large as the
    /// table.
    pub windowed_layers: Vec<bool>,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// What makes features of the states.
    pub projector: KimiProjectorConfig,
    /// Width of the language model.
    pub text_hidden_size: usize,
    /// The token that stands for an image in a prompt.
    pub image_token: u32,
}

/// What makes features of the states of an encoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KimiProjectorConfig {
    /// A norm and two layers, of Kimi.
    Kimi {
        /// What the norm adds to the variance.
        epsilon: f64,
    },
    /// Three layers and a norm without a weight, of Muse.
    Muse {
        /// What the norms around the blocks add to the variance.
        encoder_epsilon: f64,
        /// Width between the layers.
        inner: usize,
        /// Their non-linear function.
        activation: Activation,
        /// What the last norm adds to the mean square.
        epsilon: f64,
    },
}

impl KimiVisionConfig {
    pub(super) fn read(model_type: &str, fields: &Fields<'_>) -> Result<Self, Error> {
        match model_type {
            "kimi_k25" => Self::read_kimi(fields),
            "muse_spark" => Self::read_muse(fields, 8192),
            _ => Self::read_muse(fields, 6656),
        }
    }

    fn read_kimi(fields: &Fields<'_>) -> Result<Self, Error> {
        let vision = vision_fields(fields, &[KIMI, BOTH])?;
        let text = fields.required_object("text_config")?;
        // As it is published, or as transformers has it.
        let size = |names, absent, most| vision.size_or(field_of(&vision, names)?, absent, most);
        let hidden_size = size(["vt_hidden_size", "hidden_size"], 1152, MAX_HIDDEN)?;
        let heads = field_of(&vision, ["vt_num_attention_heads", "num_attention_heads"])?;
        let text_hidden_size = text.size_or("hidden_size", 7168, MAX_HIDDEN)?;
        features_width(&vision, "text_hidden_size", text_hidden_size, &text)?;
        for (fields, field) in [(fields, "projection_hidden_size"), (&vision, "mm_hidden_size")] {
            if fields.size_or(field, hidden_size, MAX_HIDDEN)? != hidden_size {
                let expected = format!("it must be the width of the encoder, {hidden_size}");
                return Err(fields.refuse(field, expected));
            }
        }
        let of_projector = epsilon(&vision, "projector_ln_eps", 1e-5)?;
        let layers = size(["vt_num_hidden_layers", "num_hidden_layers"], 27, MAX_LAYERS)?;
        Ok(Self {
            num_hidden_layers: layers,
            hidden_size,
            intermediate_size: size(
                ["vt_intermediate_size", "intermediate_size"],
                4304,
                MAX_INTERMEDIATE,
            )?,
            num_attention_heads: vision_heads(&vision, heads, 16, [hidden_size, 4])?,
            activation: config::activation(&vision, "hidden_act", Activation::GeluTanh)?,
            patch_size: vision.size_or("patch_size", 14, MAX_PATCH)?,
            frames: 1,
            merge_size: square(&vision, "merge_kernel_size")?,
            grid: grid(
                &vision,
                [
                    ["init_pos_emb_height", "pos_emb_height"],
                    ["init_pos_emb_width", "pos_emb_width"],
                ],
                64,
            )?,
            windowed_layers: vec![false; layers],
            rope_theta: vision_theta(&vision, AXIAL_ROPE, THETA)?,
            projector: KimiProjectorConfig::Kimi {
                epsilon: epsilon(fields, "projection_layer_norm_eps", of_projector)?,
            },
            text_hidden_size,
            image_token: token_id(
                fields,
                &["media_placeholder_token_id", "image_token_id"],
                163_605,
            )?,
        })
    }

    fn read_muse(fields: &Fields<'_>, text_width: usize) -> Result<Self, Error> {
        let vision = vision_fields(fields, &[MUSE, BOTH])?;
        let text = fields.required_object("text_config")?;
        let hidden_size = vision.size_or("hidden_size", 1536, MAX_HIDDEN)?;
        let layers = vision.size_or("num_hidden_layers", 50, MAX_LAYERS)?;
        let grid = grid(&vision, [["pos_emb_height"; 2], ["pos_emb_width"; 2]], 32)?;
        let merge_size = square(&vision, "merge_size")?;
        if !grid.is_multiple_of(merge_size) {
            let expected = format!("it must be a multiple of merge_size, {merge_size}");
            return Err(vision.refuse("pos_emb_height", expected));
        }
        let merged = hidden_size * merge_size * merge_size;
        if fields.size_or("out_hidden_size", 6144, usize::MAX)? != merged {
            let expected =
                format!("it must be the width of all patches of a token together, {merged}");
            return Err(fields.refuse("out_hidden_size", expected));
        }
        Ok(Self {
            num_hidden_layers: layers,
            hidden_size,
            intermediate_size: vision.size_or("intermediate_size", 8960, MAX_INTERMEDIATE)?,
            num_attention_heads: vision_heads(
                &vision,
                "num_attention_heads",
                16,
                [hidden_size, 4],
            )?,
            activation: config::activation(&vision, "hidden_act", Activation::Gelu)?,
            patch_size: vision.size_or("patch_size", 14, MAX_PATCH)?,
            frames: vision.size_or("patch_temporal", 2, MAX_PATCH)?,
            merge_size,
            grid,
            windowed_layers: windowed_layers(&vision, layers)?,
            rope_theta: vision_theta(&vision, AXIAL_ROPE, THETA)?,
            projector: KimiProjectorConfig::Muse {
                encoder_epsilon: epsilon(&vision, "layer_norm_eps", 1e-5)?,
                inner: fields.size_or("projector_hidden_size", 4096, MAX_INTERMEDIATE)?,
                activation: config::activation(fields, "projector_hidden_act", Activation::Gelu)?,
                epsilon: epsilon(&text, "rms_norm_eps", 1e-5)?,
            },
            text_hidden_size: text.size_or("hidden_size", text_width, MAX_HIDDEN)?,
            image_token: token_id(fields, &IMAGE_TOKEN, 200_092)?,
        })
    }

    /// What a block is made of.
    pub(super) fn block(&self) -> QwenVisionBlockShape {
        QwenVisionBlockShape {
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            heads: self.num_attention_heads,
            key_value_heads: self.num_attention_heads,
            norm: QwenVisionNorm::Layer(1e-5),
            mlp: QwenVisionMlpKind::TwoLayersOf2,
            activation: self.activation,
            // Those of Kimi lie in one, which changes nothing here.
            qkv_apart: matches!(self.projector, KimiProjectorConfig::Muse { .. }),
            qkv_bias: true,
            bias: true,
        }
    }
}

/// The base of the rotary frequencies, if nothing else is said.
const THETA: f64 = 10_000.0;

/// The side of a square that may be given by both of its sides.
fn square(vision: &Fields<'_>, field: &str) -> Result<usize, Error> {
    let Some(value) = vision.get(field) else { return Ok(2) };
    let sides = config::numbers(value).or_else(|| Some(vec![value.as_u64()? as usize; 2]));
    match sides.as_deref() {
        Some([rows, columns]) if rows == columns && (1..=MAX_PATCH).contains(rows) => Ok(*rows),
        _ => Err(vision.refuse(field, "it must be a list of two equal numbers".to_owned())),
    }
}

/// Rows of the table of positions, which has as many columns.
fn grid(vision: &Fields<'_>, names: [[&str; 2]; 2], absent: usize) -> Result<usize, Error> {
    let [rows, columns] = names;
    let (rows, columns) = (field_of(vision, rows)?, field_of(vision, columns)?);
    let grid = vision.size_or(rows, absent, MAX_GRID)?;
    match vision.size_or(columns, absent, MAX_GRID)? == grid {
        true => Ok(grid),
        false => Err(vision.refuse(columns, format!("it must be what `{rows}` is, {grid}"))),
    }
}

/// Of each block, whether its patches see those of their window alone.
fn windowed_layers(vision: &Fields<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    if vision.get("layer_types").is_none() {
        let sees_all = |layer: usize| (layer + 1).is_multiple_of(4) || layer + 1 == layers;
        return Ok((0..layers).map(|layer| !sees_all(layer)).collect());
    }
    let kinds = [("window_attention", true), ("full_attention", false)];
    vision.listed("layer_types", layers, &kinds)
}

const BOTH: &[KnownField] = &[
    ("attention_dropout", Harmless),
    ("dtype", Harmless),
    ("hidden_act", Read),
    ("hidden_size", Read),
    ("initializer_range", Harmless),
    ("intermediate_size", Read),
    ("model_type", Harmless),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("patch_size", Read),
    ("pos_emb_height", Read),
    ("pos_emb_width", Read),
    ("rope_parameters", Read),
    ("torch_dtype", Harmless),
];

const KIMI: &[KnownField] = &[
    ("init_pos_emb_height", Read),
    // Of films.
    ("init_pos_emb_time", Harmless),
    ("init_pos_emb_width", Read),
    ("merge_kernel_size", Read),
    ("merge_type", Only(&["\"sd2_tpool\""])),
    ("mm_hidden_size", Read),
    ("mm_projector_type", Only(&["\"patchmerger\""])),
    ("pos_emb_time", Harmless),
    ("pos_emb_type", Only(&["\"divided_fixed\""])),
    ("projector_hidden_act", Only(&["\"gelu\""])),
    ("projector_ln_eps", Read),
    ("text_hidden_size", Read),
    ("video_attn_type", Harmless),
    ("vt_hidden_size", Read),
    ("vt_intermediate_size", Read),
    ("vt_num_attention_heads", Read),
    ("vt_num_hidden_layers", Read),
];

const MUSE: &[KnownField] = &[
    ("layer_norm_eps", Read),
    ("layer_types", Read),
    ("max_position_embeddings", Harmless),
    ("merge_size", Read),
    ("patch_temporal", Read),
];
