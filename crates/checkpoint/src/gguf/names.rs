//! What transformers calls the tensors of a GGUF file.

use crate::header::HeaderEntry;

/// Tensors of the whole model.
const WHOLE: &[(&str, &str)] =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// That of LFM2 behind all blocks, by its names there: llama.cpp has had two.
const EMBEDDING_NORMS: [&str; 2] = ["token_embd_norm", "output_norm"];

/// Those whose experts for all tokens are one block.
const SHARED_EXPERTS: &str = "deepseek2 glm4moe glm-dsa dots1 ernie4_5-moe";

/// Tensors of a block, behind its number. Of two rows of a name the first counts whose architectures are none or have that of
/// the file.
const OF_BLOCK: &[(&str, &str, &str)] = &[
    ("lfm2", "attn_norm", "operator_norm"),
    ("lfm2", "attn_output", "self_attn.out_proj"),
    ("lfm2", "attn_q_norm", "self_attn.q_layernorm"),
    ("lfm2", "attn_k_norm", "self_attn.k_layernorm"),
    ("lfm2", "shortconv.conv", SHORT_TAPS),
    ("lfm2", "shortconv.in_proj", "conv.in_proj"),
    ("lfm2", "shortconv.out_proj", "conv.out_proj"),
    ("lfm2", "ffn_norm", "ffn_norm"),
    ("lfm2", "ffn_gate", "feed_forward.w1"),
    ("lfm2", "ffn_up", "feed_forward.w3"),
    ("lfm2", "ffn_down", "feed_forward.w2"),
    ("lfm2", "ffn_gate_inp", "feed_forward.gate"),
    ("lfm2", "exp_probs_b", EXPERT_BIAS),
    ("", "attn_norm", "input_layernorm"),
    ("", "attn_q", "self_attn.q_proj"),
    ("", "attn_k", "self_attn.k_proj"),
    ("", "attn_v", "self_attn.v_proj"),
    ("phi3", "attn_qkv", "self_attn.qkv_proj"),
    ("", "attn_qkv", "linear_attn.in_proj_qkv"),
    ("", "attn_gate", "linear_attn.in_proj_z"),
    ("", "ssm_in", "linear_attn.in_proj_qkvz"),
    ("", "ssm_ba", "linear_attn.in_proj_ba"),
    ("", "ssm_beta", "linear_attn.in_proj_b"),
    ("", "ssm_alpha", "linear_attn.in_proj_a"),
    ("", "ssm_conv1d", TAPS),
    ("", "ssm_dt", FORGET_BIAS),
    ("", "ssm_norm", "linear_attn.norm"),
    ("", "ssm_out", "linear_attn.out_proj"),
    ("", "attn_output", "self_attn.o_proj"),
    ("", "attn_q_a", "self_attn.q_a_proj"),
    ("", "attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("", "attn_q_b", "self_attn.q_b_proj"),
    ("", "attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("", "attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("", "attn_kv_b", "self_attn.kv_b_proj"),
    ("", "attn_k_b", KEYS_OF_HEADS),
    ("", "attn_v_b", VALUES_OF_HEADS),
    ("", "indexer.attn_k", "self_attn.indexer.wk"),
    ("", "indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("", "indexer.k_norm", "self_attn.indexer.k_norm"),
    ("", "indexer.proj", "self_attn.indexer.weights_proj"),
    ("hunyuan-dense hunyuan-moe", "attn_q_norm", "self_attn.query_layernorm"),
    ("hunyuan-dense hunyuan-moe", "attn_k_norm", "self_attn.key_layernorm"),
    ("", "attn_q_norm", "self_attn.q_norm"),
    ("", "attn_k_norm", "self_attn.k_norm"),
    ("gpt-oss", "attn_sinks", SINKS),
    ("glm4", "post_attention_norm", "post_self_attn_layernorm"),
    ("", "post_attention_norm", "post_attention_layernorm"),
    ("gemma2 gemma3", "ffn_norm", "pre_feedforward_layernorm"),
    ("", "ffn_norm", "post_attention_layernorm"),
    ("glm4", "post_ffw_norm", "post_mlp_layernorm"),
    ("", "post_ffw_norm", "post_feedforward_layernorm"),
    ("", "ffn_gate", "mlp.gate_proj"),
    ("phi3 glm4", "ffn_up", "mlp.gate_up_proj"),
    ("starcoder2", "ffn_up", "mlp.c_fc"),
    ("starcoder2", "ffn_down", "mlp.c_proj"),
    ("", "ffn_up", "mlp.up_proj"),
    ("", "ffn_down", "mlp.down_proj"),
    ("llama minimax-m2", "ffn_gate_inp", "block_sparse_moe.gate"),
    ("minimax-m2", "exp_probs_b", CORRECTION_OF_BLOCK),
    ("ernie4_5-moe", "exp_probs_b", CORRECTION_OF_STATICS),
    ("gpt-oss", "ffn_gate_inp", "mlp.router"),
    ("hunyuan-moe", "ffn_gate_inp", "mlp.gate.wg"),
    ("", "ffn_gate_inp", "mlp.gate"),
    ("", "exp_probs_b", CORRECTION),
    (SHARED_EXPERTS, "ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("hunyuan-moe", "ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    (SHARED_EXPERTS, "ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("hunyuan-moe", "ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    (SHARED_EXPERTS, "ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("hunyuan-moe", "ffn_down_shexp", "mlp.shared_mlp.down_proj"),
    ("", "ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("", "ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("", "ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("", "ffn_gate_inp_shexp", SHARED_GATE),
];

/// A parameter of its own in transformers, and not of a layer.
const SINKS: &str = "self_attn.sinks";

/// The same, of linear attention.
const FORGET_BIAS: &str = "linear_attn.dt_bias";
const RATES: &str = "linear_attn.A_log";

/// A matrix, whose rows are each a channel's in transformers.
const TAPS: &str = "linear_attn.conv1d";
/// The same, of a short convolution.
const SHORT_TAPS: &str = "conv.conv";

/// The same, of the experts' block.
const EXPERT_BIAS: &str = "feed_forward.expert_bias";

/// The same with another name.
const CORRECTION_OF_BLOCK: &str = "block_sparse_moe.e_score_correction_bias";

/// The same, which is a matrix of one row in transformers.
const CORRECTION_OF_STATICS: &str = "mlp.moe_statics.e_score_correction_bias";

/// The same, of a router.
const CORRECTION: &str = "mlp.gate.e_score_correction_bias";

/// Matrices of all heads, one for each, which are one matrix in the module: one below the other.
const KEYS_OF_HEADS: &str = "self_attn.kv_b_proj.keys";
const VALUES_OF_HEADS: &str = "self_attn.kv_b_proj.values";

/// A row of weights, which is a matrix of one row in transformers.
const SHARED_GATE: &str = "mlp.shared_expert_gate";

/// The experts of a block, which are one tensor: what each is in transformers, before and behind its number.
const EXPERTS: &[(&str, &str, [&str; 2])] = &[
    ("llama minimax-m2", "ffn_gate_exps", ["block_sparse_moe.experts", "w1"]),
    ("llama minimax-m2", "ffn_up_exps", ["block_sparse_moe.experts", "w3"]),
    ("llama minimax-m2", "ffn_down_exps", ["block_sparse_moe.experts", "w2"]),
    ("lfm2", "ffn_gate_exps", ["feed_forward.experts", "w1"]),
    ("lfm2", "ffn_up_exps", ["feed_forward.experts", "w3"]),
    ("lfm2", "ffn_down_exps", ["feed_forward.experts", "w2"]),
    ("", "ffn_gate_exps", ["mlp.experts", "gate_proj"]),
    ("", "ffn_up_exps", ["mlp.experts", "up_proj"]),
    ("", "ffn_down_exps", ["mlp.experts", "down_proj"]),
];

/// The most tensors that those of a file are cut into. The largest models have some 50,000.
const MOST_EXPERTS: usize = 1 << 20;

/// What is read into the configuration, and is no weight.
pub(super) const ROPE_FREQUENCIES: &str = "rope_freqs.weight";
/// The same, for texts up to the context first trained for and for longer ones.
pub(super) const ROPE_FACTORS: [&str; 2] =
    ["rope_factors_short.weight", "rope_factors_long.weight"];

/// The tensors under the names of transformers; those that have none there keep theirs.
pub(super) fn renamed(architecture: &str, tensors: &[HeaderEntry]) -> Vec<HeaderEntry> {
    // With or without experts.
    let architecture = if architecture == "lfm2moe" { "lfm2" } else { architecture };
    let is_weight = |entry: &&HeaderEntry| {
        entry.name != ROPE_FREQUENCIES && !ROPE_FACTORS.contains(&&*entry.name)
    };
    let mut renamed = Vec::with_capacity(tensors.len());
    for entry in tensors.iter().filter(is_weight) {
        let left = MOST_EXPERTS.saturating_sub(renamed.len());
        match experts(architecture, entry, left) {
            Some(experts) => renamed.extend(experts),
            None => renamed.push(renamed_one(architecture, entry).unwrap_or_else(|| entry.clone())),
        }
    }
    renamed
}

fn renamed_one(architecture: &str, entry: &HeaderEntry) -> Option<HeaderEntry> {
    let (module, end) = entry.name.rsplit_once('.')?;
    if architecture == "lfm2" && EMBEDDING_NORMS.contains(&module) {
        return Some(HeaderEntry { name: format!("model.embedding_norm.{end}"), ..entry.clone() });
    }
    if let Some((_, theirs)) = WHOLE.iter().find(|(ours, _)| *ours == module) {
        return Some(HeaderEntry { name: format!("{theirs}.{end}"), ..entry.clone() });
    }
    if let Some(name) = older_expert(architecture, &entry.name) {
        return Some(HeaderEntry { name, ..entry.clone() });
    }
    let block = module.strip_prefix("blk.").and_then(|number| number.parse::<usize>().ok());
    if let Some(number) = block.filter(|_| end == "ssm_a") {
        return Some(HeaderEntry {
            name: format!("model.layers.{number}.{RATES}"),
            ..entry.clone()
        });
    }
    if let Some((number, layer)) = further_layer(&entry.name) {
        return Some(HeaderEntry {
            name: format!("model.layers.{number}.{layer}"),
            ..entry.clone()
        });
    }
    let (number, theirs) = of_block(architecture, module, OF_BLOCK)?;
    let name = match theirs {
        SINKS
        | CORRECTION
        | CORRECTION_OF_BLOCK
        | CORRECTION_OF_STATICS
        | EXPERT_BIAS
        | FORGET_BIAS
        | KEYS_OF_HEADS
        | VALUES_OF_HEADS => {
            format!("model.layers.{number}.{theirs}")
        }
        _ => format!("model.layers.{number}.{theirs}.{end}"),
    };
    let shape = match entry.shape[..] {
        [width] if [SHARED_GATE, CORRECTION_OF_STATICS].contains(&theirs) => vec![1, width],
        [channels, taps] if [TAPS, SHORT_TAPS].contains(&theirs) => vec![channels, 1, taps],
        [heads, rows, columns] if [KEYS_OF_HEADS, VALUES_OF_HEADS].contains(&theirs) => {
            vec![heads.checked_mul(rows)?, columns]
        }
        _ => entry.shape.clone(),
    };
    Some(HeaderEntry { name, shape, ..entry.clone() })
}

/// What only a layer behind the last one has, which guesses further tokens.
fn further_layer(name: &str) -> Option<(usize, &str)> {
    let (number, layer) = name.strip_prefix("blk.")?.split_once('.')?;
    layer.starts_with("nextn.").then_some((number.parse().ok()?, layer))
}

/// The number of a block, and what a module of it is in transformers.
fn of_block<T: Copy>(
    architecture: &str,
    module: &str,
    names: &[(&str, &str, T)],
) -> Option<(usize, T)> {
    let (number, module) = module.strip_prefix("blk.")?.split_once('.')?;
    let number = number.parse().ok()?;
    let is_it = |(of, ours, _): &&(&str, &str, T)| {
        *ours == module && (of.is_empty() || of.split(' ').any(|of| of == architecture))
    };
    names.iter().find(is_it).map(|(.., theirs)| (number, *theirs))
}

/// The name of an expert's own tensor, as older files have it: `blk.0.ffn_gate.3.weight`.
fn older_expert(architecture: &str, name: &str) -> Option<String> {
    let (module, end) = name.rsplit_once('.')?;
    let (module, expert) = module.rsplit_once('.')?;
    let expert: usize = expert.parse().ok()?;
    let (number, [before, behind]) = of_block(architecture, &format!("{module}_exps"), EXPERTS)?;
    Some(format!("model.layers.{number}.{before}.{expert}.{behind}.{end}"))
}

/// The matrices `[rows, columns]` that a tensor `[experts, rows, columns]` is made of, one after the other, or the biases
/// of one of those, if it is one and they are not more than so many.
fn experts(architecture: &str, entry: &HeaderEntry, most: usize) -> Option<Vec<HeaderEntry>> {
    let (module, end) = entry.name.rsplit_once('.')?;
    let (number, [before, behind]) = of_block(architecture, module, EXPERTS)?;
    let (&count, shape) = entry.shape.split_first()?;
    if shape.len() != if end == "bias" { 1 } else { 2 } {
        return None;
    }
    let len = (entry.end - entry.start) / (count as u64).max(1);
    if count == 0 || count > most || len * count as u64 != entry.end - entry.start {
        return None;
    }
    let one = |expert: usize| HeaderEntry {
        name: format!("model.layers.{number}.{before}.{expert}.{behind}.{end}"),
        dtype: entry.dtype,
        shape: shape.to_vec(),
        start: entry.start + expert as u64 * len,
        end: entry.start + (expert as u64 + 1) * len,
    };
    Some((0..count).map(one).collect())
}
