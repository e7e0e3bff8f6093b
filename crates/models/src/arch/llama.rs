//! Llama, and the models that took its shape: Mistral, Qwen2, InternLM3, IQuest-Coder. Touvron et
//! al. 2023 (arXiv:2302.13971).

use super::rms_config::{DEFAULTS, RmsConfig, RmsDefaults, field_of};
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{
    DEFAULT_WINDOW, Fields, KnownField, MAX_LAYERS, layer_windows, sliding_window, uniform_windows,
};

pub(super) fn read(model_type: &str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let (key_value_heads, max_position_embeddings) = match model_type {
        "mistral" | "ministral" => (Some(8), 4096 * 32),
        "qwen2" => (Some(32), 32_768),
        "internlm3" => (Some(2), 32_768),
        "iquestcoder" => (Some(8), 131_072),
        _ => (None, 2048),
    };
    let mut absent = RmsDefaults { key_value_heads, max_position_embeddings, ..DEFAULTS };
    if let "internlm3" | "iquestcoder" = model_type {
        absent = RmsDefaults { head_dim: Some(128), rms_norm_eps: 1e-5, ..absent };
    }
    let mut config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
    config = match model_type {
        "mistral" | "ministral" => config,
        "internlm3" => {
            let bias = field_of(fields, ["qkv_bias", "attention_bias"])?;
            let mlp = field_of(fields, ["bias", "mlp_bias"])?;
            let mlp_bias = fields.flag_or(mlp, false)?;
            if fields.flag_or(bias, false)? != mlp_bias {
                return Err(fields.refuse(bias, format!("it must be what `{mlp}` is")));
            }
            RmsConfig {
                attention_in_bias: mlp_bias,
                attention_out_bias: mlp_bias,
                mlp_bias,
                ..config
            }
        }
        "qwen2" => RmsConfig { attention_in_bias: true, ..config },
        _ => {
            let mlp_bias = fields.flag_or("mlp_bias", false)?;
            let rope_interleaved = fields.flag_or("rope_interleaved", false)?;
            RmsConfig { mlp_bias, rope_interleaved, ..config.with_attention_bias(fields)? }
        }
    };
    Ok(RmsConfig { windows: windows(model_type, fields, config.num_hidden_layers)?, ..config })
}

/// Of each layer, how many tokens a token sees.
pub(super) fn windows(
    model_type: &str,
    fields: &Fields<'_>,
    layers: usize,
) -> Result<Vec<Option<usize>>, Error> {
    match model_type {
        "mistral" => {
            let window = sliding_window(fields, DEFAULT_WINDOW)?;
            uniform_windows(fields, model_type, window, layers)
        }
        "ministral" => {
            let window = sliding_window(fields, DEFAULT_WINDOW)?;
            layer_windows(fields, window, vec![window; layers])
        }
        "qwen2" | "qwen3" | "qwen2_5_vl" => {
            let used = fields.flag_or("use_sliding_window", false)?;
            // Checked even where it is not used.
            let (window, first) = (
                sliding_window(fields, DEFAULT_WINDOW)?,
                first_window(fields, if model_type == "qwen2_5_vl" { 80 } else { 28 })?,
            );
            let window = window.filter(|_| used);
            let by_rule = (0..layers).map(|layer| window.filter(|_| layer >= first));
            layer_windows(fields, window, by_rule.collect())
        }
        _ => uniform_windows(fields, model_type, None, layers),
    }
}

/// The layer from which on Qwen2 and Qwen3 slide; may be beyond the last.
pub(super) fn first_window(fields: &Fields<'_>, absent: usize) -> Result<usize, Error> {
    let field = "max_window_layers";
    let Some(value) = fields.get(field) else {
        return Ok(absent);
    };
    let first = value.as_u64().filter(|&first| first <= MAX_LAYERS as u64);
    first.map(|first| first as usize).ok_or_else(|| {
        let expected = format!("it must be a whole number from 0 to {MAX_LAYERS}");
        fields.refuse(field, expected)
    })
}

pub(super) const ACT: &[KnownField] = &[("hidden_act", Read)];

pub(super) const LLAMA: &[KnownField] = &[
    ("attention_bias", Read),
    ("mlp_bias", Read),
    ("rope_interleaved", Read),
    ("qkv_bias", Effect::OFF),
    ("use_qkv_bias", Effect::OFF),
    ("max_window_layers", Effect::UNSET),
    ("sliding_window", Effect::UNSET),
    ("use_sliding_window", Effect::OFF),
];

pub(super) const INTERNLM3: &[KnownField] =
    &[("attention_bias", Read), ("bias", Read), ("mlp_bias", Read), ("qkv_bias", Read)];

/// Beside those of Llama.
pub(super) const IQUESTCODER: &[KnownField] = &[("clip_qkv", Effect::UNSET)];

pub(super) const MISTRAL: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("mlp_bias", Effect::OFF),
    ("qkv_bias", Effect::OFF),
    ("use_qkv_bias", Effect::OFF),
    ("max_window_layers", Effect::UNSET),
    ("sliding_window", Read),
    ("use_sliding_window", Effect::ON),
];

pub(super) const QWEN2: &[KnownField] = &[
    ("attention_bias", Effect::ON),
    ("mlp_bias", Effect::OFF),
    ("qkv_bias", Effect::ON),
    ("use_qkv_bias", Effect::ON),
    ("max_window_layers", Read),
    ("sliding_window", Read),
    ("use_sliding_window", Read),
];
