//! What a `config.json` says of the vision encoder of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5.

use std::sync::Arc;

use serde_json::Value;

use super::block::{QwenVisionBlockShape, QwenVisionMlpKind, QwenVisionNorm};
use crate::arch::vision_fields::{
    AXIAL_ROPE, IMAGE_TOKEN, MAX_PATCH, features_width, vision_fields, vision_heads, vision_theta,
};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, numbers,
    rope_object, token_id,
};
use crate::layers::Activation;
use crate::{Error, RotaryAxis};

/// The most positions of the table.
const MAX_POSITIONS: usize = 1 << 20;

/// The most pixels of a window's side.
const MAX_WINDOW: usize = 1 << 14;

/// Which of them it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QwenVisionVersion {
    /// Qwen2-VL's.
    Qwen2,
    /// Qwen2.5-VL's: norms without means, gated MLPs, and windows.
    Qwen2_5,
    /// Qwen3-VL's and Qwen3.5's: with a table of positions.
    Qwen3,
}

/// The configuration of a vision encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct QwenVisionConfig {
    /// Which one it is.
    pub version: QwenVisionVersion,
    /// Blocks.
    pub depth: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Heads of attention; divide `hidden_size`.
    pub num_heads: usize,
    /// Heads of keys and values; divide these.
    pub key_value_heads: usize,
    /// The non-linear function of the MLP.
    pub activation: Activation,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Frames of a patch: an image is as many alike.
    pub temporal_patch_size: usize,
    /// Whether each of two frames has a weight of its own.
    pub frames_apart: bool,
    /// Whether queries, keys and values have weights of their own.
    pub qkv_apart: bool,
    /// Patches of a token's side.
    pub spatial_merge_size: usize,
    /// Width of the language model.
    pub out_hidden_size: usize,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// Rows and columns of the table of positions, if there is one.
    pub grid: Option<usize>,
    /// Tokens of a window's side, if patches attend within windows.
    pub window: Option<usize>,
    /// The blocks in which they attend to all patches nonetheless.
    pub unwindowed: Vec<usize>,
    /// The blocks behind which features are taken for the first blocks of the language model, in
    /// order.
    pub deepstack: Vec<usize>,
    /// What each rotated pair of dimensions of the language model follows, if it is not the place
    /// in the text.
    pub axes: Option<Arc<[RotaryAxis]>>,
    /// The token that stands for an image in a prompt.
    pub image_token: u32,
    /// What is before it and behind it, if that is known.
    pub image_marks: Option<[u32; 2]>,
}

impl QwenVisionConfig {
    pub(super) fn read(model_type: &str, fields: &Fields<'_>) -> Result<Self, Error> {
        use QwenVisionVersion::{Qwen2, Qwen2_5, Qwen3};
        let (version, known, hidden, out, [depth, width, patch]) = match model_type {
            "qwen2_vl" => (Qwen2, VISION_2, "embed_dim", "hidden_size", [32, 1280, 14]),
            "qwen2_5_vl" | "qwen2_5_omni" | EXAONE => {
                (Qwen2_5, VISION_2_5, "hidden_size", "out_hidden_size", [32, 3584, 14])
            }
            _ => (Qwen3, VISION_3, "hidden_size", "out_hidden_size", [27, 1152, 16]),
        };
        let vision = vision_fields(fields, &[known, VISION])?;
        let text = fields.object("text_config")?;
        let text = match (&text, version) {
            (Some(text), _) => text,
            (None, Qwen3) => return Err(fields.missing("text_config")),
            // As first published: its fields are those of the whole.
            (None, Qwen2 | Qwen2_5) => fields,
        };
        let depth = vision.size_or("depth", depth, MAX_LAYERS)?;
        let hidden_size = vision.size_or(hidden, width, MAX_HIDDEN)?;
        let out_hidden_size = features_width(&vision, out, 3584, text)?;
        let inner = |absent| vision.size_or("intermediate_size", absent, MAX_INTERMEDIATE);
        let (intermediate_size, activation) = match version {
            Qwen2 => {
                let most = MAX_INTERMEDIATE / hidden_size;
                let ratio = vision.size_or("mlp_ratio", 4, most)?;
                (ratio * hidden_size, Activation::QuickGelu)
            }
            Qwen2_5 => (inner(3420)?, Activation::Silu),
            Qwen3 => (inner(4304)?, Activation::GeluTanh),
        };
        let patch_size = vision.size_or("patch_size", patch, MAX_PATCH)?;
        let spatial_merge_size = vision.size_or("spatial_merge_size", 2, MAX_PATCH)?;
        let (window, unwindowed) = match version {
            Qwen2_5 => windows(&vision, patch_size * spatial_merge_size)?,
            Qwen2 | Qwen3 => (None, Vec::new()),
        };
        let has_deepstack = !model_type.starts_with("qwen3_5");
        let token = |names: &[&str], [of_3_5, of_others]: [u32; 2]| {
            let is_3_5 = version == Qwen3 && !has_deepstack;
            token_id(fields, names, if is_3_5 { of_3_5 } else { of_others })
        };
        let num_heads = vision_heads(&vision, "num_heads", 16, [hidden_size, 4])?;
        let key_value_heads = match model_type {
            EXAONE => key_value_heads(&vision, num_heads)?,
            _ => num_heads,
        };
        let axes = match version {
            _ if model_type == EXAONE => None,
            Qwen3 if has_deepstack => Some(turns(sections(text, [24, 20, 20])?)),
            Qwen3 => Some(turns(sections(text, [11, 11, 10])?)),
            Qwen2 | Qwen2_5 => {
                let heads = text.size("num_attention_heads", MAX_HEADS)?;
                Some(stretches(text, out_hidden_size / heads / 2, [16, 24, 24])?)
            }
        };
        let has_marks = model_type != EXAONE || fields.get(MARKS[0]).is_some();
        let marks = has_marks.then(|| {
            let [begin, end] = [[248_053, 151_652], [248_054, 151_653]];
            Ok::<_, Error>([token(&MARKS[..1], begin)?, token(&MARKS[1..], end)?])
        });
        Ok(Self {
            version,
            depth,
            hidden_size,
            intermediate_size,
            num_heads,
            key_value_heads,
            activation: config::activation(&vision, "hidden_act", activation)?,
            patch_size,
            temporal_patch_size: vision.size_or("temporal_patch_size", 2, MAX_PATCH)?,
            frames_apart: vision.flag_or("frames_apart", false)?,
            qkv_apart: vision.flag_or("qkv_apart", model_type == "qwen2_5_omni")?,
            spatial_merge_size,
            out_hidden_size,
            rope_theta: vision_theta(&vision, AXIAL_ROPE, THETA)?,
            grid: (version == Qwen3).then(|| grid(&vision)).transpose()?,
            window,
            unwindowed,
            deepstack: match vision.get("deepstack_visual_indexes") {
                _ if version != Qwen3 => Vec::new(),
                None if has_deepstack => vec![8, 16, 24],
                None => Vec::new(),
                Some(value) => rising(value, depth).ok_or_else(|| {
                    let expected = format!("it must be a rising list of blocks, from 0 to {depth}");
                    vision.refuse("deepstack_visual_indexes", expected)
                })?,
            },
            axes,
            image_token: match model_type {
                EXAONE => token_id(fields, &IMAGE_TOKEN, 67)?,
                _ => token(&IMAGE_TOKEN, [248_056, 151_655])?,
            },
            image_marks: marks.transpose()?,
        })
    }

    /// What a block is made of.
    pub(super) fn block(&self) -> QwenVisionBlockShape {
        /// What norms add to the variance, or to mean squares.
        const EPSILON: f64 = 1e-6;
        QwenVisionBlockShape {
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            heads: self.num_heads,
            key_value_heads: self.key_value_heads,
            norm: match self.version {
                QwenVisionVersion::Qwen2_5 => QwenVisionNorm::Rms(EPSILON),
                _ => QwenVisionNorm::Layer(EPSILON),
            },
            mlp: match self.version {
                QwenVisionVersion::Qwen2 => QwenVisionMlpKind::TwoLayersOf2,
                QwenVisionVersion::Qwen2_5 => QwenVisionMlpKind::Gated,
                QwenVisionVersion::Qwen3 => QwenVisionMlpKind::TwoLayers,
            },
            activation: self.activation,
            qkv_apart: self.qkv_apart,
            qkv_bias: true,
            bias: true,
        }
    }

    /// The windows of a block in which patches attend within such, in tokens of their sides.
    pub(super) fn window_of(&self, block: usize) -> Option<usize> {
        self.window.filter(|_| !self.unwindowed.contains(&block))
    }
}

/// Heads of keys and values, which divide those of queries.
fn key_value_heads(vision: &Fields<'_>, heads: usize) -> Result<usize, Error> {
    let field = "num_key_value_heads";
    let few = vision.size_or(field, 8, heads)?;
    match heads.is_multiple_of(few) {
        true => Ok(few),
        false => Err(vision.refuse(field, format!("it must divide num_heads, {heads}"))),
    }
}

/// Rows and columns of the table of positions.
fn grid(vision: &Fields<'_>) -> Result<usize, Error> {
    let positions = vision.size_or("num_position_embeddings", 2304, MAX_POSITIONS)?;
    let grid = positions.isqrt();
    if grid * grid != positions {
        let expected = "it must be a square: positions in rows and columns".to_owned();
        return Err(vision.refuse("num_position_embeddings", expected));
    }
    Ok(grid)
}

/// Tokens of a window's side, each of so many pixels, and the blocks without windows.
fn windows(vision: &Fields<'_>, unit: usize) -> Result<(Option<usize>, Vec<usize>), Error> {
    let pixels = vision.size_or("window_size", 112, MAX_WINDOW)?;
    if pixels < unit {
        let expected = format!("it must be at least the side of a token, {unit} pixels");
        return Err(vision.refuse("window_size", expected));
    }
    let unwindowed = match vision.get("fullatt_block_indexes") {
        None => vec![7, 15, 23, 31],
        Some(value) => numbers(value).ok_or_else(|| {
            let expected = "it must be a list of blocks".to_owned();
            vision.refuse("fullatt_block_indexes", expected)
        })?,
    };
    Ok((Some(pixels / unit), unwindowed))
}

/// Numbers of blocks in order.
fn rising(value: &Value, depth: usize) -> Option<Vec<usize>> {
    let indices = numbers(value)?;
    let rises = indices.windows(2).all(|pair| pair[0] < pair[1]);
    (rises && indices.iter().all(|index| *index < depth)).then_some(indices)
}

/// How many pairs of dimensions of the language model follow each axis.
fn sections(text: &Fields<'_>, absent: [usize; 3]) -> Result<[usize; 3], Error> {
    let rope = rope_object(text)?;
    let Some((rope, value)) = rope.as_ref().and_then(|rope| Some((rope, rope.get(SECTIONS)?)))
    else {
        return Ok(absent);
    };
    let sections = numbers(value).and_then(|numbers| <[usize; 3]>::try_from(numbers).ok());
    sections.filter(|sections| sections.iter().all(|n| *n <= MAX_HIDDEN)).ok_or_else(|| {
        let expected = "it must be three numbers of pairs of dimensions".to_owned();
        rope.refuse(SECTIONS, expected)
    })
}

/// The axes that pairs of dimensions follow in turns, as long as rows and columns have pairs left.
fn turns(sections: [usize; 3]) -> Arc<[RotaryAxis]> {
    let axis = |pair: usize| match pair % 3 {
        1 if pair < 3 * sections[1] => RotaryAxis::Row,
        2 if pair < 3 * sections[2] => RotaryAxis::Column,
        _ => RotaryAxis::Time,
    };
    (0..sections.iter().sum()).map(axis).collect()
}

/// The same one axis behind the other, of all pairs that are rotated.
pub(in crate::arch) fn stretches(
    text: &Fields<'_>,
    pairs: usize,
    absent: [usize; 3],
) -> Result<Arc<[RotaryAxis]>, Error> {
    let sections = sections(text, absent)?;
    if sections.iter().sum::<usize>() != pairs {
        let expected = format!("it must be as many pairs as are rotated together, {pairs}");
        return Err(text.refuse(SECTIONS, expected));
    }
    let axes = [RotaryAxis::Time, RotaryAxis::Row, RotaryAxis::Column];
    let axes = axes.into_iter().zip(sections);
    Ok(axes.flat_map(|(axis, pairs)| std::iter::repeat_n(axis, pairs)).collect())
}

const SECTIONS: &str = "mrope_section";

/// EXAONE 4.5, whose encoder is Qwen2.5-VL's with fewer heads of keys and values.
pub(super) const EXAONE: &str = "exaone4_5";

/// The tokens before and behind an image.
const MARKS: [&str; 2] = ["vision_start_token_id", "vision_end_token_id"];

/// The base of the rotary frequencies, if nothing else is said.
const THETA: f64 = 10_000.0;

const VISION_2: &[KnownField] = &[
    ("embed_dim", Read),
    ("in_chans", Only(&["3"])),
    ("mlp_ratio", Read),
    ("spatial_patch_size", Harmless),
];

const VISION_2_5: &[KnownField] = &[
    // Of Qwen2-VL.
    ("embed_dim", Harmless),
    ("fullatt_block_indexes", Read),
    ("in_chans", Only(&["3"])),
    ("intermediate_size", Read),
    // Of EXAONE 4.5 alone.
    ("num_key_value_heads", Read),
    ("out_hidden_size", Read),
    ("spatial_patch_size", Harmless),
    // Of videos.
    ("tokens_per_second", Harmless),
    ("window_size", Read),
];

const VISION_3: &[KnownField] = &[
    ("deepstack_visual_indexes", Read),
    ("intermediate_size", Read),
    ("num_position_embeddings", Read),
    ("out_hidden_size", Read),
    ("use_bias", Effect::ON),
    ("window_size", Only(&["0"])),
];

/// Of all of them.
const VISION: &[KnownField] = &[
    ("depth", Read),
    ("dtype", Harmless),
    ("frames_apart", Read),
    ("hidden_act", Read),
    ("hidden_size", Read),
    ("in_channels", Only(&["3"])),
    ("init_std", Harmless),
    ("initializer_range", Harmless),
    ("model_type", Harmless),
    ("num_heads", Read),
    ("patch_size", Read),
    ("qkv_apart", Read),
    ("rope_parameters", Read),
    ("spatial_merge_size", Read),
    ("temporal_patch_size", Read),
    ("torch_dtype", Harmless),
];
