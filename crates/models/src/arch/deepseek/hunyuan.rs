//! Fields and names that Hunyuan 3 and 4 have beside those of DeepSeek.

use super::super::gemma3::TEXT_PART;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::KnownField;

/// The text part of a Hunyuan 4 that sees images too.
pub(in super::super) const HY_V4_PART: &str = "hy_v4_vl_text";

/// Whether it is a Hunyuan 4.
pub(super) fn is_hy_v4(model_type: &str) -> bool {
    ["hy_v4", HY_V4_PART].contains(&model_type)
}

/// Hunyuan 3 as it is published.
pub(super) const HY_NAMES: &[(&str, &str)] = &[
    (r"\.mlp\.gate\.weight$", ".mlp.router.gate.weight"),
    (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.expert_bias"),
    (r"\.mlp\.shared_experts\.", ".mlp.shared_mlp."),
];

pub(super) const HY: &[KnownField] = &[
    // Sums are f32 anyway.
    ("enable_moe_fp32_combine", Harmless),
    ("first_k_dense_replace", Effect::ONE),
    ("mlp_layer_types", Read),
    ("moe_layer_freq", Effect::ONE),
    ("moe_router_enable_expert_bias", Effect::ON),
    ("moe_router_use_sigmoid", Effect::ON),
    ("num_shared_experts", Read),
    ("qk_norm", Effect::ON),
    ("route_norm", Effect::ON),
    ("router_scaling_factor", Read),
];

/// Hunyuan 4's as transformers saves them, as its mapping also reads them, and as it has them in
/// memory.
pub(super) const HY_V4_NAMES: &[(&str, &str)] = &[
    (r"\.hc_attn_layer\.hc_", ".hc_pre.hc_attn_layer.hc_"),
    (r"\.hc_attn_layer\.hc_", ".hc_attn_layer.hc_pre.hc_"),
    (r"\.hc_attn_layer\.hc_", ".attn_hc."),
    (r"\.hc_mlp_layer\.hc_", ".hc_pre.hc_mlp_layer.hc_"),
    (r"\.hc_mlp_layer\.hc_", ".hc_mlp_layer.hc_pre.hc_"),
    (r"\.hc_mlp_layer\.hc_", ".ffn_hc."),
    (r"\.hc_head\.hc_", ".hc_pre.hc_head.hc_head_"),
    (r"\.hc_head\.hc_", ".hc_head.hc_pre.hc_head_"),
    (r"\.hc_head\.hc_", ".hc_head.hc_head_"),
    (r"\.self_attn\.sinks$", ".self_attn.learnable_sink_param"),
    (r"\.gate_proj\.", ".linear_gate."),
];

/// Of Hunyuan 4, beside those of DeepSeek-V3.2.
pub(super) const HY_V4: &[KnownField] = &[
    ("first_k_dense_replace", Effect::ONE),
    ("hc_eps", Read),
    ("hc_magnitude", Read),
    ("hc_mult", Read),
    ("indexer_types", Read),
    ("moe_layer_freq", Effect::ONE),
    // What weights began with.
    ("learnable_sink_init", Harmless),
    ("swiglu_limit", Read),
];

/// Of `text_config`, beside the fields of Hunyuan 4.
pub(in super::super) const HY_V4_TEXT: &[&[KnownField]] =
    &[&[("model_type", Only(&["\"hy_v4_vl_text\""]))], TEXT_PART];

/// Of the whole model.
pub(in super::super) const HY_V4_IMAGES: &[KnownField] = &[
    ("image_token_id", Harmless),
    ("text_config", Read),
    ("video_token_id", Harmless),
    ("vision_config", Harmless),
];

/// As it is published, and as transformers has it in memory.
pub(in super::super) const HY_V4_PARTS: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model.")],
    others: &["vit.", "model.vit.", "model.vision_tower.", "model.mtp_layers."],
};
