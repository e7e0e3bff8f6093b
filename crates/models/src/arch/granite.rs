//! Granite: Llama's blocks with a multiplier at each place where scales matter. Granite Team 2024
//! (<https://github.com/ibm-granite/granite-3.0-language-models>).

use super::rms_config::{DEFAULTS, RmsConfig};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, layer_windows, multiplier};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &DEFAULTS)?.with_rope(fields)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    scaled(fields, config)
}

/// The same with Granite's multipliers and biases.
pub(super) fn scaled(fields: &Fields<'_>, config: RmsConfig) -> Result<RmsConfig, Error> {
    // Scores are multiplied by this itself, not by the root of it.
    let attention = multiplier(fields, "attention_multiplier")?.unwrap_or(1.0);
    Ok(RmsConfig {
        rope_interleaved: fields.flag_or("rope_interleaved", false)?,
        mlp_bias: fields.flag_or("mlp_bias", false)?,
        query_pre_attn_scalar: Some(attention.powi(-2)),
        embed_scale: multiplier(fields, "embedding_multiplier")?,
        residual_scale: multiplier(fields, "residual_multiplier")?,
        logit_scale: multiplier(fields, "logits_scaling")?.map(f64::recip),
        ..config.with_attention_bias(fields)?
    })
}

pub(super) const GRANITE: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_multiplier", Read),
    ("embedding_multiplier", Read),
    ("hidden_act", Read),
    ("logits_scaling", Read),
    ("mlp_bias", Read),
    ("residual_multiplier", Read),
    ("rope_interleaved", Read),
];
