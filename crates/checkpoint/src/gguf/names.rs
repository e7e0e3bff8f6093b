//! What transformers calls the tensors of a GGUF file.

use crate::header::HeaderEntry;

/// Tensors of the whole model, as those of blocks.
const WHOLE: &[(&str, &str, &str)] = &[
    ("mamba mamba2", "token_embd", "backbone.embeddings"),
    (NEMOTRON, "token_embd", "model.embeddings"),
    ("deepseek4", "token_embd", "embed"),
    ("deepseek4", "output_norm", "norm"),
    ("deepseek4", "output", "head"),
    ("", "token_embd", "model.embed_tokens"),
    // llama.cpp has had two names of it.
    ("lfm2", "token_embd_norm", "model.embedding_norm"),
    ("lfm2", "output_norm", "model.embedding_norm"),
    ("mamba mamba2", "output_norm", "backbone.norm_f"),
    (NEMOTRON, "output_norm", "model.norm_f"),
    ("jamba falcon-h1", "output_norm", "model.final_layernorm"),
    ("phi2", "output_norm", "model.final_layernorm"),
    ("", "output_norm", "model.norm"),
    ("", "output", "lm_head"),
    ("deepseek4", "output_hc_fn.weight", "hc_head_fn"),
    ("deepseek4", "output_hc_base.weight", "hc_head_base"),
    ("deepseek4", "output_hc_scale.weight", "hc_head_scale"),
    (GEMMA_WITH_INPUTS, "per_layer_token_embd", "model.embed_tokens_per_layer"),
    (GEMMA_WITH_INPUTS, "per_layer_model_proj", "model.per_layer_model_projection"),
    (GEMMA_WITH_INPUTS, "per_layer_proj_norm", "model.per_layer_projection_norm"),
];

/// Matrices of the whole model in one tensor.
const STACKS: &[(&str, &str, &str)] = &[
    ("gemma3n", "altup_proj", "model.altup_projections"),
    ("gemma3n", "altup_unembd_proj", "model.altup_unembed_projections"),
];

/// Those that call an MLP and experts so.
const FEED_FORWARD: &str = "jamba falcon-h1 llama4";

/// Granite with experts, or with Mamba-2.
const GRANITE: &str = "granitemoe granitehybrid";

/// Those whose layers have inputs of their own.
const GEMMA_WITH_INPUTS: &str = "gemma3n gemma4";

/// Those whose experts for all tokens are one block.
const SHARED_EXPERTS: &str = "deepseek2 deepseek32 glm4moe glm-dsa dots1 ernie4_5-moe afmoe exaone-moe cohere2moe \
    step35";

/// Those whose norms are around attention and the MLP, by names of their own.
const AFMOE: &str = "afmoe";

/// Those of Nemotron-H and of models of a state space alone.
const NEMOTRON: &str = "nemotron_h nemotron_h_moe mamba mamba2";

/// Those with attention and a state space, each by a name of its own.
const HYBRID: &str = "jamba falcon-h1 granitehybrid";

/// Tensors of a block, behind its number: modules, and with what ends their names, if anything, parameters that are no module's in
/// transformers. Of two rows of a name the first counts whose architectures are none or have that of the file, a parameter's before
/// a module's.
const OF_BLOCK: &[(&str, &str, &str)] = &[
    ("lfm2", "attn_norm", "operator_norm"),
    ("lfm2", "attn_output", "self_attn.out_proj"),
    ("lfm2", "attn_q_norm", "self_attn.q_layernorm"),
    ("lfm2", "attn_k_norm", "self_attn.k_layernorm"),
    ("lfm2", "shortconv.conv", "conv.conv"),
    ("lfm2", "shortconv.in_proj", "conv.in_proj"),
    ("lfm2", "shortconv.out_proj", "conv.out_proj"),
    ("lfm2", "ffn_norm", "ffn_norm"),
    ("lfm2", "ffn_gate", "feed_forward.w1"),
    ("lfm2", "ffn_up", "feed_forward.w3"),
    ("lfm2", "ffn_down", "feed_forward.w2"),
    ("lfm2", "ffn_gate_inp", "feed_forward.gate"),
    ("lfm2", "exp_probs_b.bias", "feed_forward.expert_bias"),
    (NEMOTRON, "attn_norm", "norm"),
    (NEMOTRON, "attn_q", "mixer.q_proj"),
    (NEMOTRON, "attn_k", "mixer.k_proj"),
    (NEMOTRON, "attn_v", "mixer.v_proj"),
    (NEMOTRON, "attn_output", "mixer.o_proj"),
    (NEMOTRON, "ssm_in", "mixer.in_proj"),
    (NEMOTRON, "ssm_conv1d", "mixer.conv1d"),
    (NEMOTRON, "ssm_x", "mixer.x_proj"),
    ("mamba", "ssm_dt.bias", "mixer.dt_proj.bias"),
    ("mamba", "ssm_dt", "mixer.dt_proj"),
    (NEMOTRON, "ssm_dt.bias", "mixer.dt_bias"),
    (NEMOTRON, "ssm_a.", "mixer.A_log"),
    (NEMOTRON, "ssm_d.", "mixer.D"),
    (NEMOTRON, "ssm_norm", "mixer.norm"),
    (NEMOTRON, "ssm_out", "mixer.out_proj"),
    (NEMOTRON, "ffn_up", "mixer.up_proj"),
    (NEMOTRON, "ffn_down", "mixer.down_proj"),
    (NEMOTRON, "ffn_gate_inp", "mixer.gate"),
    (NEMOTRON, "exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
    (NEMOTRON, "ffn_up_shexp", "mixer.shared_experts.up_proj"),
    (NEMOTRON, "ffn_down_shexp", "mixer.shared_experts.down_proj"),
    (NEMOTRON, "ffn_latent_down", "mixer.fc1_latent_proj"),
    (NEMOTRON, "ffn_latent_up", "mixer.fc2_latent_proj"),
    (HYBRID, "ssm_in", "mamba.in_proj"),
    (HYBRID, "ssm_conv1d", "mamba.conv1d"),
    (HYBRID, "ssm_x", "mamba.x_proj"),
    ("jamba", "ssm_dt.bias", "mamba.dt_proj.bias"),
    ("jamba", "ssm_dt", "mamba.dt_proj"),
    (HYBRID, "ssm_dt.bias", "mamba.dt_bias"),
    (HYBRID, "ssm_dt_norm", "mamba.dt_layernorm"),
    (HYBRID, "ssm_b_norm", "mamba.b_layernorm"),
    (HYBRID, "ssm_c_norm", "mamba.c_layernorm"),
    (HYBRID, "ssm_a.", "mamba.A_log"),
    (HYBRID, "ssm_d.", "mamba.D"),
    (HYBRID, "ssm_norm", "mamba.norm"),
    (HYBRID, "ssm_out", "mamba.out_proj"),
    ("jamba falcon-h1", "ffn_norm", "pre_ff_layernorm"),
    ("jamba llama4", "ffn_gate_inp", "feed_forward.router"),
    (FEED_FORWARD, "ffn_gate", "feed_forward.gate_proj"),
    (FEED_FORWARD, "ffn_up", "feed_forward.up_proj"),
    (FEED_FORWARD, "ffn_down", "feed_forward.down_proj"),
    ("llama4", "ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
    ("llama4", "ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
    ("llama4", "ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
    ("granitehybrid", "ffn_gate", "shared_mlp.gate_proj"),
    ("granitehybrid", "ffn_up", "shared_mlp.up_proj"),
    ("granitehybrid", "ffn_down", "shared_mlp.down_proj"),
    (GRANITE, "ffn_gate_shexp", "shared_mlp.gate_proj"),
    (GRANITE, "ffn_up_shexp", "shared_mlp.up_proj"),
    (GRANITE, "ffn_down_shexp", "shared_mlp.down_proj"),
    (GRANITE, "ffn_gate_inp", "block_sparse_moe.router.layer"),
    ("kimi-linear", "ssm_conv1d_q", "self_attn.q_conv1d"),
    ("kimi-linear", "ssm_conv1d_k", "self_attn.k_conv1d"),
    ("kimi-linear", "ssm_conv1d_v", "self_attn.v_conv1d"),
    ("kimi-linear", "ssm_f_a", "self_attn.f_a_proj"),
    ("kimi-linear", "ssm_f_b", "self_attn.f_b_proj"),
    ("kimi-linear", "ssm_g_a", "self_attn.g_a_proj"),
    ("kimi-linear", "ssm_g_b", "self_attn.g_b_proj"),
    ("kimi-linear", "ssm_beta", "self_attn.b_proj"),
    ("kimi-linear", "ssm_dt.bias", "self_attn.dt_bias"),
    ("kimi-linear", "ssm_a.", RATES_OF_KIMI),
    ("kimi-linear", "ffn_gate_inp", "block_sparse_moe.gate"),
    ("kimi-linear", "exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"),
    ("kimi-linear", "ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"),
    ("kimi-linear", "ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"),
    ("kimi-linear", "ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"),
    ("kimi-linear", "ssm_norm", "self_attn.o_norm"),
    ("deepseek4", "attn_norm", "attn_norm"),
    ("deepseek4", "attn_q_a", "attn.wq_a"),
    ("deepseek4", "attn_q_b", "attn.wq_b"),
    ("deepseek4", "attn_sinks.weight", "attn.attn_sink"),
    ("deepseek4", "attn_q_a_norm", "attn.q_norm"),
    ("deepseek4", "attn_kv", "attn.wkv"),
    ("deepseek4", "attn_kv_a_norm", "attn.kv_norm"),
    ("deepseek4", "attn_output_a", "attn.wo_a"),
    ("deepseek4", "attn_output_b", "attn.wo_b"),
    ("deepseek4", "attn_compressor_ape.weight", "attn.compressor.ape"),
    ("deepseek4", "attn_compressor_kv", "attn.compressor.wkv"),
    ("deepseek4", "attn_compressor_gate", "attn.compressor.wgate"),
    ("deepseek4", "attn_compressor_norm", "attn.compressor.norm"),
    ("deepseek4", "indexer_compressor_ape.weight", "attn.indexer.compressor.ape"),
    ("deepseek4", "indexer_compressor_kv", "attn.indexer.compressor.wkv"),
    ("deepseek4", "indexer_compressor_gate", "attn.indexer.compressor.wgate"),
    ("deepseek4", "indexer_compressor_norm", "attn.indexer.compressor.norm"),
    ("deepseek4", "indexer.attn_q_b", "attn.indexer.wq_b"),
    ("deepseek4", "indexer.proj", "attn.indexer.weights_proj"),
    ("deepseek4", "hc_attn_base.weight", "hc_attn_base"),
    ("deepseek4", "hc_attn_fn.weight", "hc_attn_fn"),
    ("deepseek4", "hc_attn_scale.weight", "hc_attn_scale"),
    ("deepseek4", "hc_ffn_base.weight", "hc_ffn_base"),
    ("deepseek4", "hc_ffn_fn.weight", "hc_ffn_fn"),
    ("deepseek4", "hc_ffn_scale.weight", "hc_ffn_scale"),
    ("deepseek4", "ffn_norm", "ffn_norm"),
    ("deepseek4", "ffn_gate_inp", "ffn.gate"),
    ("deepseek4", "ffn_gate_tid2eid.weight", "ffn.gate.tid2eid"),
    ("deepseek4", "exp_probs_b.bias", "ffn.gate.bias"),
    ("deepseek4", "ffn_gate_shexp", "ffn.shared_experts.w1"),
    ("deepseek4", "ffn_down_shexp", "ffn.shared_experts.w2"),
    ("deepseek4", "ffn_up_shexp", "ffn.shared_experts.w3"),
    (AFMOE, "ffn_norm", "pre_mlp_layernorm"),
    (AFMOE, "post_ffw_norm", "post_mlp_layernorm"),
    (AFMOE, "attn_gate", "self_attn.gate_proj"),
    ("afmoe hy_v3", "ffn_gate_inp", "mlp.router.gate"),
    ("afmoe hy_v3", "exp_probs_b.bias", "mlp.expert_bias"),
    ("hy_v3", "exp_probs_b.", "mlp.expert_bias"),
    ("laguna step35", "attn_gate", "self_attn.g_proj"),
    ("phi2", "attn_output", "self_attn.dense"),
    ("phi2", "ffn_up", "mlp.fc1"),
    ("phi2", "ffn_down", "mlp.fc2"),
    (GEMMA_WITH_INPUTS, "inp_gate", "per_layer_input_gate"),
    (GEMMA_WITH_INPUTS, "proj", "per_layer_projection"),
    (GEMMA_WITH_INPUTS, "post_norm", "post_per_layer_input_norm"),
    ("gemma3n", "altup_correct_coef", "altup.correction_coefs"),
    ("gemma3n", "altup_correct_scale.weight", "altup.correct_output_scale"),
    ("gemma3n", "altup_predict_coef", "altup.prediction_coefs"),
    ("gemma3n", "altup_router", "altup.modality_router"),
    ("gemma3n", "altup_router_norm", "altup.router_norm"),
    ("gemma3n", "laurel_l", "laurel.linear_left"),
    ("gemma3n", "laurel_r", "laurel.linear_right"),
    ("gemma3n", "laurel_post_norm", "laurel.post_laurel_norm"),
    ("gemma4", "layer_output_scale.weight", "layer_scalar"),
    ("gemma4", "ffn_gate_inp.scale", "router.scale"),
    ("gemma4", "ffn_gate_inp", "router.proj"),
    ("gemma4", "ffn_down_exps.scale", "router.per_expert_scale"),
    ("gemma4", "pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("gemma4", "post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("gemma4", "post_ffw_norm_2", "post_feedforward_layernorm_2"),
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
    ("", "ssm_conv1d", "linear_attn.conv1d"),
    ("", "ssm_dt.bias", "linear_attn.dt_bias"),
    ("", "ssm_a.", "linear_attn.A_log"),
    ("", "ssm_norm", "linear_attn.norm"),
    ("", "ssm_out", "linear_attn.out_proj"),
    ("", "attn_output", "self_attn.o_proj"),
    ("", "attn_q_a", "self_attn.q_a_proj"),
    ("", "attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("", "attn_q_b", "self_attn.q_b_proj"),
    ("", "attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("", "attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("", "attn_kv_b", "self_attn.kv_b_proj"),
    ("", "attn_k_b.weight", KEYS_OF_HEADS),
    ("", "attn_v_b.weight", VALUES_OF_HEADS),
    ("", "indexer.attn_k", "self_attn.indexer.wk"),
    ("", "indexer.attn_q_b", "self_attn.indexer.wq_b"),
    ("", "indexer.k_norm", "self_attn.indexer.k_norm"),
    ("", "indexer.proj", "self_attn.indexer.weights_proj"),
    ("hunyuan-dense hunyuan-moe", "attn_q_norm", "self_attn.query_layernorm"),
    ("hunyuan-dense hunyuan-moe", "attn_k_norm", "self_attn.key_layernorm"),
    ("", "attn_q_norm", "self_attn.q_norm"),
    ("", "attn_k_norm", "self_attn.k_norm"),
    ("gpt-oss mimo2", "attn_sinks.weight", "self_attn.sinks"),
    ("glm4", "post_attention_norm", "post_self_attn_layernorm"),
    ("", "post_attention_norm", "post_attention_layernorm"),
    ("gemma2 gemma3 gemma3n gemma4", "ffn_norm", "pre_feedforward_layernorm"),
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
    ("minimax-m2", "exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"),
    ("ernie4_5-moe", "exp_probs_b.bias", CORRECTION_OF_STATICS),
    ("gpt-oss", "ffn_gate_inp", "mlp.router"),
    ("hunyuan-moe", "ffn_gate_inp", "mlp.gate.wg"),
    ("", "ffn_gate_inp", "mlp.gate"),
    ("", "exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    // Its name has no end in some files.
    ("", "exp_probs_b.", "mlp.gate.e_score_correction_bias"),
    (SHARED_EXPERTS, "ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("hunyuan-moe hy_v3", "ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    (SHARED_EXPERTS, "ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("hunyuan-moe hy_v3", "ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    (SHARED_EXPERTS, "ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("hunyuan-moe hy_v3", "ffn_down_shexp", "mlp.shared_mlp.down_proj"),
    ("", "ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("", "ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("", "ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("", "ffn_gate_inp_shexp", SHARED_GATE),
];

/// A row, which is a matrix of one row in transformers.
const CORRECTION_OF_STATICS: &str = "mlp.moe_statics.e_score_correction_bias";

/// Numbers of heads, which have four sides in transformers.
const RATES_OF_KIMI: &str = "self_attn.A_log";

/// Matrices of all heads, one for each, which are one matrix in the module: one below the other.
const KEYS_OF_HEADS: &str = "self_attn.kv_b_proj.keys";
const VALUES_OF_HEADS: &str = "self_attn.kv_b_proj.values";

/// The same.
const SHARED_GATE: &str = "mlp.shared_expert_gate";

/// The experts of a block, which are one tensor: what each is in transformers, before and behind its number.
const EXPERTS: &[(&str, &str, [&str; 2])] = &[
    ("llama minimax-m2 kimi-linear", "ffn_gate_exps", ["block_sparse_moe.experts", "w1"]),
    ("llama minimax-m2 kimi-linear", "ffn_up_exps", ["block_sparse_moe.experts", "w3"]),
    ("llama minimax-m2 kimi-linear", "ffn_down_exps", ["block_sparse_moe.experts", "w2"]),
    ("deepseek4", "ffn_gate_exps", ["ffn.experts", "w1"]),
    ("deepseek4", "ffn_up_exps", ["ffn.experts", "w3"]),
    ("deepseek4", "ffn_down_exps", ["ffn.experts", "w2"]),
    ("lfm2", "ffn_gate_exps", ["feed_forward.experts", "w1"]),
    ("lfm2", "ffn_up_exps", ["feed_forward.experts", "w3"]),
    ("lfm2", "ffn_down_exps", ["feed_forward.experts", "w2"]),
    (GRANITE, "ffn_gate_exps", ["block_sparse_moe.experts", "gate_proj"]),
    (GRANITE, "ffn_up_exps", ["block_sparse_moe.experts", "up_proj"]),
    (GRANITE, "ffn_down_exps", ["block_sparse_moe.experts", "down_proj"]),
    ("nemotron_h_moe", "ffn_up_exps", ["mixer.experts", "up_proj"]),
    ("nemotron_h_moe", "ffn_down_exps", ["mixer.experts", "down_proj"]),
    ("jamba llama4", "ffn_gate_exps", ["feed_forward.experts", "gate_proj"]),
    ("jamba llama4", "ffn_up_exps", ["feed_forward.experts", "up_proj"]),
    ("jamba llama4", "ffn_down_exps", ["feed_forward.experts", "down_proj"]),
    ("gemma4", "ffn_gate_up_exps", ["experts", "gate_up_proj"]),
    ("gemma4", "ffn_down_exps", ["experts", "down_proj"]),
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

/// The tensors under the names of transformers; those that have none there keep theirs. Those of blocks from `blocks` on are left out.
pub(super) fn renamed(
    architecture: &str,
    blocks: u64,
    tensors: &[HeaderEntry],
) -> Vec<HeaderEntry> {
    // With or without experts.
    let architecture = if architecture == "lfm2moe" { "lfm2" } else { architecture };
    let is_weight = |entry: &&HeaderEntry| {
        entry.name != ROPE_FREQUENCIES
            && !ROPE_FACTORS.contains(&&*entry.name)
            && !is_behind(&entry.name, blocks)
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
    let of_name = |name: String, shape: Vec<usize>| HeaderEntry { name, shape, ..entry.clone() };
    let (module, end) = parted(&entry.name);
    if let Some(theirs) = find(architecture, &entry.name, WHOLE) {
        return Some(of_name(theirs.to_owned(), entry.shape.clone()));
    }
    if let Some(theirs) = find(architecture, module, WHOLE) {
        return Some(of_name(format!("{theirs}.{end}"), entry.shape.clone()));
    }
    if let Some(name) = older_expert(architecture, &entry.name) {
        return Some(of_name(name, entry.shape.clone()));
    }
    let layers = layers(architecture);
    let (name, theirs) = match of_block(architecture, &format!("{module}.{end}"), OF_BLOCK) {
        Some((number, theirs)) => (format!("{layers}.{number}.{theirs}"), theirs),
        None => {
            let (number, theirs) = of_block(architecture, module, OF_BLOCK)?;
            let end = if end.is_empty() { "weight" } else { end };
            (format!("{layers}.{number}.{theirs}.{end}"), theirs)
        }
    };
    Some(of_name(name, shape(theirs, &entry.shape)?))
}

/// The name of a module and what ends that of its tensor: nothing for some.
fn parted(name: &str) -> (&str, &str) {
    match name.rsplit_once('.') {
        Some((module, end @ ("weight" | "bias" | "scale"))) => (module, end),
        _ => (name, ""),
    }
}

/// The shape in transformers.
fn shape(theirs: &str, ours: &[usize]) -> Option<Vec<usize>> {
    Some(match *ours {
        [width] if [SHARED_GATE, CORRECTION_OF_STATICS].contains(&theirs) => vec![1, width],
        // Rows that are each a channel's.
        [channels, taps] if theirs.ends_with(".conv1d") || theirs == "conv.conv" => {
            vec![channels, 1, taps]
        }
        [heads, rows, columns] if [KEYS_OF_HEADS, VALUES_OF_HEADS].contains(&theirs) => {
            vec![heads.checked_mul(rows)?, columns]
        }
        // Of a head each.
        [heads, 1] if theirs == RATES_OF_KIMI => vec![1, 1, heads, 1],
        [heads, 1] if theirs.ends_with(".A_log") || theirs.ends_with(".D") => vec![heads],
        [1, channels, 1, taps] if theirs.contains("_conv1d") => vec![channels, 1, taps],
        [groups, width] if theirs.ends_with(".norm") => vec![groups.checked_mul(width)?],
        _ => ours.to_vec(),
    })
}

/// What a row says of a name.
fn find<T: Copy>(architecture: &str, name: &str, rows: &[(&str, &str, T)]) -> Option<T> {
    let is_it = |(of, ours, _): &&(&str, &str, T)| {
        *ours == name && (of.is_empty() || of.split(' ').any(|of| of == architecture))
    };
    rows.iter().find(is_it).map(|(.., theirs)| *theirs)
}

/// What transformers calls the list of layers.
fn layers(architecture: &str) -> &'static str {
    match architecture {
        "mamba" | "mamba2" => "backbone.layers",
        // As it is published.
        "deepseek4" => "layers",
        _ => "model.layers",
    }
}

/// Whether a tensor is of a block from that one on.
fn is_behind(name: &str, layers: u64) -> bool {
    let number = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
    number.is_some_and(|number: u64| number >= layers)
}

/// The number of a block, and what a module of it is in transformers.
fn of_block<T: Copy>(
    architecture: &str,
    module: &str,
    names: &[(&str, &str, T)],
) -> Option<(usize, T)> {
    let (number, module) = module.strip_prefix("blk.")?.split_once('.')?;
    Some((number.parse().ok()?, find(architecture, module, names)?))
}

/// The name of an expert's own tensor, as older files have it: `blk.0.ffn_gate.3.weight`.
fn older_expert(architecture: &str, name: &str) -> Option<String> {
    let (module, end) = name.rsplit_once('.')?;
    let (module, expert) = module.rsplit_once('.')?;
    let expert: usize = expert.parse().ok()?;
    let (number, [before, behind]) = of_block(architecture, &format!("{module}_exps"), EXPERTS)?;
    Some(format!("{}.{number}.{before}.{expert}.{behind}.{end}", layers(architecture)))
}

/// The matrices `[rows, columns]` that a tensor `[experts, rows, columns]` is made of, one after the other, or the biases
/// of one of those, if it is one and they are not more than so many.
fn experts(architecture: &str, entry: &HeaderEntry, most: usize) -> Option<Vec<HeaderEntry>> {
    let (module, end) = parted(&entry.name);
    // Before and behind the number of each.
    let (before, behind) = match find(architecture, module, STACKS) {
        Some(theirs) => (theirs.to_owned(), String::new()),
        None => {
            let (number, [before, behind]) = of_block(architecture, module, EXPERTS)?;
            (format!("{}.{number}.{before}", layers(architecture)), format!(".{behind}"))
        }
    };
    let (&count, shape) = entry.shape.split_first()?;
    if shape.len() != if end == "bias" { 1 } else { 2 } {
        return None;
    }
    let len = (entry.end - entry.start) / (count as u64).max(1);
    if count == 0 || count > most || len * count as u64 != entry.end - entry.start {
        return None;
    }
    let one = |expert: usize| HeaderEntry {
        name: format!("{before}.{expert}{behind}.{end}"),
        dtype: entry.dtype,
        shape: shape.to_vec(),
        start: entry.start + expert as u64 * len,
        end: entry.start + (expert as u64 + 1) * len,
    };
    Some((0..count).map(one).collect())
}
