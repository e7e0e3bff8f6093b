//! Hunyuan: Llama's blocks with norms of each head of queries and keys once these are rotated.
//! Tencent Hunyuan Team 2025 (<https://github.com/Tencent-Hunyuan>).

use super::rms_config::{DEFAULTS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    Fields, KnownField, ROPE, RopeConfig, RopeScaling, check, layer_windows, rope_object, theta,
};

/// Reads what models with and without experts have.
pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &RmsDefaults { rms_norm_eps: 1e-5, ..DEFAULTS })?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    Ok(RmsConfig {
        rope: rope(fields, &config)?,
        query_key_norms: Some(QueryKeyNorms::EachHeadRotated),
        ..config.with_attention_bias(fields)?
    })
}

/// The rotary embedding. One of the type "dynamic" with an `alpha` has a greater base, whatever the
/// text's length ([bloc97, 2023](https://www.reddit.com/r/LocalLLaMA/comments/14lz7j5)).
fn rope(fields: &Fields<'_>, config: &RmsConfig) -> Result<RopeConfig, Error> {
    let around = config.rope_context(fields);
    let base = theta(fields, "rope_theta", around.theta)?;
    let Some(object) = rope_object(fields)? else {
        return Ok(RopeConfig { theta: base, scaling: RopeScaling::Default });
    };
    let name = if object.get("rope_type").is_some() { "rope_type" } else { "type" };
    let alpha = object.number_or("alpha", 0.0)?;
    if object.text(name)? != Some("dynamic") || alpha == 0.0 {
        return RopeConfig::read_object(&object, &around, base, &[ALPHA, ROPE]);
    }
    check(&object, &[ALPHA, ROPE])?;
    let alpha = object.number_within("alpha", 1e-6, 1e6)?;
    let width = config.head_dim as f64;
    // The exponent is head_dim / (head_dim - 2).
    if config.head_dim <= 2 {
        let expected = "the type \"dynamic\" needs heads wider than 2".to_owned();
        return Err(fields.refuse("head_dim", expected));
    }
    let theta = theta(&object, "rope_theta", base)? * alpha.powf(width / (width - 2.0));
    Ok(RopeConfig { theta, scaling: RopeScaling::Default })
}

/// Of the object of the rotary embedding.
const ALPHA: &[KnownField] = &[("alpha", Read)];

pub(super) const HUNYUAN: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_head_dim", Harmless),
    ("cla_share_factor", Harmless),
    ("eod_token_id", Harmless),
    ("norm_type", Only(&["\"rms\"", "\"hf_rms\""])),
    ("use_cla", Effect::OFF),
    ("use_qk_norm", Effect::ON),
    ("use_rotary_pos_emb", Effect::ON),
];

pub(super) const DENSE: &[KnownField] = &[("hidden_act", Read), ("mlp_bias", Effect::OFF)];
