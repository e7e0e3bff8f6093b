//! Kolibri 1: norms before and behind attention and experts, which are chosen by what they score and then share by sigmoids; layers
//! with a sliding window, which alone rotate. Aleph Alpha 2026 (<https://huggingface.co/Aleph-Alpha/Kolibri-1>).

use super::expert_fields::EXPERTS;
use super::rms_config::{BlockNorms, DEFAULTS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_INTERMEDIATE, layer_windows, sliding_window};
use crate::layers::Shares;

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 128_000),
        ("hidden_size", 2560),
        ("num_hidden_layers", 50),
        ("num_attention_heads", 48),
    ],
    key_value_heads: Some(4),
    head_dim: Some(128),
    max_position_embeddings: 262_144,
    ..DEFAULTS
};

/// As it is published.
const NAMES: &[(&str, &str)] = &[
    (r"\.mlp\.gate\.e_score_correction_bias$", ".moe.router.expert_bias"),
    (r"\.post_self_attn_layernorm\.", ".post_attn_norm."),
    (r"\.post_mlp_layernorm\.", ".post_ffn_norm."),
];

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let size = |field| fields.size_or(field, 512, MAX_INTERMEDIATE);
    let inner = size("moe_intermediate_size")?;
    let config = RmsConfig::read_with_inner(fields, &ABSENT, inner)?.with_rope(fields)?;
    let normalized = fields.flag_or("norm_topk_prob", false)?;
    let names = ["num_experts", "num_local_experts"];
    let mut config = config.with_experts(fields, names, (384, 6), normalized)?;
    if let Some(experts) = &mut config.experts {
        experts.intermediate_size = inner;
        experts.shared_intermediate_size = Some(size("shared_expert_intermediate_size")?);
        experts.routing.shares = Shares::SigmoidOfChosen;
        experts.is_corrected = true;
        experts.renamed = NAMES;
    }
    let window = sliding_window(fields, 513)?;
    let slides = |layer: usize| !(layer + 1).is_multiple_of(5);
    let by_rule = (0..config.num_hidden_layers).map(|n| window.filter(|_| slides(n))).collect();
    let windows = layer_windows(fields, window, by_rule)?;
    Ok(RmsConfig {
        norms: BlockNorms::AroundGlm,
        query_key_norms: Some(QueryKeyNorms::EachHead),
        rotated_layers: windows.iter().map(|of| window.is_none() || of.is_some()).collect(),
        windows,
        ..config
    })
}

pub(super) const FIELDS: &[&[KnownField]] = &[KOLIBRI1, EXPERTS];

const KOLIBRI1: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("head_dim", Read),
    ("hidden_size", Read),
    // All layers have experts.
    ("intermediate_size", Harmless),
    ("layer_types", Read),
    ("max_position_embeddings", Read),
    ("moe_intermediate_size", Read),
    ("norm_topk_prob", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("num_key_value_heads", Read),
    ("original_max_position_embeddings", Read),
    ("rms_norm_eps", Read),
    ("rope_parameters", Read),
    ("rope_scaling", Read),
    ("rope_theta", Read),
    ("shared_expert_intermediate_size", Read),
    ("sliding_window", Read),
];
