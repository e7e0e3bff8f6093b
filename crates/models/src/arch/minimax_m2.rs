//! MiniMax-M2: many experts, chosen as DeepSeek's, a part of each head rotated, and norms of all
//! queries and keys. MiniMax 2025 (<https://github.com/MiniMax-AI/MiniMax-M2>).

use super::rms_config::{DEFAULTS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{Fields, KnownField, MAX_HEAD_DIM, RopeConfig, layer_windows};
use crate::layers::Shares;

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        key_value_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 196_608,
        rope_theta: 5_000_000.0,
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    let width = fields.size_or("rotary_dim", config.head_dim, MAX_HEAD_DIM)?;
    if width > config.head_dim {
        let expected = format!("a head has {} elements", config.head_dim);
        return Err(fields.refuse("rotary_dim", expected));
    }
    let names = ["rope_theta", "partial_rotary_factor"];
    let share = width as f64 / config.head_dim as f64;
    let (rope, rotary_dim) = RopeConfig::read_partial(&config.rope_context(fields), names, share)?;
    let names = ["num_local_experts", "num_experts"];
    let mut config = config.with_experts(fields, names, (256, 8), true)?;
    if let Some(experts) = &mut config.experts {
        experts.routing.shares = Shares::Sigmoid;
    }
    Ok(RmsConfig { rope, rotary_dim, query_key_norms: Some(QueryKeyNorms::AllHeads), ..config })
}

pub(super) const MINIMAX_M2: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    // Of another attention in earlier models: 1 is this one.
    ("attn_type_list", Harmless),
    ("auto_map", Harmless),
    // Of layers that guess more tokens.
    ("mtp_transformer_layers", Harmless),
    ("num_mtp_modules", Harmless),
    ("partial_rotary_factor", Read),
    ("qk_norm_type", Only(&["\"per_layer\""])),
    ("rotary_dim", Read),
    ("scoring_func", Only(&["\"sigmoid\""])),
    ("shared_intermediate_size", Effect::ZERO),
    ("use_mtp", Harmless),
    ("use_qk_norm", Effect::ON),
    ("use_routing_bias", Effect::ON),
];
