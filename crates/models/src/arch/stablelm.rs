//! StableLM: Llama's blocks with LayerNorm, a part of each head rotated, and perhaps attention and
//! MLP side by side. Bellagente et al. 2024 (arXiv:2402.17834).

use super::rms_config::{BlockNormKind, BlockNorms, DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, RopeConfig, layer_windows};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        key_value_heads: Some(32),
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        epsilon: "layer_norm_eps",
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    if config.head_dim * config.num_attention_heads != config.hidden_size {
        let expected = "the heads must be as wide as hidden_size together".to_owned();
        return Err(fields.refuse("head_dim", expected));
    }
    let names = ["rope_theta", "partial_rotary_factor"];
    let (rope, rotary_dim) = RopeConfig::read_partial(&config.rope_context(fields), names, 0.25)?;
    let parallel = fields.flag_or("use_parallel_residual", false)?;
    Ok(RmsConfig {
        norms: if parallel { BlockNorms::Parallel } else { BlockNorms::Before },
        norm_kind: BlockNormKind::Layer { bias: true },
        attention_in_bias: fields.flag_or("use_qkv_bias", false)?,
        rope,
        rotary_dim,
        ..config
    })
}

pub(super) const STABLELM: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("hidden_act", Read),
    ("layer_norm_eps", Read),
    ("mlp_bias", Effect::OFF),
    ("partial_rotary_factor", Read),
    ("sliding_window", Effect::UNSET),
    ("use_parallel_residual", Read),
    ("use_qkv_bias", Read),
];
