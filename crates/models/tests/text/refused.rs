//! Configurations whose fields do not fit together: refused by name.

use outsize_models::ModelConfig;
use outsize_models::arch::DeepseekForCausalLm;
use serde_json::{Value, json};

use crate::fields::read;

#[test]
fn what_does_not_fit_together_is_refused_by_name() {
    let longrope =
        json!({"type": "longrope", "short_factor": [1, 2], "long_factor": [1, 2], "factor": 2.0});
    for (name, field, value, refused) in [
        ("qwen3", "num_key_value_heads", json!(3), "num_key_value_heads"),
        ("qwen3", "head_dim", json!(7), "head_dim"),
        ("qwen3", "sliding_window_pattern", json!(2), "sliding_window_pattern"),
        ("olmo2", "layer_types", json!(["sliding_attention", "full_attention"]), "layer_types"),
        ("olmo2", "clip_qkv", json!(8.0), "clip_qkv"),
        ("olmo3", "sliding_window", Value::Null, "sliding_window"),
        ("olmo3-published-bf16", "rope_theta", json!(10_000), "rope_theta"),
        ("smollm3", "no_rope_layers", json!([1, 0]), "no_rope_layers"),
        ("smollm3", "no_rope_layers", json!([1, 0, 2]), "no_rope_layers"),
        ("smollm3", "no_rope_layer_interval", json!(0), "no_rope_layer_interval"),
        ("granite", "logits_scaling", json!(0), "logits_scaling"),
        ("granite", "residual_multiplier", json!(1e300), "residual_multiplier"),
        ("phi3", "rope_scaling", longrope, "rope_scaling.short_factor"),
        ("phi3", "rope_scaling", json!({"type": "longrope"}), "rope_scaling.short_factor"),
        ("phi3", "rope_scaling", json!({"type": "linear", "factor": 2.0}), "rope_scaling"),
        (
            "phi3",
            "rope_parameters",
            json!({"partial_rotary_factor": 0.4}),
            "rope_parameters.partial_rotary_factor",
        ),
        (
            "phi3",
            "rope_parameters",
            json!({"partial_rotary_factor": 2}),
            "rope_parameters.partial_rotary_factor",
        ),
        ("phi3", "layer_types", json!(["full_attention", "chunked_attention"]), "layer_types"),
        ("exaone4", "sliding_window_pattern", json!("LLX"), "sliding_window_pattern"),
        ("exaone4-published-bf16", "layer_types", Value::Null, "layer_types"),
        ("hunyuan_v1_moe", "moe_topk", json!([2, 1]), "moe_topk"),
        ("hunyuan_v1_moe", "moe_topk", json!([2]), "moe_topk"),
        ("hunyuan_v1_moe", "moe_topk", json!(6), "moe_topk"),
        (
            "hunyuan_v1_dense",
            "rope_parameters",
            json!({"rope_type": "dynamic", "alpha": -1.0}),
            "rope_parameters.alpha",
        ),
        ("hunyuan_v1_moe", "num_experts_per_tok", json!(3), "num_experts_per_tok"),
        ("dots1", "n_shared_experts", Value::Null, "n_shared_experts"),
        ("dots1", "max_window_layers", json!(-1), "max_window_layers"),
        ("ernie4_5_moe", "moe_k", json!(7), "moe_k"),
        ("ernie4_5_moe", "moe_layer_interval", json!(0), "moe_layer_interval"),
        ("ernie4_5_moe", "moe_layer_end_index", json!(-2), "moe_layer_end_index"),
        ("ernie4_5_moe", "moe_num_shared_experts", json!(1 << 17), "moe_num_shared_experts"),
        ("minimax_m2", "rotary_dim", json!(10), "rotary_dim"),
        ("minimax_m2", "num_local_experts", json!(1 << 16), "num_local_experts"),
        ("glm4-published-bf16", "partial_rotary_factor", json!(0.4), "partial_rotary_factor"),
        ("cohere", "use_qk_norm", json!(true), "use_qk_norm"),
        ("cohere", "logit_scale", json!(0), "logit_scale"),
        ("cohere2", "sliding_window", Value::Null, "sliding_window"),
        ("cohere2", "head_dim", json!(8), "head_dim"),
        ("stablelm", "qk_layernorm", json!(true), "qk_layernorm"),
        ("stablelm", "head_dim", json!(8), "head_dim"),
        ("phi", "tie_word_embeddings", json!(true), "tie_word_embeddings"),
        ("phi-published-f16", "partial_rotary_factor", json!(0.2), "partial_rotary_factor"),
        (
            "ministral3",
            "rope_parameters",
            json!({"rope_type": "yarn", "factor": 2.0}),
            "rope_parameters.original_max_position_embeddings",
        ),
        (
            "ministral3",
            "rope_parameters",
            json!({"original_max_position_embeddings": 9, "llama_4_scaling_beta": -1.0}),
            "rope_parameters.llama_4_scaling_beta",
        ),
        ("deepseek_v32", "index_head_dim", json!(2), "index_head_dim"),
        ("deepseek_v32", "index_topk", json!(0), "index_topk"),
        ("deepseek_v32", "q_lora_rank", Value::Null, "q_lora_rank"),
        ("deepseek_v32", "layer_types", json!(["full_attention", "full_attention"]), "layer_types"),
        ("deepseek_v32", "head_dim", json!(6), "head_dim"),
        ("glm_moe_dsa", "indexer_types", json!(["shared", "full", "full"]), "indexer_types"),
        ("glm_moe_dsa", "indexer_types", json!(["full", "shared"]), "indexer_types"),
        ("glm_moe_dsa", "indexer_rope_interleave", json!(false), "indexer_rope_interleave"),
        ("glm_moe_dsa-published-bf16", "index_topk_pattern", json!("FSX"), "index_topk_pattern"),
        ("axk1", "q_lora_rank", Value::Null, "q_lora_rank"),
        ("axk1", "mlp_layer_types", json!(["dense", "wide"]), "mlp_layer_types"),
        ("axk2", "q_lora_rank", Value::Null, "q_lora_rank"),
        ("axk2", "gated_norm_rank", json!(0), "gated_norm_rank"),
        ("axk2", "gated_norm_rank", json!(1u64 << 40), "gated_norm_rank"),
        ("axk2", "n_group", json!(2), "topk_group"),
        ("axk2", "topk_group", json!(2), "topk_group"),
        ("axk2-groups-stacked", "n_group", json!(3), "n_group"),
        ("axk2-groups-stacked", "topk_group", json!(5), "topk_group"),
        ("axk2-groups-stacked", "topk_group", Value::Null, "topk_group"),
        ("axk2", "head_dim", json!(6), "head_dim"),
        ("mistral4", "head_dim", json!(4), "head_dim"),
        ("mistral4", "rope_parameters", Value::Null, "rope_parameters"),
        (
            "mistral4",
            "rope_parameters",
            json!({"partial_rotary_factor": 0.9}),
            "rope_parameters.partial_rotary_factor",
        ),
        (
            "mistral4-images-published-bf16",
            "text_config",
            json!({
                "model_type": "mistral4", "topk_method": "greedy", "rope_parameters": {
                    "rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.1
                },
            }),
            "text_config.topk_method",
        ),
        ("kimi_k25-published-bf16", "text_config", Value::Null, "text_config"),
        (
            "kimi_k25-published-bf16",
            "text_config",
            json!({"model_type": "llama"}),
            "text_config.model_type",
        ),
        ("hy_v3", "first_k_dense_replace", json!(2), "first_k_dense_replace"),
        ("hy_v3", "router_scaling_factor", json!(-1), "router_scaling_factor"),
        ("afmoe", "num_shared_experts", json!(1 << 17), "num_shared_experts"),
        ("afmoe", "score_func", json!("softmax"), "score_func"),
        ("laguna", "gating", json!(false), "gating"),
        ("laguna", "moe_router_logit_softcapping", json!(30.0), "moe_router_logit_softcapping"),
        ("laguna", "num_attention_heads_per_layer", json!([2, 2]), "num_attention_heads_per_layer"),
        ("mimo_v2_flash", "v_head_dim", json!(9), "v_head_dim"),
        ("mimo_v2_flash", "num_key_value_heads", json!(4), "num_key_value_heads"),
        ("mimo_v2_flash", "n_group", json!(2), "n_group"),
        (
            "step3p7",
            "text_config",
            json!({"moe_layers_enum": "3,x"}),
            "text_config.moe_layers_enum",
        ),
        ("step3p7", "text_config", json!({"swiglu_limits": [1, 2]}), "text_config.swiglu_limits"),
        ("step3p7", "text_config", json!({"sink": true}), "text_config.sink"),
        ("minimax_m3", "text_config", json!({"rotary_dim": 64}), "text_config.rotary_dim"),
        (
            "minimax_m3",
            "text_config",
            json!({"sparse_attention_config": {"sparse_init_block": 1}}),
            "text_config.sparse_attention_config.sparse_init_block",
        ),
        (
            "dots3_note_text",
            "layer_types",
            json!(["indexed_attention", "sliding_attention", "full_attention"]),
            "layer_types",
        ),
        (
            "dots3_note_text",
            "per_layer_config",
            json!({"0": {"head_dim": 8}}),
            "per_layer_config.0",
        ),
        (
            "dots3_note_text",
            "per_layer_config",
            json!({"1": {"qk_rope_head_dim": 7}}),
            "per_layer_config.1.head_dim",
        ),
        ("dots3_note-published-bf16", "swa_head_dim", json!(15), "swa_head_dim"),
        (
            "dots3_note-published-bf16",
            "swa_num_key_value_heads",
            json!(1),
            "swa_num_key_value_heads",
        ),
        ("dots3_note-published-bf16", "moe_layer_freq", json!([0, 2, 1]), "moe_layer_freq"),
        ("hy_v4", "swiglu_limit", json!(0), "swiglu_limit"),
        ("deepseek_v4", "swiglu_limit", json!(0), "swiglu_limit"),
        ("deepseek_v4", "num_key_value_heads", json!(2), "num_key_value_heads"),
        ("deepseek_v4", "o_groups", json!(3), "o_groups"),
        ("deepseek_v4", "index_head_dim", json!(2), "index_head_dim"),
        ("deepseek_v4", "n_shared_experts", json!(2), "n_shared_experts"),
        ("deepseek_v4", "partial_rotary_factor", json!(0.2), "partial_rotary_factor"),
        ("deepseek_v4", "sliding_window", Value::Null, "sliding_window"),
        ("deepseek_v4", "intermediate_size", json!(9), "intermediate_size"),
        ("deepseek_v4", "layer_types", json!(["sliding_attention"]), "layer_types"),
        ("deepseek_v4", "mlp_layer_types", json!(["moe", "hash_moe", "moe"]), "mlp_layer_types"),
        (
            "deepseek_v4",
            "compress_rates",
            json!({"compressed_sparse_attention": 0}),
            "compress_rates.compressed_sparse_attention",
        ),
        ("deepseek_v4-published-bf16", "compress_ratios", json!([4, 5, 0]), "compress_ratios"),
        ("hy_v4", "indexer_types", json!(["shared", "full", "full"]), "indexer_types"),
        ("longcat_flash", "num_hidden_layers", json!(2), "num_hidden_layers"),
        ("longcat_flash", "moe_topk", json!(8), "moe_topk"),
        ("mellum", "mlp_layer_types", json!("dense"), "mlp_layer_types"),
        ("kimi_linear", "layer_types", json!(["linear_attention"]), "layer_types"),
        ("kimi_linear", "mla_use_nope", json!(false), "mla_use_nope"),
        (
            "kimi_linear-published-bf16",
            "linear_attn_config",
            json!({"full_attn_layers": [2], "kda_layers": [1]}),
            "linear_attn_config.full_attn_layers",
        ),
        (
            "kimi_linear",
            "linear_attn_config",
            json!({"num_heads": 0}),
            "linear_attn_config.num_heads",
        ),
        ("bailing_hybrid", "kda_lower_bound", json!(1), "kda_lower_bound"),
        ("bailing_hybrid", "n_group", json!(2), "num_expert_group"),
        ("bailing_hybrid", "rope_interleave", json!(false), "rope_interleave"),
        ("olmo_hybrid", "layer_types", json!(vec!["linear_attention"; 3]), "layer_types"),
        ("olmo_hybrid", "linear_num_key_heads", json!(3), "linear_num_key_heads"),
        ("minimax", "rotary_dim", json!(10), "rotary_dim"),
        ("minimax", "mlp_alpha_factor", json!(0), "mlp_alpha_factor"),
        ("cohere2_moe", "sliding_window", Value::Null, "sliding_window"),
        ("cohere2_moe", "expert_selection_fn", json!("tanh"), "expert_selection_fn"),
        ("phimoe", "num_experts_per_tok", json!(3), "num_experts_per_tok"),
        ("phimoe", "rope_scaling", json!({"type": "linear", "factor": 2}), "rope_scaling.type"),
        (
            "phimoe-published-bf16",
            "rope_scaling",
            json!({
                "type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 1, 1, 1],
                "short_mscale": 1.2, "long_mscale": 1.3,
            }),
            "rope_scaling.long_mscale",
        ),
        ("granitemoe_swa", "layer_rope_theta", json!([10, 20]), "layer_rope_theta"),
        ("granitemoe_swa", "layer_rope_theta", json!([10, 20, 30]), "layer_rope_theta"),
        ("cwm", "rope_theta", json!(10_000), "rope_theta"),
        ("dbrx", "d_model", json!(18), "d_model"),
        ("dbrx", "attn_config", json!({"kv_n_heads": 3}), "attn_config.kv_n_heads"),
        ("dbrx", "ffn_config", json!({"moe_top_k": 5}), "ffn_config.moe_top_k"),
        (
            "dbrx",
            "ffn_config",
            json!({"moe_normalize_expert_weights": 2}),
            "ffn_config.moe_normalize_expert_weights",
        ),
        ("lara_mini", "sliding_window", Value::Null, "sliding_window"),
        ("lara_mini", "layer_types", json!(["full_attention"]), "layer_types"),
        ("lara_mini", "linear_num_key_heads", json!(3), "linear_num_key_heads"),
        ("minicpm3", "dim_model_base", json!(0), "dim_model_base"),
        ("minicpm3", "hidden_size", json!(17), "num_attention_heads"),
        ("minicpm3", "scale_depth", json!(-1), "scale_depth"),
        ("minicpm3", "scale_emb", json!("12"), "scale_emb"),
        ("minicpm3", "v_head_dim", json!(0), "v_head_dim"),
        ("minicpm5_moe", "use_gated_attention", json!(false), "use_gated_attention"),
        ("youtu", "num_key_value_heads", json!(1), "num_key_value_heads"),
        ("vaultgemma", "sliding_window", Value::Null, "sliding_window"),
        ("helium", "head_dim", json!(8), "head_dim"),
        ("mistral3", "text_config", Value::Null, "text_config"),
        ("mistral3", "text_config", json!({"model_type": "llama"}), "text_config.model_type"),
        ("qwen2_5_vl-published-bf16", "rope_scaling", json!({"type": "x"}), "rope_scaling.type"),
        ("qwen2_5_vl-published-bf16", "head_dim", json!(4), "head_dim"),
        ("qwen3_vl", "text_config", json!({"model_type": "qwen3"}), "text_config.model_type"),
        (
            "qwen3_vl_moe",
            "text_config",
            json!({"norm_topk_prob": false}),
            "text_config.norm_topk_prob",
        ),
        ("gemma2", "sliding_window", Value::Null, "sliding_window"),
        ("gemma2", "attn_logit_softcapping", json!(0.0), "attn_logit_softcapping"),
        ("gemma2", "final_logit_softcapping", json!(-1), "final_logit_softcapping"),
        ("gemma3", "attn_logit_softcapping", json!(50.0), "attn_logit_softcapping"),
        ("gemma3", "final_logit_softcapping", json!(30.0), "final_logit_softcapping"),
        ("gemma3", "use_bidirectional_attention", json!(true), "use_bidirectional_attention"),
        ("gemma3", "sliding_window", Value::Null, "sliding_window"),
        ("gemma3", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0}), "rope_scaling"),
        ("gemma3", "vision_config", json!({}), "vision_config"),
        ("gemma3-images", "text_config", Value::Null, "text_config"),
        (
            "gemma3-images",
            "text_config",
            json!({"sliding_window": null, "final_logit_softcapping": 30.0}),
            "text_config.final_logit_softcapping",
        ),
        ("gemma3-images", "text_config", json!({"model_type": "llama"}), "text_config.model_type"),
        ("gpt_neox", "num_attention_heads", json!(5), "num_attention_heads"),
        (
            "gpt_neox",
            "rope_parameters",
            json!({"partial_rotary_factor": 0.4}),
            "rope_parameters.partial_rotary_factor",
        ),
        ("gpt_neox-published-f16", "rotary_pct", json!(0.4), "rotary_pct"),
        ("gpt_neox-published-f16", "rotary_emb_base", json!(0), "rotary_emb_base"),
        ("opt", "layer_norm_elementwise_affine", json!(false), "layer_norm_elementwise_affine"),
        ("opt", "_remove_final_layer_norm", json!(true), "_remove_final_layer_norm"),
        ("bloom", "n_head", json!(7), "n_head"),
        ("bloom", "n_inner", json!(40), "n_inner"),
        ("falcon", "num_ln_in_parallel_attn", json!(2), "num_ln_in_parallel_attn"),
        ("falcon-published-bf16", "num_ln_in_parallel_attn", json!(3), "num_ln_in_parallel_attn"),
        ("falcon-published-bf16", "num_kv_heads", json!(3), "num_kv_heads"),
        ("falcon-published-bf16", "parallel_attn", json!(false), "parallel_attn"),
        ("falcon-rw", "num_kv_heads", json!(2), "num_kv_heads"),
        ("falcon", "num_attention_heads", json!(8), "num_attention_heads"),
        ("llama4", "layer_types", json!(vec!["sliding_attention"; 3]), "layer_types"),
        ("llama4", "moe_layers", json!([0, -1]), "moe_layers"),
        ("llama4", "no_rope_layers", json!([1, 0]), "no_rope_layers"),
        ("llama4", "num_experts_per_tok", json!(6), "num_experts_per_tok"),
        ("gemma4", "num_kv_shared_layers", json!(5), "num_kv_shared_layers"),
        ("gemma4", "per_layer_config", json!({"9": {}}), "per_layer_config"),
        ("gemma4", "per_layer_config", json!({"1": {"head_dim": 8}}), "per_layer_config"),
        ("gemma4", "per_layer_config", json!({"1": {"x": 8}}), "per_layer_config.1.x"),
        ("gemma4", "use_bidirectional_attention", json!("all"), "use_bidirectional_attention"),
        (
            "gemma4",
            "rope_parameters",
            json!({"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 2}}),
            "rope_parameters.full_attention.partial_rotary_factor",
        ),
        ("gemma4_unified_text", "enable_moe_block", json!(true), "enable_moe_block"),
        (
            "gemma4_unified_text",
            "hidden_size_per_layer_input",
            json!(4),
            "hidden_size_per_layer_input",
        ),
        ("gemma4_unified_text", "sliding_window", Value::Null, "sliding_window"),
        ("gemma4-experts", "top_k_experts", json!(6), "top_k_experts"),
        ("gemma4-experts", "moe_intermediate_size", Value::Null, "moe_intermediate_size"),
        ("gemma3n", "intermediate_size", json!([12, 20]), "intermediate_size"),
        ("lfm2", "conv_L_cache", json!(1), "conv_L_cache"),
        ("lfm2", "layer_types", json!(["conv"]), "layer_types"),
        ("lfm2-published-bias-bf16", "full_attn_idxs", json!([0.5]), "full_attn_idxs"),
        (
            "lfm2-published-bias-bf16",
            "block_ffn_dim_multiplier",
            json!(1e6),
            "block_ffn_dim_multiplier",
        ),
        ("lfm2_moe", "layer_types", Value::Null, "layer_types"),
        ("lfm2_moe", "num_experts_per_tok", json!(7), "num_experts_per_tok"),
        ("gemma3n", "altup_active_idx", json!(3), "altup_active_idx"),
        (
            "gemma3n",
            "activation_sparsity_pattern",
            json!([0.5, 0, 1, 0]),
            "activation_sparsity_pattern",
        ),
        ("granitemoehybrid", "hidden_act", json!("gelu"), "hidden_act"),
        ("granitemoehybrid", "layer_types", json!(["mamba"]), "layer_types"),
        ("granitemoehybrid", "layers_block_type", json!(["mamba"]), "layers_block_type"),
        ("granitemoehybrid", "mamba_d_head", json!(9), "mamba_d_head"),
        ("granitemoehybrid", "mamba_expand", json!(1 << 20), "mamba_expand"),
        ("granitemoehybrid", "mamba_n_groups", json!(3), "mamba_n_groups"),
        ("granitemoehybrid", "mamba_n_heads", json!(5), "mamba_n_heads"),
        ("granitemoehybrid", "mamba_d_conv", json!(1), "mamba_d_conv"),
        ("granitemoehybrid", "position_embedding_type", json!("alibi"), "position_embedding_type"),
        ("granitemoehybrid", "time_step_limit", json!([1, 0.5]), "time_step_limit"),
        (
            "granitemoehybrid",
            "time_step_limit",
            json!([0, {"__float__": "NaN"}]),
            "time_step_limit",
        ),
        ("bamba", "layer_types", json!(vec!["full_attention"; 3]), "layer_types"),
        ("falcon_h1", "mlp_multipliers", json!([1, 2, 3]), "mlp_multipliers"),
        ("falcon_h1", "ssm_multipliers", json!([1, 2, 3, 4, 0]), "ssm_multipliers"),
        ("falcon_h1", "mamba_d_ssm", json!(30), "mamba_n_heads"),
        ("nemotron_h", "hybrid_override_pattern", json!("MMMMM"), "hybrid_override_pattern"),
        (
            "nemotron_h-published-bf16",
            "hybrid_override_pattern",
            json!("M-*X"),
            "hybrid_override_pattern",
        ),
        ("nemotron_h-published-bf16", "num_hidden_layers", json!(5), "num_hidden_layers"),
        ("nemotron_h", "attention_head_dim", json!(16), "attention_head_dim"),
        ("nemotron_h", "mamba_head_dim", json!(4096 << 1), "mamba_head_dim"),
        ("nemotron_h", "topk_group", json!(4), "topk_group"),
        ("nemotron_h", "num_experts_per_tok", json!(7), "num_experts_per_tok"),
        ("jamba", "attn_layer_offset", json!(3), "attn_layer_offset"),
        ("jamba", "hidden_act", json!("gelu"), "hidden_act"),
        ("jamba", "mamba_inner_layernorms", json!(false), "mamba_inner_layernorms"),
        ("jamba", "mamba_dt_rank", json!(0), "mamba_dt_rank"),
        ("jamba", "mamba_expand", json!(1 << 20), "mamba_expand"),
        ("mamba", "conv_kernel", json!(1), "conv_kernel"),
        ("mamba2", "num_heads", json!(5), "head_dim"),
        ("mamba2", "rms_norm", json!(false), "rms_norm"),
        (
            "llama4-published-bf16",
            "text_config",
            json!({"model_type": "llama"}),
            "text_config.model_type",
        ),
    ] {
        let message = read(name, field, value).unwrap_err().to_string();
        assert!(message.contains(&format!("`{refused}`")), "{name}: {message}");
    }
}

/// The configuration of a fixture of Mistral Large 4 with one field of its text part changed.
fn read_large(name: &str, field: &str, value: Value) -> Result<ModelConfig, outsize_models::Error> {
    let text = std::fs::read_to_string(crate::common::folder(name).join("config.json")).unwrap();
    let mut fields = outsize_checkpoint::parse_json(text.as_bytes()).unwrap();
    fields["text_config"][field] = value;
    ModelConfig::from_json(&fields.to_string())
}

#[test]
fn what_mistral_large4_cannot_share_is_refused_by_name() {
    let name = "mistral_large4-shared-stacked";
    // Rotated or not, in turns; each layer has its own, or shares with the last one of its kind.
    for sources in [json!([0, 1, 0, 1, 4]), json!([0, 1, 2, 3, 4]), json!([0, 1, 2, 1, 2])] {
        let config = read_large(name, "kv_source_layers", sources.clone()).unwrap();
        let config = config.of::<DeepseekForCausalLm>().unwrap();
        assert_eq!(config.latent_sources.len(), 5, "{sources}");
    }
    for (field, value) in [
        ("kv_source_layers", json!([0, 1, 0, 1])),
        ("kv_source_layers", json!([0, 1, 0, 1, 4, 5])),
        ("kv_source_layers", json!([0, 3, 0, 3, 4])),
        ("kv_source_layers", json!([2, 1, 2, 1, 4])),
        ("kv_source_layers", json!([0, 1, 0, 1, 2])),
        ("kv_source_layers", json!([0, 1, 1, 1, 4])),
        // Of which transformers would take layer 2.
        ("kv_source_layers", json!([0, 1, 2, 2, 0])),
        ("kv_source_layers", json!([0, 1, -2, 1, 4])),
        ("kv_source_layers", json!([0, 1, u64::MAX, 1, 4])),
        ("kv_source_layers", json!([0, 1, "0", 1, 4])),
        ("kv_source_layers", json!(7)),
        ("no_rope_layers", json!([1, 0, 1, 0])),
        ("no_rope_layers", json!([1, 0, 2, 0, 1])),
        ("indexer_types", json!(["shared", "full", "full", "full", "full"])),
        ("indexer_types", json!(["full"])),
        ("index_topk", json!(0)),
        ("index_topk", json!(u64::MAX)),
        ("index_head_dim", json!(2)),
        ("index_n_heads", json!(1u64 << 40)),
        ("mlp_layer_types", json!(["dense"])),
        ("final_logit_softcapping", json!(0)),
        ("final_logit_softcapping", json!("30")),
        ("q_lora_rank", json!(8)),
        ("norm_topk_prob", json!(false)),
        ("scoring_func", json!("sigmoid")),
        ("topk_method", json!("greedy")),
        ("topk_group", json!(3)),
        ("layer_types", json!(["full_attention"])),
        ("qk_rope_head_dim", json!(3)),
        ("num_key_value_heads", json!(1)),
        ("model_type", json!("mistral4")),
        ("rope_parameters", json!({"rope_type": "yarn", "factor": 0})),
    ] {
        let message = read_large(name, field, value.clone()).unwrap_err().to_string();
        assert!(message.contains(&format!("`text_config.{field}")), "{field} {value}: {message}");
    }
    // A whole turn of layers that do not rotate.
    let none = read_large("mistral_large4", "no_rope_layers", json!([0, 0, 0])).unwrap();
    assert!(none.weights().iter().any(|weight| weight.name == "model.rotary_emb.alpha"));
}

#[test]
fn layers_of_a_muse_rotate_by_one_base_or_not_at_all() {
    let thetas = |thetas: Value| {
        let text = json!({"num_hidden_layers": 2, "layer_rope_theta": thetas});
        let config = json!({"model_type": "muse_glimmer", "text_config": text});
        ModelConfig::from_json(&config.to_string())
    };
    assert!(thetas(json!([0, 10_000])).is_ok());
    for wrong in [json!([0, 500]), json!([0]), json!([0, 10_000, 0]), json!([0, null])] {
        let message = thetas(wrong).unwrap_err().to_string();
        assert!(message.contains("each 0 or the base, 10000"), "{message}");
    }
}

#[test]
fn the_text_part_of_an_internvl_is_of_one_of_several_types() {
    let within = |name: &str| {
        let path = crate::common::folder(name).join("config.json");
        let mut text: Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let whole = json!({"model_type": "internvl", "text_config": text.take()});
        ModelConfig::from_json(&whole.to_string())
    };
    for name in ["gqa", "qwen2-layer-types-bf16", "qwen3", "qwen3_moe", "gpt_oss"] {
        let (found, alone) = (within(name).unwrap(), read(name, "use_cache", json!(true)).unwrap());
        assert_eq!(found.parameter_count(), alone.parameter_count(), "{name}");
        assert_eq!(found.cache(), alone.cache(), "{name}");
    }
    let message = within("gemma2").unwrap_err().to_string();
    assert!(
        message.contains("`text_config.model_type`") && message.contains("qwen3_moe"),
        "{message}"
    );
}
