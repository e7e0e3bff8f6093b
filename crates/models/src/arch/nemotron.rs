//! Nemotron: LayerNorm with one more than its weight, a part of each head rotated, and an MLP of
//! two matrices with a squared ReLU. Parmar et al. 2024 (arXiv:2402.16819).

use super::rms_config::{BlockNormKind, DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, RopeConfig, layer_windows};
use crate::layers::Activation;

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        sizes: &[
            ("vocab_size", 256_000),
            ("hidden_size", 6144),
            ("intermediate_size", 24_576),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 48),
        ],
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        epsilon: "norm_eps",
        activation: ("hidden_act", Activation::Relu2),
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?.with_attention_bias(fields)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    let names = ["rope_theta", "partial_rotary_factor"];
    let (rope, rotary_dim) = RopeConfig::read_partial(&config.rope_context(fields), names, 0.5)?;
    Ok(RmsConfig {
        norm_kind: BlockNormKind::Layer { bias: true },
        norm_plus_one: fields.flag_or("rms_norm_add_unit_offset", true)?,
        mlp_bias: fields.flag_or("mlp_bias", false)?,
        rope,
        rotary_dim,
        ..config
    })
}

pub(super) const NEMOTRON: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("mlp_bias", Read),
    ("norm_eps", Read),
    ("partial_rotary_factor", Read),
    // Off in GGUF files, whose weights have it added.
    ("rms_norm_add_unit_offset", Read),
];
