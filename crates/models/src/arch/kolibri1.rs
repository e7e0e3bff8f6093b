//! Kolibri 1: norms before and behind attention and experts, which are chosen by what they score
//! and then share by sigmoids; layers with a sliding window, which alone rotate. Aleph Alpha 2026
//! (<https://huggingface.co/Aleph-Alpha/Kolibri-1>).

use super::exaone4;
use super::expert_fields::EXPERTS;
use super::rms_config::{self, BlockNorms, DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, MAX_INTERMEDIATE, sliding_window};
use crate::layers::Shares;

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 128_000),
        ("hidden_size", 2560),
        // Of no layer: all have experts.
        ("intermediate_size", 512),
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
    let config = RmsConfig::read(fields, &ABSENT)?.with_rope(fields)?;
    let normalized = fields.flag_or("norm_topk_prob", false)?;
    let names = ["num_experts", "num_local_experts"];
    let mut config = config.with_experts(fields, names, (384, 6), normalized)?;
    if let Some(experts) = &mut config.experts {
        experts.intermediate_size = size("moe_intermediate_size")?;
        experts.shared_intermediate_size = Some(size("shared_expert_intermediate_size")?);
        experts.routing.shares = Shares::SigmoidOfChosen;
        experts.is_corrected = true;
        experts.renamed = NAMES;
    }
    let config = exaone4::with_windows(fields, config, sliding_window(fields, 513)?, 5)?;
    Ok(RmsConfig { norms: BlockNorms::AroundGlm, ..config })
}

pub(super) const FIELDS: &[&[KnownField]] = &[KOLIBRI1, EXPERTS, rms_config::FIELDS];

const KOLIBRI1: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("moe_intermediate_size", Read),
    ("norm_topk_prob", Read),
    ("shared_expert_intermediate_size", Read),
    ("sliding_window", Read),
];
