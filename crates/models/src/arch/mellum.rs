//! Mellum 2: the experts of Qwen3-MoE, and layers of a sliding window with a rotary embedding of
//! their own. JetBrains 2026 (<https://huggingface.co/JetBrains/Mellum2-12B-A2.5B-Base>).

use super::expert_fields::listed_layers;
use super::gemma3;
use super::rms_config::{DEFAULTS, ExpertsConfig, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{Harmless, Read};
use crate::config::{Fields, KnownField, MAX_INTERMEDIATE, layer_windows, sliding_window};

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 98_304),
        ("hidden_size", 2304),
        ("intermediate_size", 7168),
        ("num_hidden_layers", 28),
        ("num_attention_heads", 32),
    ],
    key_value_heads: Some(4),
    head_dim: Some(128),
    max_position_embeddings: 131_072,
    ..DEFAULTS
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &ABSENT)?.with_attention_bias(fields)?;
    let layers = config.num_hidden_layers;
    let normalized = fields.flag_or("norm_topk_prob", true)?;
    let names = ["num_experts", "num_local_experts"];
    let mut config = config.with_experts(fields, names, (64, 8), normalized)?;
    let width = fields.size_or("moe_intermediate_size", 896, MAX_INTERMEDIATE)?;
    config.experts =
        config.experts.map(|experts| ExpertsConfig { intermediate_size: width, ..experts });
    if let Some(kinds) = fields.get("mlp_layer_types") {
        config.sparse_layers = listed_layers(fields, kinds, layers)?;
    }
    let around = config.rope_context(fields);
    let local = gemma3::rope(&around, "sliding_attention", ("rope_theta", 10_000.0))?;
    Ok(RmsConfig {
        query_key_norms: Some(QueryKeyNorms::EachHead),
        rope: gemma3::rope(&around, "full_attention", ("rope_theta", 500_000.0))?,
        local_rope: Some(local),
        windows: layer_windows(fields, sliding_window(fields, 1024)?, vec![None; layers])?,
        ..config
    })
}

pub(super) const MELLUM: &[KnownField] = &[
    ("attention_bias", Read),
    ("mlp_layer_types", Read),
    ("moe_intermediate_size", Read),
    ("norm_topk_prob", Read),
    ("sliding_window", Read),
    // Of layers that guess more tokens.
    ("mtp_layer_types", Harmless),
    ("mtp_mlp_layer_types", Harmless),
    ("num_mtp_layers", Harmless),
    ("num_nextn_predict_layers", Harmless),
];
