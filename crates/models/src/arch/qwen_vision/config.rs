//! What a `config.json` says of the vision encoder of Qwen3-VL and Qwen3.5.

use std::sync::Arc;

use serde_json::Value;

use crate::arch::vision_fields::{MAX_PATCH, vision_fields, vision_heads};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, rope_object, token_id,
};
use crate::layers::Activation;
use crate::{Error, RotaryAxis};

/// The most positions of the table.
const MAX_POSITIONS: usize = 1 << 20;

/// The configuration of a vision encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct QwenVisionConfig {
    /// Blocks.
    pub depth: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Heads of attention; divide `hidden_size`.
    pub num_heads: usize,
    /// The non-linear function of the MLP.
    pub activation: Activation,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Frames of a patch: an image is as many alike.
    pub temporal_patch_size: usize,
    /// Patches of a token's side.
    pub spatial_merge_size: usize,
    /// Width of the language model.
    pub out_hidden_size: usize,
    /// Rows and columns of the table of positions.
    pub grid: usize,
    /// The blocks behind which features are taken for the first blocks of the language model, in order.
    pub deepstack: Vec<usize>,
    /// What each rotated pair of dimensions of the language model follows.
    pub axes: Arc<[RotaryAxis]>,
    /// The token that stands for an image in a prompt.
    pub image_token: u32,
    /// What is before it and behind it.
    pub image_marks: [u32; 2],
}

impl QwenVisionConfig {
    pub(super) fn read(model_type: &str, fields: &Fields<'_>) -> Result<Self, Error> {
        let vision = vision_fields(fields, VISION)?;
        let hidden_size = vision.size_or("hidden_size", 1152, MAX_HIDDEN)?;
        let num_heads = vision_heads(&vision, "num_heads", 16, [hidden_size, 4])?;
        let positions = vision.size_or("num_position_embeddings", 2304, MAX_POSITIONS)?;
        if !positions.isqrt().pow(2).eq(&positions) {
            let expected = "it must be a square: positions in rows and columns".to_owned();
            return Err(vision.refuse("num_position_embeddings", expected));
        }
        let depth = vision.size_or("depth", 27, MAX_LAYERS)?;
        let has_deepstack = model_type.starts_with("qwen3_vl");
        let deepstack = match vision.get("deepstack_visual_indexes") {
            None if has_deepstack => vec![8, 16, 24],
            None => Vec::new(),
            Some(value) => indices(value, depth).ok_or_else(|| {
                let expected = format!("it must be a rising list of blocks, from 0 to {depth}");
                vision.refuse("deepstack_visual_indexes", expected)
            })?,
        };
        let token = |field, [of_3, of_3_5]: [u32; 2]| {
            token_id(fields, &[field], if has_deepstack { of_3 } else { of_3_5 })
        };
        Ok(Self {
            depth,
            hidden_size,
            intermediate_size: vision.size_or("intermediate_size", 4304, MAX_INTERMEDIATE)?,
            num_heads,
            activation: config::activation(&vision, "hidden_act", Activation::GeluTanh)?,
            patch_size: vision.size_or("patch_size", 16, MAX_PATCH)?,
            temporal_patch_size: vision.size_or("temporal_patch_size", 2, MAX_PATCH)?,
            spatial_merge_size: vision.size_or("spatial_merge_size", 2, MAX_PATCH)?,
            out_hidden_size: vision.size_or("out_hidden_size", 3584, MAX_HIDDEN)?,
            grid: positions.isqrt(),
            deepstack,
            axes: axes(fields, has_deepstack)?,
            image_token: token("image_token_id", [151_655, 248_056])?,
            image_marks: [
                token("vision_start_token_id", [151_652, 248_053])?,
                token("vision_end_token_id", [151_653, 248_054])?,
            ],
        })
    }
}

/// Numbers of blocks in order.
fn indices(value: &Value, depth: usize) -> Option<Vec<usize>> {
    let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let indices: Vec<_> = value.as_array()?.iter().map(number).collect::<Option<_>>()?;
    let rises = indices.windows(2).all(|pair| pair[0] < pair[1]);
    (rises && indices.iter().all(|index| *index < depth)).then_some(indices)
}

/// What each pair of dimensions of the language model follows: the axes take turns, as long as rows and columns have pairs left.
fn axes(fields: &Fields<'_>, has_deepstack: bool) -> Result<Arc<[RotaryAxis]>, Error> {
    let text = fields.object("text_config")?.ok_or_else(|| fields.missing("text_config"))?;
    let rope = rope_object(&text)?;
    let sections = match rope.as_ref().and_then(|rope| Some((rope, rope.get("mrope_section")?))) {
        None if has_deepstack => [24, 20, 20],
        None => [11, 11, 10],
        Some((rope, value)) => {
            let number = |value: &Value| Some(value.as_u64()? as usize);
            let numbers = value.as_array().and_then(|list| list.iter().map(number).collect());
            let numbers: Option<Vec<usize>> = numbers;
            let sections = numbers.and_then(|numbers| <[usize; 3]>::try_from(numbers).ok());
            sections.filter(|sections| sections.iter().all(|n| *n <= MAX_HIDDEN)).ok_or_else(
                || {
                    let expected = "it must be three numbers of pairs of dimensions".to_owned();
                    rope.refuse("mrope_section", expected)
                },
            )?
        }
    };
    let axis = |pair: usize| match pair % 3 {
        1 if pair < 3 * sections[1] => RotaryAxis::Row,
        2 if pair < 3 * sections[2] => RotaryAxis::Column,
        _ => RotaryAxis::Time,
    };
    Ok((0..sections.iter().sum()).map(axis).collect())
}

const VISION: &[KnownField] = &[
    ("deepstack_visual_indexes", Read),
    ("depth", Read),
    ("dtype", Harmless),
    ("hidden_act", Read),
    ("hidden_size", Read),
    ("in_channels", Only(&["3"])),
    ("initializer_range", Harmless),
    ("intermediate_size", Read),
    ("model_type", Harmless),
    ("num_heads", Read),
    ("num_position_embeddings", Read),
    ("out_hidden_size", Read),
    ("patch_size", Read),
    ("rope_parameters", Harmless),
    ("spatial_merge_size", Read),
    ("temporal_patch_size", Read),
    ("torch_dtype", Harmless),
    ("use_bias", Effect::ON),
    ("window_size", Only(&["0"])),
];
