//! GLM-4: a fused MLP, and half of each head rotated, neighbouring elements together; the later
//! ones with norms around attention and MLP. GLM Team 2024 (arXiv:2406.12793). Of GLM-4.1V and
//! later ones that see images too, GLM-V Team 2025 (arXiv:2507.01006), the text part.

use burn::tensor::Tensor;

use super::gemma3::TEXT_PART;
use super::qwen_vl;
use super::rms_config::{BlockNorms, DEFAULTS, FIELDS, RmsConfig, RmsDefaults};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use crate::architecture::{Init, MultimodalNames};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{COMMON, Fields, KnownField, RopeConfig, check, layer_windows};
use crate::layers::FusedMlp;
use crate::{Activations, Error, PassShape};

/// A GLM-4 with its language-modelling head.
pub type GlmForCausalLm = RmsForCausalLm<RmsDecoderLayer<FusedMlp>>;

impl RmsFeedForward for FusedMlp {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("glm", "Glm"), ("glm4", "Glm4"), ("glm4v", "Glm4vText"), ("glm46v", "Glm4vText")];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "glm4v" | "glm46v" => &[MULTIMODAL],
            _ => &[GLM, FIELDS],
        }
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        matches!(model_type, "glm4v" | "glm46v").then_some(&qwen_vl::NAMES)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        if let "glm4v" | "glm46v" = model_type {
            return read_text_part(fields);
        }
        let absent = RmsDefaults {
            key_value_heads: Some(2),
            head_dim: Some(128),
            max_position_embeddings: 131_072,
            rms_norm_eps: 0.000_000_156_25,
            ..DEFAULTS
        };
        let config = RmsConfig::read(fields, &absent)?;
        // All layers see everything, whatever else a file may ask for.
        layer_windows(fields, None, config.windows.clone())?;
        let names = ["rope_theta", "partial_rotary_factor"];
        let (rope, rotary_dim) =
            RopeConfig::read_partial(&config.rope_context(fields), names, 0.5)?;
        Ok(RmsConfig {
            norms: if model_type == "glm" { BlockNorms::Before } else { BlockNorms::AroundGlm },
            attention_in_bias: fields.flag_or("attention_bias", true)?,
            rope,
            rotary_dim,
            rope_interleaved: fields.flag_or("rope_interleaved", true)?,
            ..config
        })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        Self::new(config.hidden_size, config.intermediate_size, config.activation, init)
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        Self::forward(self, x)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        Self::activations(self, pass)
    }
}

/// Reads the text part of a model that sees images too.
fn read_text_part(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    check(&text, &[TEXT_TYPE, TEXT_PART, FIELDS, COMMON])?;
    let absent = RmsDefaults {
        key_value_heads: Some(2),
        max_position_embeddings: 32_768,
        rms_norm_eps: 1e-5,
        ..DEFAULTS
    };
    let config = RmsConfig::read(&text, &absent)?;
    if config.head_dim * config.num_attention_heads != config.hidden_size {
        let expected = "the heads must be as wide as hidden_size together".to_owned();
        return Err(text.refuse("head_dim", expected));
    }
    layer_windows(&text, None, config.windows.clone())?;
    let names = ["rope_theta", "partial_rotary_factor"];
    let (rope, rotary_dim) = RopeConfig::read_partial(&config.rope_context(&text), names, 1.0)?;
    let tied = config.tie_word_embeddings || fields.flag_or("tie_word_embeddings", false)?;
    Ok(RmsConfig {
        norms: BlockNorms::AroundGlm,
        attention_in_bias: true,
        rope,
        rotary_dim,
        rope_interleaved: true,
        tie_word_embeddings: tied,
        ..config
    })
}

const TEXT_TYPE: &[KnownField] = &[
    ("attention_bias", Effect::ON),
    ("hidden_act", Read),
    ("mlp_bias", Effect::OFF),
    ("model_type", Only(&["\"glm4v_text\""])),
    ("partial_rotary_factor", Read),
];

/// Of models that see images too.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("image_end_token_id", Harmless),
    ("image_start_token_id", Harmless),
    ("image_token_id", Harmless),
    ("text_config", Read),
    ("video_end_token_id", Harmless),
    ("video_start_token_id", Harmless),
    ("video_token_id", Harmless),
    ("vision_config", Harmless),
];

const GLM: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("mlp_bias", Effect::OFF),
    ("partial_rotary_factor", Read),
    ("rope_interleaved", Read),
];
