//! Flint: experts beside a shared one, attention with sinks, and layers with a sliding window,
//! which alone rotate. Recursive SI 2026 (<https://huggingface.co/RecursiveSI/flint>).

use super::expert_fields::{EXPERTS, sparse_layers};
use super::rms_config::{self, DEFAULTS, QueryKeyNorms, RmsConfig, RmsDefaults, SinkLayers};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, MAX_INTERMEDIATE, layer_windows, sliding_window};
use crate::layers::Shares;

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 150_144),
        ("hidden_size", 2048),
        ("intermediate_size", 6144),
        ("num_hidden_layers", 49),
        ("num_attention_heads", 32),
    ],
    key_value_heads: Some(4),
    head_dim: Some(128),
    max_position_embeddings: 262_144,
    ..DEFAULTS
};

/// As it is published.
const NAMES: &[(&str, &str)] = &[
    (r"\.mlp\.shared_experts\.", ".mlp.shared_expert."),
    (r"\.self_attn\.sinks$", ".self_attn.softmax_offset"),
];

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config =
        RmsConfig::read(fields, &ABSENT)?.with_rope(fields)?.with_attention_bias(fields)?;
    let normalized = fields.flag_or("norm_topk_prob", true)?;
    let names = ["num_experts", "num_local_experts"];
    let mut config = config.with_experts(fields, names, (256, 6), normalized)?;
    if let Some(experts) = &mut config.experts {
        let size = |field, absent| fields.size_or(field, absent, MAX_INTERMEDIATE);
        experts.intermediate_size = size("moe_intermediate_size", 512)?;
        experts.shared_intermediate_size = Some(size("shared_expert_intermediate_size", 1024)?);
        experts.routing.shares = Shares::SigmoidOfChosen;
        experts.renamed = NAMES;
    }
    let layers = config.num_hidden_layers;
    config.sparse_layers = sparse_layers(fields, layers)?;
    if fields.get("mlp_only_layers").is_none() {
        config.sparse_layers.iter_mut().take(2).for_each(|is_sparse| *is_sparse = false);
    }
    let window = sliding_window(fields, 513)?;
    let slides = |layer: usize| layer > 1 && layer % 4 != 1 && layer + 1 < layers;
    let by_rule = (0..layers).map(|layer| window.filter(|_| slides(layer))).collect();
    let windows = layer_windows(fields, window, by_rule)?;
    Ok(RmsConfig {
        query_key_norms: Some(QueryKeyNorms::EachHead),
        attention_sinks: SinkLayers::All,
        rotated_layers: windows.iter().map(Option::is_some).collect(),
        windows,
        ..config
    })
}

pub(super) const FIELDS: &[&[KnownField]] = &[FLINT, EXPERTS, rms_config::FIELDS];

const FLINT: &[KnownField] = &[
    ("attention_bias", Read),
    ("decoder_sparse_step", Read),
    ("mlp_only_layers", Read),
    ("moe_intermediate_size", Read),
    ("norm_topk_prob", Read),
    ("shared_expert_intermediate_size", Read),
    ("sliding_window", Read),
];
