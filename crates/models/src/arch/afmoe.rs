//! AFMoE, of the Trinity models: experts as DeepSeek's, four norms a block, gated attention that
//! rotates in layers of a sliding window alone. Arcee AI 2025
//! (<https://huggingface.co/arcee-ai/Trinity-Mini>).

use super::expert_fields::{EXPERTS, dense_layers, share_scale, shared_width};
use super::rms_config::{self, BlockNorms, DEFAULTS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    Fields, KnownField, MAX_INTERMEDIATE, MAX_LAYERS, layer_windows, sliding_window,
};
use crate::layers::{AttentionGate, GateFunction, GateProjection, Shares};

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 200_192),
        ("hidden_size", 2048),
        ("intermediate_size", 6144),
        ("num_hidden_layers", 32),
        ("num_attention_heads", 16),
    ],
    head_dim: Some(128),
    max_position_embeddings: 16_384,
    rms_norm_eps: 1e-5,
    ..DEFAULTS
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config =
        RmsConfig::read(fields, &ABSENT)?.with_attention_bias(fields)?.with_rope(fields)?;
    let layers = config.num_hidden_layers;
    let mut config =
        config.with_experts(fields, ["num_experts", "num_local_experts"], (64, 6), true)?;
    if let Some(experts) = &mut config.experts {
        let inner = fields.size_or("moe_intermediate_size", 1408, MAX_INTERMEDIATE)?;
        experts.intermediate_size = inner;
        experts.shared_intermediate_size = shared_width(fields, "num_shared_experts", 2, inner)?;
        experts.routing.shares = Shares::Sigmoid;
        experts.routing.scale = share_scale(fields, "route_scale", 1.0)?;
        experts.renamed = NAMES;
    }
    let dense = dense_layers(fields, "num_dense_layers", 1)?;
    let window = sliding_window(fields, 1024)?;
    let every = fields.size_or("global_attn_every_n_layers", 4, MAX_LAYERS)?;
    let slides = |layer: usize| !(layer + 1).is_multiple_of(every);
    let by_rule = (0..layers).map(|layer| window.filter(|_| slides(layer))).collect();
    let windows = layer_windows(fields, window, by_rule)?;
    let scale = (config.hidden_size as f64).sqrt();
    Ok(RmsConfig {
        norms: BlockNorms::AroundAfmoe,
        query_key_norms: Some(QueryKeyNorms::EachHead),
        attention_gate: Some(AttentionGate {
            projection: GateProjection::Gate,
            function: GateFunction::Sigmoid,
            of_heads: false,
        }),
        sparse_layers: (0..layers).map(|layer| layer >= dense).collect(),
        rotated_layers: windows.iter().map(Option::is_some).collect(),
        embed_scale: fields.flag_or("mup_enabled", false)?.then_some(scale),
        windows,
        ..config
    })
}

const NAMES: &[(&str, &str)] = &[
    (r"\.mlp\.gate\.weight$", ".mlp.router.gate.weight"),
    (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.expert_bias"),
];

pub(super) const FIELDS: &[&[KnownField]] = &[AFMOE, EXPERTS, rms_config::FIELDS];

const AFMOE: &[KnownField] = &[
    ("attention_bias", Read),
    ("auto_map", Harmless),
    ("global_attn_every_n_layers", Read),
    ("moe_intermediate_size", Read),
    ("mup_enabled", Read),
    ("n_group", Effect::ONE),
    ("num_dense_layers", Read),
    ("num_expert_groups", Effect::ONE),
    ("num_limited_groups", Effect::ONE),
    ("num_shared_experts", Read),
    ("route_norm", Effect::ON),
    ("route_scale", Read),
    ("score_func", Only(&["\"sigmoid\""])),
    ("sliding_window", Read),
    ("topk_group", Effect::ONE),
    // Of training.
    ("load_balance_coeff", Harmless),
    ("use_grouped_mm", Harmless),
];
