//! Command A+: Command R's blocks of attention beside what is mostly experts, perhaps one that all
//! tokens go to. Cohere 2026 (<https://huggingface.co/CohereLabs/command-a-plus-05-2026>).

use super::cohere::{self, COHERE2};
use super::expert_fields::{EXPERTS, dense_layers, listed_layers, shared_width};
use super::rms_config::{self, BlockNormKind, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{
    DEFAULT_WINDOW, Fields, KnownField, MAX_INTERMEDIATE, MAX_LAYERS, epsilon, layer_windows,
    sliding_window,
};
use crate::layers::Shares;

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 256_000),
        ("hidden_size", 8192),
        ("intermediate_size", 22_528),
        ("num_hidden_layers", 40),
        ("num_attention_heads", 64),
    ],
    head_dim: Some(128),
    ..cohere::ABSENT
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let mut config = cohere::read_both(fields, &ABSENT)?;
    // A norm without means, if there is a field for what it adds.
    if fields.get("rms_norm_eps").is_some() {
        config.rms_norm_eps = epsilon(fields, "rms_norm_eps", ABSENT.rms_norm_eps)?;
        config.norm_kind = BlockNormKind::Rms;
    }
    let layers = config.num_hidden_layers;
    let dense = dense_layers(fields, "first_k_dense_replace", 0)?;
    let is_normalized = fields.flag_or("norm_topk_prob", true)?;
    let names = ["num_experts", "num_local_experts"];
    let mut config = config.with_experts(fields, names, (8, 2), true)?;
    config.sparse_layers = match fields.get("mlp_layer_types") {
        Some(kinds) => listed_layers(fields, kinds, layers)?,
        None => (0..layers).map(|layer| layer >= dense).collect(),
    };
    let window = sliding_window(fields, DEFAULT_WINDOW)?;
    if window.is_none() {
        return Err(fields.refuse("sliding_window", "a cohere2_moe needs one".to_owned()));
    }
    let prefix = fields.size_or("prefix_dense_sliding_window_pattern", 1, MAX_LAYERS)?;
    let pattern = fields.size_or("sliding_window_pattern", 4, MAX_LAYERS)?;
    let slides = |layer: usize| match layer < dense {
        true => !(layer + 1).is_multiple_of(prefix),
        false => !(layer - dense + 1).is_multiple_of(pattern),
    };
    let by_rule = (0..layers).map(|layer| window.filter(|_| slides(layer))).collect();
    config.windows = layer_windows(fields, window, by_rule)?;
    // Layers that see everything rotate nothing, but for the first ones.
    let rotates = |layer: usize| {
        config.windows[layer].is_some() || (prefix == 1 && !config.sparse_layers[layer])
    };
    config.rotated_layers = (0..layers).map(rotates).collect();
    let inner = config.intermediate_size;
    config.intermediate_size =
        fields.size_or("prefix_dense_intermediate_size", inner, MAX_INTERMEDIATE)?;
    let has_shared = fields.get("num_shared_experts").is_some_and(|n| n.as_u64() != Some(0));
    let shared = match has_shared {
        true => shared_width(fields, "num_shared_experts", 1, inner)?,
        false => None,
    };
    let is_mean = match fields.text("shared_expert_combination_strategy")? {
        None | Some("average") => true,
        Some("sum") => false,
        Some(_) => {
            let expected = "only \"average\" and \"sum\" are supported".to_owned();
            return Err(fields.refuse("shared_expert_combination_strategy", expected));
        }
    };
    // The softmax of the scores of those that are chosen is that of all, made to add up to one.
    let (shares, normalized) = match fields.text("expert_selection_fn")? {
        None | Some("softmax") => (Shares::Softmax, true),
        Some("sigmoid") => (Shares::SigmoidOfChosen, is_normalized),
        Some(_) => {
            let expected = "only \"softmax\" and \"sigmoid\" are supported".to_owned();
            return Err(fields.refuse("expert_selection_fn", expected));
        }
    };
    if let Some(experts) = &mut config.experts {
        experts.intermediate_size = inner;
        experts.shared_intermediate_size = shared;
        experts.is_mean = is_mean && shared.is_some();
        experts.routing.shares = shares;
        experts.routing.normalized = normalized;
    }
    Ok(config)
}

pub(super) const FIELDS: &[&[KnownField]] = &[COHERE2_MOE, COHERE2, EXPERTS, rms_config::FIELDS];

const COHERE2_MOE: &[KnownField] = &[
    ("attention_bias", Read),
    ("expert_selection_fn", Read),
    ("first_k_dense_replace", Read),
    ("layer_norm_eps", Read),
    ("logit_scale", Read),
    ("max_window_layers", Effect::UNSET),
    ("mlp_layer_types", Read),
    ("model_max_length", Harmless),
    ("norm_topk_prob", Read),
    ("num_shared_experts", Read),
    ("prefix_dense_intermediate_size", Read),
    ("prefix_dense_sliding_window_pattern", Read),
    ("shared_expert_combination_strategy", Read),
];
