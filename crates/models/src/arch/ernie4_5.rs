//! ERNIE 4.5: Llama's blocks whose heads rotate neighbouring elements together. ERNIE Team 2025
//! (<https://ernie.baidu.com/blog/publication/ERNIE_Technical_Report.pdf>).

use super::rms_config::{DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, layer_windows};

/// Those of both kinds.
pub(super) const ABSENT: RmsDefaults<'static> = RmsDefaults {
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-5,
    rope_theta: 500_000.0,
    tie_word_embeddings: true,
    ..DEFAULTS
};

/// Reads the configuration of a model without experts.
pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        key_value_heads: Some(2),
        // Absent and null are not the same here.
        head_dim: (!fields.has("head_dim")).then_some(128),
        ..ABSENT
    };
    let config = read_both(fields, &absent)?;
    let bias = fields.flag_or("use_bias", false)?;
    Ok(RmsConfig { attention_in_bias: bias, attention_out_bias: bias, mlp_bias: bias, ..config })
}

/// Reads what models with and without experts have.
pub(super) fn read_both(fields: &Fields<'_>, absent: &RmsDefaults<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, absent)?.with_rope(fields)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    Ok(RmsConfig { rope_interleaved: true, ..config })
}

pub(super) const ERNIE4_5: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("hidden_act", Read),
    ("mlp_bias", Effect::OFF),
    ("use_bias", Read),
];
