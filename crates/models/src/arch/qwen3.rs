//! Qwen3: Llama's blocks with norms of each head of queries and keys. Yang et al. 2025
//! (arXiv:2505.09388).

use super::llama;
use super::rms_config::{DEFAULTS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        key_value_heads: Some(32),
        head_dim: Some(128),
        max_position_embeddings: 32_768,
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?;
    let config = config.with_attention_bias(fields)?.with_rope(fields)?;
    Ok(RmsConfig {
        query_key_norms: Some(QueryKeyNorms::EachHead),
        windows: llama::windows("qwen3", fields, config.num_hidden_layers)?,
        ..config
    })
}

pub(super) const QWEN3: &[KnownField] = &[
    ("attention_bias", Read),
    ("hidden_act", Read),
    ("max_window_layers", Read),
    ("mlp_bias", Effect::OFF),
    ("sliding_window", Read),
    ("use_sliding_window", Read),
];
