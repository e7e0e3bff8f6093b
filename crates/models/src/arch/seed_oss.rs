//! Seed-OSS: Llama's blocks with biases of queries, keys and values. ByteDance Seed Team 2025
//! (<https://github.com/ByteDance-Seed/seed-oss>).

use super::rms_config::{DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, layer_windows};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        key_value_heads: Some(8),
        // Absent and null are not the same here.
        head_dim: (!fields.has("head_dim")).then_some(128),
        max_position_embeddings: 524_288,
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    Ok(RmsConfig {
        attention_in_bias: fields.flag_or("attention_bias", true)?,
        attention_out_bias: fields.flag_or("attention_out_bias", false)?,
        mlp_bias: fields.flag_or("mlp_bias", false)?,
        ..config
    })
}

pub(super) const SEED_OSS: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_out_bias", Read),
    ("hidden_act", Read),
    ("mlp_bias", Read),
];
