//! What a `config.json` says of the vision encoder of GLM-4.1V, GLM-4.5V and GLM-4.6V.

use std::sync::Arc;

use crate::arch::qwen_vision::block::{QwenVisionBlockShape, QwenVisionMlpKind, QwenVisionNorm};
use crate::arch::qwen_vision::stretches;
use crate::arch::vision_fields::{
    AXIAL_ROPE, MAX_PATCH, features_width, vision_fields, vision_heads, vision_theta,
};
use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS, epsilon,
    rope_object, token_id,
};
use crate::layers::Activation;
use crate::{Error, RotaryAxis};

/// The most pixels of the side of an image that the table of positions is of.
const MAX_SIDE: usize = 1 << 14;

/// The configuration of a vision encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct GlmVisionConfig {
    /// Blocks.
    pub depth: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the language model, and of the inner layer of a block's MLP.
    pub out_hidden_size: usize,
    /// Width of the inner layer of the MLP behind the blocks.
    pub intermediate_size: usize,
    /// Heads of attention; divide `hidden_size`.
    pub num_heads: usize,
    /// Whether queries, keys and values have biases.
    pub attention_bias: bool,
    /// The non-linear function of MLPs.
    pub activation: Activation,
    /// What norms add to mean squares.
    pub rms_norm_eps: f64,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Frames of a patch: an image is as many alike.
    pub temporal_patch_size: usize,
    /// Whether each of two frames has a weight of its own.
    pub frames_apart: bool,
    /// Patches of a token's side.
    pub spatial_merge_size: usize,
    /// Rows and columns of the table of positions.
    pub grid: usize,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// What each rotated pair of dimensions of the language model follows.
    pub axes: Arc<[RotaryAxis]>,
    /// The token that stands for an image in a prompt.
    pub image_token: u32,
    /// What is before it and behind it.
    pub image_marks: [u32; 2],
}

impl GlmVisionConfig {
    pub(super) fn read(model_type: &str, fields: &Fields<'_>) -> Result<Self, Error> {
        let vision = vision_fields(fields, &[VISION])?;
        let text = fields.required_object("text_config")?;
        let hidden_size = vision.size_or("hidden_size", 1536, MAX_HIDDEN)?;
        let out_hidden_size = features_width(&vision, "out_hidden_size", 4096, &text)?;
        let patch_size = vision.size_or("patch_size", 14, MAX_PATCH)?;
        let grid = vision.size_or("image_size", 336, MAX_SIDE)? / patch_size;
        if grid == 0 {
            let expected = format!("it must be at least the side of a patch, {patch_size}");
            return Err(vision.refuse("image_size", expected));
        }
        let has_experts = text.text("model_type")? == Some("glm4v_moe_text");
        let token = |field, absent| token_id(fields, &[field], absent);
        Ok(Self {
            depth: vision.size_or("depth", 24, MAX_LAYERS)?,
            hidden_size,
            out_hidden_size,
            intermediate_size: vision.size_or("intermediate_size", 13_696, MAX_INTERMEDIATE)?,
            num_heads: vision_heads(&vision, "num_heads", 12, [hidden_size, 4])?,
            attention_bias: vision.flag_or("attention_bias", false)?,
            activation: config::activation(&vision, "hidden_act", Activation::Silu)?,
            rms_norm_eps: epsilon(&vision, "rms_norm_eps", 1e-5)?,
            patch_size,
            temporal_patch_size: vision.size_or("temporal_patch_size", 2, MAX_PATCH)?,
            frames_apart: vision.flag_or("frames_apart", false)?,
            spatial_merge_size: vision.size_or("spatial_merge_size", 2, MAX_PATCH)?,
            grid,
            rope_theta: vision_theta(&vision, AXIAL_ROPE, THETA)?,
            axes: stretches(
                &text,
                rotated_pairs(&text, out_hidden_size, has_experts)?,
                [8, 12, 12],
            )?,
            image_token: match model_type {
                "glm4v_moe" => token("image_token_id", 151_363)?,
                _ => token("image_token_id", 151_343)?,
            },
            image_marks: [
                token("image_start_token_id", 151_339)?,
                token("image_end_token_id", 151_340)?,
            ],
        })
    }

    /// What a block is made of.
    pub(super) fn block(&self) -> QwenVisionBlockShape {
        QwenVisionBlockShape {
            hidden: self.hidden_size,
            inner: self.out_hidden_size,
            heads: self.num_heads,
            key_value_heads: self.num_heads,
            norm: QwenVisionNorm::Rms(self.rms_norm_eps),
            mlp: QwenVisionMlpKind::Gated,
            activation: self.activation,
            qkv_apart: false,
            qkv_bias: self.attention_bias,
            bias: false,
        }
    }
}

/// Pairs of a head of the language model that are rotated.
fn rotated_pairs(text: &Fields<'_>, width: usize, has_experts: bool) -> Result<usize, Error> {
    let head = match text.get("head_dim") {
        Some(_) => text.size("head_dim", MAX_HIDDEN)?,
        None => width / text.size("num_attention_heads", MAX_HEADS)?,
    };
    let (field, absent) = ("partial_rotary_factor", if has_experts { 0.5 } else { 1.0 });
    let share = match rope_object(text)? {
        Some(rope) if rope.get(field).is_some() => rope.number_within(field, 0.0, 1.0)?,
        _ if text.get(field).is_some() => text.number_within(field, 0.0, 1.0)?,
        _ => absent,
    };
    Ok((head as f64 * share) as usize / 2)
}

/// The base of the rotary frequencies, if nothing else is said.
const THETA: f64 = 10_000.0;

const VISION: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_dropout", Harmless),
    ("depth", Read),
    ("dtype", Harmless),
    ("frames_apart", Read),
    ("hidden_act", Read),
    ("hidden_dropout_prob", Harmless),
    ("hidden_size", Read),
    ("image_size", Read),
    ("in_channels", Only(&["3"])),
    ("initializer_range", Harmless),
    ("intermediate_size", Read),
    ("model_type", Harmless),
    ("num_heads", Read),
    ("out_hidden_size", Read),
    ("patch_size", Read),
    ("rms_norm_eps", Read),
    ("rope_parameters", Read),
    ("spatial_merge_size", Read),
    ("temporal_patch_size", Read),
    ("torch_dtype", Harmless),
];
