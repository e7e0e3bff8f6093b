//! Random models.

use crate::random::Random;
use serde_json::{Value, json};

/// One random model and what is asked of it.
pub struct Case {
    pub config: Value,
    pub dtype: &'static str,
    pub kv_dtype: &'static str,
    pub compute: &'static str,
    pub context: u64,
    pub prompt: u64,
    pub new_tokens: u64,
    pub weights: u64,
    pub vocabulary: u64,
}

impl Case {
    pub fn random(random: &mut Random) -> Self {
        loop {
            let case = Self::any(random);
            let values = case.weights / if case.dtype == "f32" { 4 } else { 2 };
            // Large enough to stream, small enough for hundreds of them.
            if (3_000_000..60_000_000).contains(&case.weights)
                && values * case.prompt < 3_000_000_000
            {
                return case;
            }
        }
    }

    fn any(random: &mut Random) -> Self {
        let heads: u64 = random.pick(&[1, 2, 3, 4, 6, 8, 12, 16]);
        let head_dim = random.pick(&[16, 32, 64, 128]);
        let hidden = heads * head_dim;
        let key_value_heads = (1..=heads)
            .filter(|heads_of_keys| heads.is_multiple_of(*heads_of_keys))
            .nth(random.within(0, 5) as usize)
            .unwrap_or(heads);
        let layers = random.within(1, 8);
        let intermediate = hidden * random.within(2, 8) / 2 + random.within(0, 3);
        let vocabulary = random.within(300, 20_000);
        let mut dtype = random.pick(&["f32", "bf16", "f16"]);
        let kv_dtype = random.pick(&["f32", "bf16", "f16"]);
        let architecture = random.pick(&[
            "llama",
            "mistral",
            "qwen2",
            "gpt2",
            "gptj",
            "qwen3",
            "olmo2",
            "granite",
            "cohere",
            "arcee",
            "phi3",
            "gemma2",
            "gemma3_text",
            "gpt_neox",
            "opt",
            "bloom",
            "falcon",
            "t5",
            "mixtral",
            "qwen2_moe",
            "qwen3_moe",
            "olmoe",
            "gpt_oss",
            "deepseek_v2",
            "deepseek_v3",
            "glm4_moe",
            "qwen3_next",
            "qwen3_5_text",
            "granitemoehybrid",
            "falcon_h1",
            "nemotron_h",
            "jamba",
            "mamba",
        ]);
        let tied = random.within(0, 1) == 1;
        let context = random.within(8, 1500);
        let new_tokens = random.within(1, 6.min(context - 1));
        let prompt = random.within(1, context - new_tokens);
        let gpt = ["gpt2", "gptj"].contains(&architecture);
        // Of two matrices in the MLP, and as many heads of keys as of queries.
        let plain = gpt || ["gpt_neox", "opt", "bloom", "falcon"].contains(&architecture);
        // As many layers in the encoder as in the decoder.
        let t5_mlps = 2 * (if tied { 2 } else { 3 }) * hidden * intermediate;
        let layer = match architecture {
            "t5" => 12 * hidden * hidden + t5_mlps,
            _ if plain => 4 * hidden * hidden + 2 * hidden * intermediate,
            _ => {
                2 * hidden * hidden
                    + 2 * hidden * key_value_heads * head_dim
                    + 3 * hidden * intermediate
            }
        };
        let tables = vocabulary * hidden * if tied { 1 } else { 2 };
        let width = if dtype == "f32" { 4 } else { 2 };
        let mut config = json!({
                "model_type": architecture, "hidden_size": hidden, "intermediate_size": intermediate,
                "num_hidden_layers": layers, "num_attention_heads": heads,
                "num_key_value_heads": key_value_heads, "vocab_size": vocabulary,
                "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": tied,
        });
        if gpt {
            // Positions are learned: as many as are needed.
            config = json!({
                "model_type": architecture, "n_embd": hidden, "n_inner": intermediate,
                "n_layer": layers, "n_head": heads, "vocab_size": vocabulary,
                "n_positions": context,
            });
            match architecture {
                "gptj" => config["rotary_dim"] = (head_dim / 2).into(),
                _ => config["tie_word_embeddings"] = tied.into(),
            }
        }
        match architecture {
            "mistral" | "phi3" => config["sliding_window"] = random.within(1, 1500).into(),
            "qwen3" => config["head_dim"] = head_dim.into(),
            "mixtral" | "qwen2_moe" | "qwen3_moe" | "olmoe" => {
                // As large together as one MLP, or twice as large with one for all tokens.
                let experts = random.within(1, 12);
                let inner = (intermediate / experts).max(1);
                config["num_experts"] = experts.into();
                config["num_experts_per_tok"] = random.within(1, experts).into();
                config["intermediate_size"] = inner.into();
                if architecture.starts_with("qwen") {
                    config["moe_intermediate_size"] = inner.into();
                }
                if architecture == "qwen2_moe" {
                    config["shared_expert_intermediate_size"] = intermediate.into();
                }
            }
            "gpt_oss" => {
                let experts = random.within(1, 12);
                // Blocks of 32 need such widths.
                let inner = (intermediate / experts).next_multiple_of(32);
                config["num_local_experts"] = experts.into();
                config["num_experts_per_tok"] = random.within(1, experts).into();
                config["intermediate_size"] = inner.into();
                config["head_dim"] = head_dim.into();
                config["sliding_window"] = random.within(1, 1500).into();
                config["max_position_embeddings"] = 131_072.into();
                if hidden.is_multiple_of(32) {
                    dtype = random.pick(&[dtype, "mxfp4"]);
                }
            }
            "deepseek_v2" | "deepseek_v3" | "glm4_moe" => {
                let experts = random.within(1, 12);
                config["n_routed_experts"] = experts.into();
                config["num_experts_per_tok"] = random.within(1, experts).into();
                (config["n_group"], config["topk_group"]) = (1.into(), 1.into());
                config["moe_intermediate_size"] = (intermediate / experts).max(1).into();
                config["n_shared_experts"] = random.within(1, 2).into();
                config["first_k_dense_replace"] = random.within(0, layers).into();
                if architecture == "glm4_moe" {
                    config["head_dim"] = (4 * head_dim.div_ceil(4)).into();
                } else {
                    config["num_key_value_heads"] = heads.into();
                    config["kv_lora_rank"] = random.within(1, hidden).into();
                    let query_rank = random.within(1, hidden);
                    config["q_lora_rank"] = random.pick(&[None, Some(query_rank)]).into();
                    config["qk_nope_head_dim"] = random.within(1, head_dim).into();
                    config["qk_rope_head_dim"] = (2 * head_dim.div_ceil(4)).into();
                    config["v_head_dim"] = random.within(1, head_dim).into();
                }
            }
            "qwen3_next" | "qwen3_5_text" => {
                let experts = random.within(1, 12);
                let inner = (intermediate / experts).max(1);
                if architecture == "qwen3_next" {
                    config["num_experts"] = experts.into();
                    config["num_experts_per_tok"] = random.within(1, experts).into();
                    config["moe_intermediate_size"] = inner.into();
                    config["shared_expert_intermediate_size"] = inner.into();
                    config["decoder_sparse_step"] = random.within(1, 2).into();
                }
                config["head_dim"] = head_dim.into();
                // Half of a head is rotated, and that must be even.
                config["partial_rotary_factor"] =
                    (if head_dim.is_multiple_of(4) { 0.5 } else { 1.0 }).into();
                config["full_attention_interval"] = random.within(1, 4).into();
                let key_heads = random.within(1, heads);
                config["linear_num_key_heads"] = key_heads.into();
                config["linear_num_value_heads"] = (key_heads * random.within(1, 3)).into();
                config["linear_key_head_dim"] = random.within(1, head_dim).into();
                config["linear_value_head_dim"] = random.within(1, head_dim).into();
                config["linear_conv_kernel_dim"] = random.within(2, 5).into();
            }
            "granitemoehybrid" | "falcon_h1" => {
                config["head_dim"] = head_dim.into();
                config["mamba_n_heads"] = heads.into();
                config["mamba_expand"] = random.within(1, 2).into();
                config["mamba_n_groups"] = random.pick(&[1, heads]).into();
                config["mamba_d_state"] = random.within(1, 64).into();
                if architecture == "falcon_h1" {
                    config["mamba_d_ssm"] = Value::Null;
                    config["mamba_rms_norm"] = (random.within(0, 1) == 1).into();
                    config["ssm_multipliers"] = json!([1, 2, 1, 1, 1]);
                } else {
                    let experts = random.within(0, 8);
                    config["num_local_experts"] = experts.into();
                    config["num_experts_per_tok"] = random.within(0, experts).max(1).into();
                    config["shared_intermediate_size"] = intermediate.into();
                    config["intermediate_size"] = (intermediate / experts.max(1)).max(1).into();
                    let kinds = (0..layers).map(|_| random.pick(&["mamba", "attention"]));
                    config["layer_types"] = kinds.collect::<Vec<_>>().into();
                }
            }
            "jamba" => {
                config["attn_layer_period"] = random.within(2, 4).into();
                config["attn_layer_offset"] = random.within(0, 1).into();
                config["num_experts"] = random.within(1, 6).into();
                config["num_experts_per_tok"] = 1.into();
                config["mamba_d_state"] = random.within(1, 64).into();
                config["mamba_expand"] = random.within(1, 2).into();
                config["intermediate_size"] = (intermediate / 3).max(1).into();
            }
            "mamba" => {
                // Of an MLP, and it is of the state space here.
                config["intermediate_size"] = Value::Null;
                config["layer_norm_epsilon"] = 1e-5.into();
                config["expand"] = random.within(1, 3).into();
                config["state_size"] = random.within(1, 64).into();
            }
            "nemotron_h" => {
                config["tie_word_embeddings"] = false.into();
                config["head_dim"] = head_dim.into();
                config["mamba_num_heads"] = heads.into();
                config["mamba_head_dim"] = head_dim.into();
                config["n_groups"] = random.pick(&[1, heads]).into();
                config["ssm_state_size"] = random.within(1, 64).into();
                config["n_routed_experts"] = 4.into();
                config["moe_intermediate_size"] = (intermediate / 4).max(1).into();
                config["moe_shared_expert_intermediate_size"] = intermediate.into();
                let parts = (0..layers).map(|_| random.pick(&["M", "*", "-", "E"]));
                config["hybrid_override_pattern"] = parts.collect::<String>().into();
            }
            "gemma2" | "gemma3_text" => {
                config["head_dim"] = head_dim.into();
                config["sliding_window"] = random.within(1, 1500).into();
                if architecture == "gemma3_text" {
                    config["sliding_window_pattern"] = random.within(1, 3).into();
                }
            }
            "opt" => {
                config["ffn_dim"] = intermediate.into();
                config["max_position_embeddings"] = context.into();
                config["do_layer_norm_before"] = (random.within(0, 1) == 1).into();
            }
            "gpt_neox" => config["use_parallel_residual"] = (random.within(0, 1) == 1).into(),
            "falcon" => {
                config["ffn_hidden_size"] = intermediate.into();
                config["alibi"] = (random.within(0, 1) == 1).into();
                config["new_decoder_architecture"] = (random.within(0, 1) == 1).into();
                config["num_kv_heads"] = key_value_heads.into();
            }
            "t5" => {
                config = json!({
                    "model_type": architecture, "d_model": hidden, "d_ff": intermediate, "d_kv": head_dim,
                    "num_layers": layers, "num_heads": heads, "vocab_size": vocabulary,
                    "tie_word_embeddings": tied,
                    "feed_forward_proj": if tied { "relu" } else { "gated-gelu" },
                });
            }
            _ => {}
        }
        // Of one tensor for all experts there are no integers.
        let has_none = ["gpt_oss", "falcon", "t5", "granitemoehybrid"].contains(&architecture);
        let can_be_integers = dtype == "bf16" && !gpt && !has_none;
        if can_be_integers {
            dtype = random.pick(&[dtype, dtype, "int4", "int8"]);
        }
        Self {
            config,
            dtype,
            kv_dtype,
            compute: random.pick(&["f32", "bf16"]),
            context,
            prompt,
            new_tokens,
            weights: (layer * layers + tables) * width,
            vocabulary,
        }
    }
}
