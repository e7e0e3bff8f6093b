//! What transformers calls the tensors of a GGUF file.

use crate::header::HeaderEntry;

/// Tensors of the whole model.
const WHOLE: &[(&str, &str)] =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Tensors of a block, behind its number. Of two rows of a name the first whose architecture is empty or that of the file
/// counts.
const OF_BLOCK: &[(&str, &str, &str)] = &[
    ("", "attn_norm", "input_layernorm"),
    ("", "attn_q", "self_attn.q_proj"),
    ("", "attn_k", "self_attn.k_proj"),
    ("", "attn_v", "self_attn.v_proj"),
    ("", "attn_qkv", "self_attn.qkv_proj"),
    ("", "attn_output", "self_attn.o_proj"),
    ("", "attn_q_norm", "self_attn.q_norm"),
    ("", "attn_k_norm", "self_attn.k_norm"),
    ("", "post_attention_norm", "post_attention_layernorm"),
    ("gemma3", "ffn_norm", "pre_feedforward_layernorm"),
    ("", "ffn_norm", "post_attention_layernorm"),
    ("", "post_ffw_norm", "post_feedforward_layernorm"),
    ("", "ffn_gate", "mlp.gate_proj"),
    ("phi3", "ffn_up", "mlp.gate_up_proj"),
    ("", "ffn_up", "mlp.up_proj"),
    ("", "ffn_down", "mlp.down_proj"),
];

/// What is read into the configuration, and is no weight.
pub(super) const ROPE_FREQUENCIES: &str = "rope_freqs.weight";
/// The same, for texts up to the context first trained for and for longer ones.
pub(super) const ROPE_FACTORS: [&str; 2] =
    ["rope_factors_short.weight", "rope_factors_long.weight"];

/// The tensors under the names of transformers; those that have none there keep theirs.
pub(super) fn renamed(architecture: &str, tensors: &[HeaderEntry]) -> Vec<HeaderEntry> {
    let is_weight = |entry: &&HeaderEntry| {
        entry.name != ROPE_FREQUENCIES && !ROPE_FACTORS.contains(&&*entry.name)
    };
    let tensors = tensors.iter().filter(is_weight).cloned();
    let tensors = tensors.map(|entry| HeaderEntry {
        name: renamed_one(architecture, &entry.name).unwrap_or(entry.name),
        ..entry
    });
    tensors.collect()
}

fn renamed_one(architecture: &str, name: &str) -> Option<String> {
    let (module, end) = name.rsplit_once('.')?;
    if let Some((_, theirs)) = WHOLE.iter().find(|(ours, _)| *ours == module) {
        return Some(format!("{theirs}.{end}"));
    }
    let (number, module) = module.strip_prefix("blk.")?.split_once('.')?;
    let number: usize = number.parse().ok()?;
    let (_, _, theirs) = OF_BLOCK
        .iter()
        .find(|(of, ours, _)| *ours == module && (of.is_empty() || *of == architecture))?;
    Some(format!("model.layers.{number}.{theirs}.{end}"))
}
