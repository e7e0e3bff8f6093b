//! Ministral 3, whose queries grow with their position; and Mistral Small 3.1 and later, which see
//! images too: their text part. Liu et al. 2026 (arXiv:2601.08584).

use super::gemma3::TEXT_PART;
use super::llama;
use super::rms_config::{DEFAULTS, FIELDS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    COMMON, Fields, KnownField, MAX_POSITIONS, ROPE, RopeConfig, RopeContext, RopeScaling, check,
    sliding_window, theta, uniform_windows, yarn_stretch,
};
use crate::layers::QueryGrowth;

/// Reads the text part of a model that sees images too.
pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    let config = match text.text("model_type")? {
        Some("ministral3") => {
            check(&text, &[TEXT_TYPE, TEXT_PART, MINISTRAL3, FIELDS, COMMON])?;
            read_text(&text)?
        }
        _ => {
            check(&text, &[TEXT_TYPE, TEXT_PART, llama::MISTRAL, llama::ACT, FIELDS, COMMON])?;
            llama::read("mistral", &text)?
        }
    };
    // That of the whole model counts.
    let tied = fields.flag_or("tie_word_embeddings", config.tie_word_embeddings)?;
    Ok(RmsConfig { tie_word_embeddings: tied, ..config })
}

/// Reads the configuration of a text model.
pub(super) fn read_text(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        key_value_heads: Some(8),
        // Absent and null are not the same here.
        head_dim: (!fields.has("head_dim")).then_some(128),
        max_position_embeddings: 262_144,
        rms_norm_eps: 1e-5,
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?;
    let window = match fields.has("sliding_window") {
        true => sliding_window(fields, 0)?,
        false => None,
    };
    let (rope, growth) = rope(fields, &config)?;
    Ok(RmsConfig {
        rope,
        query_growth: Some(growth),
        rope_interleaved: fields.flag_or("rope_interleaved", false)?,
        windows: uniform_windows(fields, "ministral3", window, config.num_hidden_layers)?,
        ..config
    })
}

fn rope(fields: &Fields<'_>, config: &RmsConfig) -> Result<(RopeConfig, QueryGrowth), Error> {
    let object = match fields.object("rope_scaling")? {
        Some(object) => Some(object),
        None => fields.object("rope_parameters")?,
    };
    let Some(object) = object else {
        // What transformers takes where nothing is said.
        let scaling = RopeScaling::Yarn {
            factor: 16.0,
            attention_factor: yarn_stretch(16.0, 1.0) / yarn_stretch(16.0, 1.0),
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_max_position_embeddings: 16_384,
            truncate: true,
        };
        let growth = QueryGrowth { rate: 0.1, every: 16_384, first: 0 };
        return Ok((RopeConfig { theta: theta(fields, "rope_theta", 1e6)?, scaling }, growth));
    };
    growing_rope(&object, &config.rope_context(fields))
}

/// The rotary embedding that an object says, with how queries grow.
pub(super) fn growing_rope(
    object: &Fields<'_>,
    around: &RopeContext<'_>,
) -> Result<(RopeConfig, QueryGrowth), Error> {
    let base = theta(around.fields, "rope_theta", around.theta)?;
    let rope = RopeConfig::read_object(object, around, base, &[GROWTH, ROPE])?;
    let every = object.size("original_max_position_embeddings", MAX_POSITIONS)?;
    let rate = object.number_within("llama_4_scaling_beta", 0.0, 1e3)?;
    Ok((rope, QueryGrowth { rate, every, first: 0 }))
}

/// Of the object of the rotary embedding.
const GROWTH: &[KnownField] = &[
    ("llama_4_scaling_beta", Read),
    ("max_position_embeddings", Harmless),
    ("partial_rotary_factor", Read),
];

pub(super) const MINISTRAL3: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("hidden_act", Read),
    ("mlp_bias", Effect::OFF),
    ("rope_interleaved", Read),
    ("sliding_window", Read),
];

const TEXT_TYPE: &[KnownField] = &[("model_type", Only(&["\"mistral\"", "\"ministral3\""]))];

/// Of a model that sees images too.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("image_token_id", Harmless),
    ("image_token_index", Harmless),
    ("multimodal_projector_bias", Harmless),
    ("projector_hidden_act", Harmless),
    ("spatial_merge_size", Harmless),
    ("text_config", Read),
    ("vision_config", Harmless),
    ("vision_feature_layer", Harmless),
];
