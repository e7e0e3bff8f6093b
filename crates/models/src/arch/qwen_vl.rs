//! Qwen2-VL, Qwen2.5-VL and Qwen3-VL, which see images too: their text parts. Of text alone the
//! three positions that a rotary embedding takes there are the same; with images they are the
//! vision encoder's to say. Bai et al. 2025 (arXiv:2502.13923, arXiv:2511.21631).

use super::gemma3::TEXT_PART;
use super::llama;
use super::rms_config::{DEFAULTS, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    COMMON, Fields, KnownField, ROPE, RopeConfig, RopeScaling, check, layer_windows, rope_object,
    theta,
};

/// Reads the text part of a Qwen2-VL or Qwen2.5-VL: of files as first published the fields of the
/// whole.
pub(super) fn read_qwen2_vl(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = match fields.object("text_config")? {
        Some(text) => {
            let own = &[TEXT_TYPE_2, TEXT_PART, llama::QWEN2, llama::ACT, FIELDS, COMMON];
            check(&text, own)?;
            read_qwen2_text(&text, &ABSENT_2)?
        }
        None => read_qwen2_text(fields, &ABSENT_2)?,
    };
    let tied = config.tie_word_embeddings || fields.flag_or("tie_word_embeddings", false)?;
    Ok(RmsConfig { tie_word_embeddings: tied, ..config })
}

/// What all kinds with the text part of a Qwen2 have.
pub(super) fn read_qwen2_text(
    fields: &Fields<'_>,
    absent: &RmsDefaults<'_>,
) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, absent)?;
    if config.head_dim * config.num_attention_heads != config.hidden_size {
        let expected = "the heads must be as wide as hidden_size together".to_owned();
        return Err(fields.refuse("head_dim", expected));
    }
    Ok(RmsConfig {
        attention_in_bias: true,
        rope: rope(fields, &config)?,
        windows: llama::windows("qwen2_5_vl", fields, config.num_hidden_layers)?,
        ..config
    })
}

/// Reads the text part of a Qwen3-VL without experts.
pub(super) fn read_qwen3_vl(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    check(&text, &[TEXT_TYPE_3, TEXT_PART, TEXT_3, FIELDS, COMMON])?;
    let absent = RmsDefaults { key_value_heads: Some(32), head_dim: Some(128), ..ABSENT_3 };
    read_qwen3_text(fields, &text, &absent)
}

/// What both kinds of Qwen3-VL have.
pub(super) fn read_qwen3_text(
    fields: &Fields<'_>,
    text: &Fields<'_>,
    absent: &RmsDefaults<'_>,
) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(text, absent)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(text, None, config.windows.clone())?;
    Ok(RmsConfig {
        rope: rope(text, &config)?,
        query_key_norms: Some(QueryKeyNorms::EachHead),
        // That of the whole model counts.
        tie_word_embeddings: fields.flag_or("tie_word_embeddings", false)?,
        ..config.with_attention_bias(text)?
    })
}

/// The rotary embedding. The type "mrope" is what positions are, not how they are scaled.
fn rope(fields: &Fields<'_>, config: &RmsConfig) -> Result<RopeConfig, Error> {
    let around = config.rope_context(fields);
    let base = theta(fields, "rope_theta", around.theta)?;
    let Some(object) = rope_object(fields)? else {
        return Ok(RopeConfig { theta: base, scaling: RopeScaling::Default });
    };
    let name = if object.get("rope_type").is_some() { "rope_type" } else { "type" };
    if object.text(name)? != Some("mrope") {
        return RopeConfig::read_object(&object, &around, base, &[ROPE]);
    }
    check(&object, &[ROPE])?;
    let theta = theta(&object, "rope_theta", base)?;
    Ok(RopeConfig { theta, scaling: RopeScaling::Default })
}

/// Those of Qwen2-VL and Qwen2.5-VL.
const ABSENT_2: RmsDefaults = RmsDefaults {
    key_value_heads: Some(8),
    max_position_embeddings: 32_768,
    rms_norm_eps: 1e-5,
    rope_theta: 1_000_000.0,
    ..DEFAULTS
};

/// Those of Qwen3-VL, but for heads.
pub(super) const ABSENT_3: RmsDefaults =
    RmsDefaults { max_position_embeddings: 128_000, rope_theta: 500_000.0, ..DEFAULTS };

const TEXT_TYPE_2: &[KnownField] =
    &[("model_type", Only(&["\"qwen2_vl_text\"", "\"qwen2_5_vl_text\""]))];

const TEXT_TYPE_3: &[KnownField] = &[("model_type", Only(&["\"qwen3_vl_text\""]))];

pub(super) const TEXT_3: &[KnownField] =
    &[("attention_bias", Read), ("hidden_act", Read), ("mlp_bias", Effect::OFF)];

/// Of models that see images too.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("image_token_id", Harmless),
    ("text_config", Read),
    ("video_token_id", Harmless),
    ("vision_config", Harmless),
    ("vision_end_token_id", Harmless),
    ("vision_start_token_id", Harmless),
    ("vision_token_id", Harmless),
];

pub(super) const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model.")],
    others: &["visual.", "model.visual."],
};
