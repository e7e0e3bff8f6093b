//! MiMo-V2-Flash: experts as DeepSeek's, values narrower than keys, and layers of a sliding window
//! with other heads, sinks and a rotary base of their own. Xiaomi 2026 (arXiv:2601.02780).

use serde_json::Value;

use super::expert_fields::{EXPERTS, expert_groups, listed_layers, share_scale};
use super::laguna::rope_of;
use super::rms_config::{self, DEFAULTS, RmsConfig, RmsDefaults, SinkLayers};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    Fields, KnownField, MAX_HEAD_DIM, MAX_INTERMEDIATE, MAX_POSITIONS, layer_windows,
    sliding_window,
};
use crate::layers::Shares;

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 152_576),
        ("hidden_size", 4096),
        ("intermediate_size", 16_384),
        ("num_hidden_layers", 48),
        ("num_attention_heads", 64),
    ],
    key_value_heads: Some(4),
    head_dim: Some(192),
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-5,
    ..DEFAULTS
};

/// The part of a head that is rotated.
const PART: f64 = 0.334;

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &ABSENT)?;
    let layers = config.num_hidden_layers;
    let names = ["n_routed_experts", "num_experts", "num_local_experts"];
    let normalized = fields.flag_or("norm_topk_prob", true)?;
    let mut config = config.with_experts(fields, names, (256, 8), normalized)?;
    if let Some(experts) = &mut config.experts {
        let width = fields.size_or("moe_intermediate_size", 2048, MAX_INTERMEDIATE)?;
        experts.intermediate_size = width;
        experts.routing.shares = Shares::Sigmoid;
        experts.routing.scale = share_scale(fields, "routed_scaling_factor", 1.0)?;
        experts.routing.groups = expert_groups(fields, false, experts, (1, 1))?;
        experts.renamed = NAMES;
    }
    config.sparse_layers = match fields.get("mlp_layer_types") {
        Some(kinds) => listed_layers(fields, kinds, layers)?,
        None => (0..layers).map(|layer| layer > 0).collect(),
    };
    let width = fields.size_or("v_head_dim", 128, MAX_HEAD_DIM)?;
    if width > config.head_dim {
        let expected = format!("values may be as wide as keys, {}", config.head_dim);
        return Err(fields.refuse("v_head_dim", expected));
    }
    let scale = match (fields.has("attention_value_scale"), fields.get("attention_value_scale")) {
        (true, None) => 1.0,
        _ => share_scale(fields, "attention_value_scale", 0.707)?,
    };
    let local_heads = 2 * config.num_key_value_heads;
    if !config.num_attention_heads.is_multiple_of(local_heads) {
        let expected = format!("twice as many, {local_heads}, must divide num_attention_heads");
        return Err(fields.refuse("num_key_value_heads", expected));
    }
    let (rope, rotary_dim) = rope_of(fields, &config, ("full_attention", 5_000_000.0, PART))?;
    let (local, local_dim) = rope_of(fields, &config, ("sliding_attention", 10_000.0, PART))?;
    Ok(RmsConfig {
        attention_in_bias: fields.flag_or("attention_bias", false)?,
        attention_sinks: SinkLayers::Sliding,
        values: Some((width, scale)),
        local_key_value_heads: Some(local_heads),
        windows: windows(fields, layers)?,
        rope,
        rotary_dim,
        local_rope: Some(local),
        local_rotary_dim: Some(local_dim),
        ..config
    })
}

/// Of each layer, its window: the first one and each sixth has none.
fn windows(fields: &Fields<'_>, layers: usize) -> Result<Vec<Option<usize>>, Error> {
    let field = "sliding_window_size";
    let window = match fields.get(field) {
        // Of the tokens before a token alone.
        Some(_) => Some(fields.size(field, MAX_POSITIONS)? + 1),
        None => sliding_window(fields, 129)?,
    };
    let field = "hybrid_layer_pattern";
    let by_rule = match fields.get(field) {
        None => (0..layers)
            .map(|layer| window.filter(|_| layer > 0 && !(layer + 1).is_multiple_of(6)))
            .collect(),
        Some(pattern) => {
            let slides = |kind: &Value| match kind.as_u64() {
                Some(0) => Some(None),
                Some(1) => window.map(Some),
                _ => None,
            };
            let listed = pattern.as_array().and_then(|all| all.iter().map(slides).collect());
            let listed = listed.filter(|windows: &Vec<_>| windows.len() == layers);
            listed.ok_or_else(|| {
                let expected = format!(
                    "it must be a list of {layers} numbers, 1 where a window slides, else 0"
                );
                fields.refuse(field, expected)
            })?
        }
    };
    layer_windows(fields, window, by_rule)
}

const NAMES: &[(&str, &str)] = &[(r"\.self_attn\.sinks$", ".self_attn.attention_sink_bias")];

pub(super) const FIELDS: &[&[KnownField]] = &[MIMO, EXPERTS, rms_config::FIELDS];

const MIMO: &[KnownField] = &[
    ("add_full_attention_sink_bias", Effect::OFF),
    ("add_swa_attention_sink_bias", Effect::ON),
    ("attention_bias", Read),
    ("attention_projection_layout", Only(&["\"split\""])),
    ("attention_value_scale", Read),
    ("auto_map", Harmless),
    ("hybrid_layer_pattern", Read),
    ("mlp_layer_types", Read),
    ("moe_intermediate_size", Read),
    ("n_group", Read),
    ("n_routed_experts", Read),
    ("n_shared_experts", Effect::UNSET),
    ("norm_topk_prob", Read),
    ("routed_scaling_factor", Read),
    ("scoring_func", Only(&["\"sigmoid\""])),
    ("sliding_window", Read),
    ("sliding_window_size", Read),
    ("topk_group", Read),
    ("topk_method", Read),
    ("v_head_dim", Read),
];
