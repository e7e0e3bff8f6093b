//! Sarvam, and Param-2, which was published with the same names. Sarvam AI 2026
//! (<https://huggingface.co/sarvamai/sarvam-30b>), BharatGen 2026
//! (<https://huggingface.co/bharatgenai/Param2-17B-A2.4B-Thinking>).

use super::super::rms_config::{DEFAULTS, RmsConfig, RmsDefaults, field_of};
use super::absent::{Absent, LatentWidths};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{Fields, KnownField};

/// As they are published.
pub(super) const SARVAM_NAMES: &[(&str, &str)] = &[
    (r"^model\.embed_tokens\.", "model.word_embeddings."),
    (r"\.self_attn\.o_proj\.", ".attention.dense."),
    (r"\.self_attn\.q_norm\.", ".attention.query_layernorm."),
    (r"\.self_attn\.k_norm\.", ".attention.key_layernorm."),
    (r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.gate.expert_bias"),
];

/// The same whose projections are one in checkpoints.
pub(super) fn joined(fields: &Fields<'_>, config: RmsConfig) -> Result<RmsConfig, Error> {
    let bias = field_of(fields, ["attention_bias", "use_qkv_bias"])?;
    Ok(RmsConfig {
        attention_in_bias: fields.flag_or(bias, false)?,
        fused_projections: Some("model.layers.$1.attention.query_key_value."),
        ..config
    })
}

/// Of Sarvam with attention over a compressed cache, where it is not as in DeepSeek-V3.
pub(super) fn latent(v3: Absent) -> Absent {
    Absent {
        sizes: RmsDefaults {
            sizes: &[
                ("vocab_size", 262_144),
                ("hidden_size", 4096),
                ("intermediate_size", 16_384),
                ("num_hidden_layers", 32),
                ("num_attention_heads", 64),
            ],
            ..v3.sizes
        },
        experts: 128,
        dense: 1,
        groups: (1, 1),
        latent: LatentWidths { query_rank: None, ..v3.latent },
        ..v3
    }
}

/// The same of Sarvam with plain attention.
pub(super) fn plain(v3: Absent) -> Absent {
    Absent {
        sizes: RmsDefaults {
            sizes: &[
                ("vocab_size", 262_144),
                ("hidden_size", 4096),
                ("intermediate_size", 8192),
                ("num_hidden_layers", 19),
                ("num_attention_heads", 64),
            ],
            key_value_heads: Some(4),
            head_dim: Some(64),
            max_position_embeddings: 131_072,
            rope_theta: 8e6,
            ..DEFAULTS
        },
        experts: 128,
        per_token: Some(6),
        moe_intermediate_size: 1024,
        dense: 1,
        groups: (1, 1),
        ..v3
    }
}

/// The same of Param-2.
pub(super) fn param(v3: Absent) -> Absent {
    Absent {
        sizes: RmsDefaults {
            sizes: &[
                ("vocab_size", 128_000),
                ("hidden_size", 2048),
                ("intermediate_size", 9216),
                ("num_hidden_layers", 21),
                ("num_attention_heads", 32),
            ],
            key_value_heads: Some(8),
            head_dim: Some(64),
            max_position_embeddings: 32_768,
            rope_theta: 5e5,
            tie_word_embeddings: true,
            ..DEFAULTS
        },
        experts: 64,
        per_token: Some(6),
        shared: 2,
        dense: 1,
        groups: (1, 1),
        ..v3
    }
}

/// Beside those of others.
pub(super) const SARVAM: &[KnownField] = &[("num_shared_experts", Read), ("q_head_dim", Harmless)];

/// The same with plain attention.
pub(super) const SARVAM_MOE: &[KnownField] = &[
    ("max_window_layers", Harmless),
    ("moe_router_enable_expert_bias", Effect::ON),
    ("norm_head", Effect::OFF),
    ("num_shared_experts", Read),
    ("output_dropout", Harmless),
    ("router_dtype", Harmless),
    ("score_function", Only(&["\"sigmoid\""])),
    ("use_qkv_bias", Read),
    ("use_rmsnorm", Effect::ON),
];
