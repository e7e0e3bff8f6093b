//! Fields and names that A.X-K2 has beside those of DeepSeek-V3.2. SK Telecom 2026
//! (<https://huggingface.co/skt/A.X-K2>).

use super::super::rms_config::RmsConfig;
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, MAX_HIDDEN};

/// The same with the gates of its norms, and experts that are chosen as there.
pub(super) fn with_gates(fields: &Fields<'_>, mut config: RmsConfig) -> Result<RmsConfig, Error> {
    let has_groups = |field: &str| fields.get(field).is_some();
    if has_groups("n_group") != has_groups("topk_group") {
        let expected = "it and `n_group` must be set together".to_owned();
        return Err(fields.refuse("topk_group", expected));
    }
    config.norm_gate_rank = Some(fields.size_or("gated_norm_rank", 16, MAX_HIDDEN)?);
    let groups = config.experts.as_mut().and_then(|experts| experts.routing.groups.as_mut());
    if let Some(groups) = groups {
        groups.others = 0.0;
    }
    Ok(config)
}

pub(super) const AXK2: &[KnownField] = &[("gated_norm_rank", Read)];

/// As it is published, and as transformers has it in memory.
pub(super) const AXK2_NAMES: &[(&str, &str)] = &[
    (r"\.(input|post_attention)_layernorm\.weight$", ".${1}_layernorm.norm.weight"),
    (r"\.(input|post_attention)_gate\.fc1\.", ".${1}_layernorm.W_down."),
    (r"\.(input|post_attention)_gate\.fc2\.", ".${1}_layernorm.W_up."),
    (r"\.(input|post_attention)_gate\.", ".${1}_layernorm.mlp."),
    (r"\.self_attn\.q_b_proj\.", ".self_attn.q_gate_proj."),
];
