//! Code World Model: Llama's blocks, most of them with a sliding window. FAIR CodeGen Team 2025
//! (arXiv:2510.02387).

use super::rms_config::{DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{
    Fields, KnownField, MAX_POSITIONS, RopeConfig, RopeScaling, layer_windows, rope_object,
};

const THETA: f64 = 1e6;

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 128_256),
        ("hidden_size", 6144),
        ("intermediate_size", 21_504),
        ("num_hidden_layers", 64),
        ("num_attention_heads", 48),
    ],
    key_value_heads: Some(8),
    head_dim: Some(128),
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-5,
    rope_theta: THETA,
    ..DEFAULTS
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &ABSENT)?.with_rope(fields)?;
    let rope = match rope_object(fields)? {
        Some(_) => config.rope.clone(),
        // What transformers takes then, whatever base the file has.
        None if config.rope.theta == THETA => RopeConfig {
            theta: THETA,
            scaling: RopeScaling::Llama3 {
                factor: 16.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 8192,
            },
        },
        None => {
            let expected = format!("only {THETA} is supported without `rope_parameters`");
            return Err(fields.refuse("rope_theta", expected));
        }
    };
    let field = "sliding_window";
    let is_none = fields.has(field) && fields.get(field).is_none_or(|n| n.as_u64() == Some(0));
    let window = match is_none {
        true => None,
        false => Some(fields.size_or(field, 8192, MAX_POSITIONS)?),
    };
    let by_rule = (0..config.num_hidden_layers).map(|layer| window.filter(|_| layer % 4 != 0));
    Ok(RmsConfig {
        rope,
        windows: layer_windows(fields, window, by_rule.collect())?,
        mlp_bias: fields.flag_or("mlp_bias", false)?,
        ..config
    })
}

pub(super) const CWM: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("hidden_act", Read),
    ("mlp_bias", Read),
    ("sliding_window", Read),
];
