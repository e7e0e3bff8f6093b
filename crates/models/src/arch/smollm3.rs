//! SmolLM3: Llama's blocks, some of which rotate nothing. Bakouch et al. 2025
//! (<https://huggingface.co/blog/smollm3>), after Yang et al. 2025 (arXiv:2501.18795).

use super::rms_config::{DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{Harmless, Read};
use crate::config::{Fields, KnownField, MAX_LAYERS, layer_windows, sliding_window};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        key_value_heads: Some(4),
        max_position_embeddings: 32_768,
        rope_theta: 2_000_000.0,
        tie_word_embeddings: true,
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
    let rotated_layers = rotated_layers(fields, config.num_hidden_layers)?;
    let window = match fields.has("sliding_window") {
        true => sliding_window(fields, 0)?,
        false => None,
    };
    let used = fields.flag_or("use_sliding_window", false)?;
    let window = window.filter(|_| used);
    let by_rule = rotated_layers.iter().map(|rotates| window.filter(|_| !rotates)).collect();
    Ok(RmsConfig {
        rope_interleaved: fields.flag_or("rope_interleaved", false)?,
        mlp_bias: fields.flag_or("mlp_bias", false)?,
        windows: layer_windows(fields, window, by_rule)?,
        rotated_layers,
        ..config.with_attention_bias(fields)?
    })
}

/// Of each layer, whether it rotates queries and keys: what a list says of it, else all but every
/// so many.
pub(super) fn rotated_layers(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let interval = fields.size_or("no_rope_layer_interval", 4, MAX_LAYERS)?;
    let field = "no_rope_layers";
    let Some(value) = fields.get(field) else {
        return Ok((0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect());
    };
    let flag = |value: &serde_json::Value| match value.as_u64() {
        Some(flag @ (0 | 1)) => Some(flag == 1),
        _ => value.as_bool(),
    };
    let flags = value.as_array().and_then(|all| all.iter().map(flag).collect::<Option<Vec<_>>>());
    // A list may be longer than the model.
    flags.filter(|flags| flags.len() >= layers).map(|flags| flags[..layers].to_vec()).ok_or_else(
        || fields.refuse(field, format!("it must be a list of {layers} of 0 and 1, one per layer")),
    )
}

pub(super) const SMOLLM3: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    // Nothing reads it.
    ("max_window_layers", Harmless),
    ("mlp_bias", Read),
    ("no_rope_layer_interval", Read),
    ("no_rope_layers", Read),
    ("rope_interleaved", Read),
    ("sliding_window", Read),
    ("use_sliding_window", Read),
];
