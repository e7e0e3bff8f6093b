//! What checkpoints call the tensors of DeepSeek-V4.

use outsize_core::{Error, Names};

use super::super::deepseek::RmsMoE;
use super::super::rms_config::ExpertsConfig;
use super::super::rms_layer::RmsFeedForward;

/// The names that transformers gives, and those of the published checkpoints.
pub(super) fn with_other_names(names: Names, experts: &ExpertsConfig) -> Result<Names, Error> {
    let names = RmsMoE::stacked(names, experts)?;
    let renamed = |names: Names, (pattern, with): &(&str, &str)| names.or_rename(pattern, with);
    let names = IN_MEMORY.iter().chain(OUTSIDE).try_fold(names, renamed)?;
    // What transformers saves has both: its own names outside of layers, and theirs inside.
    ["", "model."].into_iter().try_fold(names, |names, prefix| {
        OF_LAYERS.iter().try_fold(names, |names, (pattern, with)| {
            let pattern = format!(r"^model\.layers\.(\d+)\.{pattern}");
            names.or_rename(&pattern, &format!("{prefix}layers.$1.{with}"))
        })
    })
}

/// The projections of groups of heads, which are one in checkpoints.
pub(super) fn with_groups(names: Names, groups: usize) -> Result<Names, Error> {
    let one = |names: Names, pattern, with| names.stacked(pattern, with, [0, 1], groups);
    let module = r"\.self_attn\.o_a_proj\.(?<n>\d+)\.weight$";
    let names = one(names, module, ".self_attn.o_a_proj.weight")?;
    let module = r"^model\.layers\.(\d+)\.self_attn\.o_a_proj\.(?<n>\d+)\.weight$";
    let names = one(names, module, "layers.$1.attn.wo_a.weight")?;
    one(names, module, "model.layers.$1.attn.wo_a.weight")
}

/// Those that transformers has in memory.
const IN_MEMORY: &[(&str, &str)] = &[
    (r"\.(attn|ffn)_hc\.hc_", ".${1}_hc."),
    (r"\.self_attn\.indexer\.compressor\.", ".self_attn.compressor.indexer."),
    (r"\.self_attn\.indexer\.q_b_proj\.", ".self_attn.compressor.indexer.q_b_proj."),
    (r"\.self_attn\.indexer\.weights_proj\.", ".self_attn.compressor.indexer.scorer.weights_proj."),
];

const OUTSIDE: &[(&str, &str)] = &[
    (r"^model\.embed_tokens\.", "embed."),
    (r"^lm_head\.", "head."),
    (r"^model\.norm\.", "norm."),
    (r"^model\.hc_head\.hc_", "hc_head_"),
];

const OF_LAYERS: &[(&str, &str)] = &[
    (r"(attn|ffn)_hc\.hc_", "hc_${2}_"),
    (r"input_layernorm\.", "attn_norm."),
    (r"post_attention_layernorm\.", "ffn_norm."),
    (r"self_attn\.sinks$", "attn.attn_sink"),
    (r"self_attn\.q_a_proj\.", "attn.wq_a."),
    (r"self_attn\.q_a_norm\.", "attn.q_norm."),
    (r"self_attn\.q_b_proj\.", "attn.wq_b."),
    (r"self_attn\.kv_proj\.", "attn.wkv."),
    (r"self_attn\.kv_norm\.", "attn.kv_norm."),
    // As transformers saves it.
    (r"self_attn\.kv_norm\.", "attn.norm."),
    (r"self_attn\.o_b_proj\.", "attn.wo_b."),
    (r"self_attn\.((?:indexer\.)?compressor)\.kv_proj\.", "attn.$2.wkv."),
    (r"self_attn\.((?:indexer\.)?compressor)\.gate_proj\.", "attn.$2.wgate."),
    (r"self_attn\.((?:indexer\.)?compressor)\.position_bias$", "attn.$2.ape"),
    (r"self_attn\.((?:indexer\.)?compressor)\.kv_norm\.", "attn.$2.norm."),
    (r"self_attn\.indexer\.q_b_proj\.", "attn.indexer.wq_b."),
    (r"self_attn\.indexer\.weights_proj\.", "attn.indexer.weights_proj."),
    (r"mlp\.gate\.e_score_correction_bias$", "ffn.gate.bias"),
    (r"mlp\.gate\.", "ffn.gate."),
    (r"mlp\.(experts\.\d+|shared_experts)\.gate_proj\.", "ffn.$2.w1."),
    (r"mlp\.(experts\.\d+|shared_experts)\.down_proj\.", "ffn.$2.w2."),
    (r"mlp\.(experts\.\d+|shared_experts)\.up_proj\.", "ffn.$2.w3."),
];
