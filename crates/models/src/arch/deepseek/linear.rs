//! Fields and names that Kimi Linear and Ling 3 have beside those of DeepSeek.

use super::super::mamba_fields::RATES_NEGATED;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::KnownField;

/// Kimi Linear as it is published, and as transformers has it in memory.
pub(super) const KIMI_NAMES: &[(&str, &str)] = &[
    (r"\.mlp\.experts\.(\d+)\.gate_proj\.", ".block_sparse_moe.experts.$1.w1."),
    (r"\.mlp\.experts\.(\d+)\.up_proj\.", ".block_sparse_moe.experts.$1.w3."),
    (r"\.mlp\.experts\.(\d+)\.down_proj\.", ".block_sparse_moe.experts.$1.w2."),
    (r"\.mlp\.", ".block_sparse_moe."),
    (FORGET_GATE, WITH_MODULE),
];

/// The same of Ling 3.
pub(super) const LING_NAMES: &[(&str, &str)] = &[
    (r"^model\.embed_tokens\.", "model.word_embeddings."),
    (r"\.self_attn\.o_proj\.", ".attention.dense."),
    (r"\.self_attn\.", ".attention."),
    (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.gate.expert_bias"),
    (FORGET_GATE, WITH_MODULE),
];

/// What says how fast something is forgotten, in transformers within a module.
const FORGET_GATE: &str = r"\.self_attn\.(f_a_proj\.|f_b_proj\.|f_proj\.|dt_bias$|A_log$)";
const WITH_MODULE: &str = ".self_attn.forget_gate.$1";

/// Of both.
pub(super) const BOTH: &[KnownField] = &[
    ("linear_conv_kernel_dim", Read),
    ("linear_head_dim", Read),
    ("linear_num_heads", Read),
    ("model_max_length", Read),
    ("moe_renormalize", Read),
    ("num_expert_group", Read),
    ("num_experts_per_token", Read),
    ("num_shared_experts", Read),
];

pub(super) const KIMI: &[KnownField] = &[
    ("linear_attn_config", Read),
    // As GGUF files have it.
    (RATES_NEGATED, Read),
    ("mla_use_nope", Effect::ON),
    ("moe_router_activation_func", Only(&["\"sigmoid\""])),
    ("rope_interleave", Harmless),
    // As many groups as there are.
    ("use_grouped_topk", Harmless),
];

pub(super) const LING: &[KnownField] = &[
    ("kda_lower_bound", Read),
    ("kda_safe_gate", Read),
    ("layer_group_size", Read),
    ("max_window_layers", Harmless),
    ("moe_router_enable_expert_bias", Effect::ON),
    ("mtp_loss_scaling_factor", Harmless),
    ("norm_head", Effect::OFF),
    ("output_dropout", Harmless),
    ("router_dtype", Harmless),
    ("score_function", Only(&["\"sigmoid\""])),
    ("short_conv_kernel_size", Read),
    ("use_bias", Effect::OFF),
    ("use_qkv_bias", Effect::OFF),
    ("use_rmsnorm", Effect::ON),
];
