//! Models with other layers: linear attention, convolutions, state spaces.

use outsize_models::arch::{
    BambaForCausalLm, FalconH1ForCausalLm, Gemma3nForCausalLm, Gemma4ForCausalLm,
    GraniteMoeHybridForCausalLm, KimiForCausalLm, LlamaForCausalLm, MiniMaxForCausalLm,
    NemotronHForCausalLm, SparseMoeForCausalLm, T5ForConditionalGeneration,
};
use outsize_models::{CacheOptions, ModelConfig};

use crate::passes::{
    a_snapshot_is_counted, a_token_costs_no_copy_of_the_cache, activations_stay_below_their_bound,
    texts_are_moved_in_the_memory_of_one,
};
use crate::{bf16, config_with, sliding};

pub fn other_layers_need_what_is_said() {
    let (one, sliding) = (CacheOptions::new, sliding());
    // Linear attention, or the attention between, is the widest.
    for (hidden, heads, sizes) in
        [(512, 4, [4, 4, 64, 64]), (64, 2, [2, 8, 16, 96]), (128, 16, [1, 2, 16, 16])]
    {
        let [key_heads, value_heads, key, value] = sizes;
        let experts = r#""moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "num_experts": 2,
            "num_experts_per_tok": 2,"#;
        let config = |model_type, more: &str| {
            let config = format!(
                r#"{{"model_type": "{model_type}", "hidden_size": {hidden}, "num_hidden_layers": 4, "vocab_size": 512,
                    "num_attention_heads": {heads}, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 64,
                    {more} "linear_num_key_heads": {key_heads}, "linear_num_value_heads": {value_heads},
                    "linear_key_head_dim": {key}, "linear_value_head_dim": {value}}}"#
            );
            ModelConfig::from_json(&config).unwrap()
        };
        // Of the last layer a pass does not make all for all tokens.
        let kinds = r#""layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],"#;
        for options in [one(1024), bf16(700), CacheOptions { batch: 2, ..one(700) }] {
            activations_stay_below_their_bound::<SparseMoeForCausalLm>(
                &config("qwen3_next", &format!("{kinds} {experts}")),
                &options,
            );
            activations_stay_below_their_bound::<LlamaForCausalLm>(
                &config("qwen3_5_text", kinds),
                &options,
            );
        }
        let olmo = config("olmo_hybrid", kinds);
        // One matrix after the other takes most, or what is made of the tokens before anything
        // passes between them.
        let latent = format!(
            r#"{kinds} "linear_num_heads": {key_heads}, "linear_head_dim": {value}, "q_lora_rank": null,
                "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
                "moe_intermediate_size": 64, "num_experts": 2, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
                "num_key_value_heads": {heads},"#
        );
        let latent = |model_type| config(model_type, &latent);
        let minimax = config("minimax", &format!(r#"{kinds} "num_local_experts": 2,"#));
        for options in [one(1024), bf16(700), CacheOptions { batch: 2, ..one(700) }] {
            activations_stay_below_their_bound::<LlamaForCausalLm>(&olmo, &options);
            for model_type in ["kimi_linear", "bailing_hybrid"] {
                activations_stay_below_their_bound::<KimiForCausalLm>(
                    &latent(model_type),
                    &options,
                );
            }
            activations_stay_below_their_bound::<MiniMaxForCausalLm>(&minimax, &options);
        }
        a_snapshot_is_counted::<LlamaForCausalLm>(&olmo);
        a_snapshot_is_counted::<KimiForCausalLm>(&latent("kimi_linear"));
        a_snapshot_is_counted::<MiniMaxForCausalLm>(&minimax);
        a_snapshot_is_counted::<LlamaForCausalLm>(&config("qwen3_5_text", ""));
        a_snapshot_is_counted::<SparseMoeForCausalLm>(&config("qwen3_next", experts));
    }
    // Mamba-2, attention, or the MLP is the widest.
    for (hidden, heads, inner, sizes) in [
        (512, 4, 256, [1, 16, 64, 64]),
        (64, 2, 32, [2, 2, 128, 64]),
        (128, 16, 1024, [4, 16, 16, 16]),
    ] {
        let [groups, mamba_heads, state, width] = sizes;
        let config = |model_type, more: &str| {
            let config = format!(
                r#"{{"model_type": "{model_type}", "hidden_size": {hidden}, "vocab_size": 512, "num_attention_heads": {heads},
                    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": {inner}{more}}}"#
            );
            ModelConfig::from_json(&config).unwrap()
        };
        let mamba = format!(
            r#", "num_hidden_layers": 3, "mamba_n_groups": {groups}, "mamba_n_heads": {mamba_heads}, "mamba_d_state": {state},
                "mamba_expand": {}"#,
            mamba_heads * width / hidden
        );
        let granite = format!(
            r#"{mamba}, "num_local_experts": 2, "num_experts_per_tok": 2, "shared_intermediate_size": {inner},
                "layer_types": ["mamba", "attention", "mamba"]"#
        );
        let bamba = format!(r#"{mamba}, "attn_layer_indices": [1]"#);
        let falcon = format!(
            r#"{mamba}, "mamba_d_ssm": null, "mamba_rms_norm": true, "ssm_multipliers": [1, 2, 1, 1, 1],
                "mlp_multipliers": [2, 2], "attention_in_multiplier": 2"#
        );
        let plain = format!(r#"{mamba}, "mamba_d_ssm": null"#);
        let nemotron = format!(
            r#", "hybrid_override_pattern": "M-*EM", "n_groups": {groups}, "mamba_num_heads": {mamba_heads},
                "mamba_head_dim": {width}, "ssm_state_size": {state}, "n_routed_experts": 2, "num_experts_per_tok": 2,
                "moe_intermediate_size": {inner}, "moe_shared_expert_intermediate_size": {inner}"#
        );
        let latent = format!(r#"{nemotron}, "moe_latent_size": {inner}"#);
        let jamba = format!(
            r#", "num_hidden_layers": 3, "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": {state}"#
        );
        let plain_mamba = format!(r#", "num_hidden_layers": 2, "state_size": {state}"#);
        for options in [one(1024), bf16(700), CacheOptions { batch: 2, ..one(700) }] {
            activations_stay_below_their_bound::<BambaForCausalLm>(
                &config("jamba", &jamba),
                &options,
            );
            for model_type in ["mamba", "falcon_mamba"] {
                activations_stay_below_their_bound::<NemotronHForCausalLm>(
                    &config(model_type, &plain_mamba),
                    &options,
                );
            }
            activations_stay_below_their_bound::<GraniteMoeHybridForCausalLm>(
                &config("granitemoehybrid", &granite),
                &options,
            );
            activations_stay_below_their_bound::<BambaForCausalLm>(
                &config("bamba", &bamba),
                &options,
            );
            for more in [&falcon, &plain] {
                activations_stay_below_their_bound::<FalconH1ForCausalLm>(
                    &config("falcon_h1", more),
                    &options,
                );
            }
            for more in [&nemotron, &latent] {
                activations_stay_below_their_bound::<NemotronHForCausalLm>(
                    &config("nemotron_h", more),
                    &options,
                );
            }
        }
        a_snapshot_is_counted::<BambaForCausalLm>(&config("jamba", &jamba));
        a_snapshot_is_counted::<NemotronHForCausalLm>(&config("mamba", &plain_mamba));
        a_snapshot_is_counted::<FalconH1ForCausalLm>(&config("falcon_h1", &falcon));
        a_snapshot_is_counted::<NemotronHForCausalLm>(&config("nemotron_h", &nemotron));
    }
    // Heads, inner layers, experts, the layers' own inputs or the streams are the widest.
    for (hidden, inner, heads, input) in
        [(512, 1408, 8, 16), (256, 2048, 4, 64), (1024, 64, 2, 16), (128, 64, 16, 256)]
    {
        let config = |model_type, more: &str| {
            let kinds = r#"["sliding_attention", "full_attention", "full_attention"]"#;
            let config = format!(
                r#"{{"model_type": "{model_type}", "hidden_size": {hidden}, "intermediate_size": {inner}, "num_hidden_layers": 3,
                    "num_attention_heads": {heads}, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512,
                    "layer_types": {kinds}, "sliding_window": 100, "num_kv_shared_layers": 1,
                    "vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": {input}{more}}}"#
            );
            ModelConfig::from_json(&config).unwrap()
        };
        let wide = r#", "global_head_dim": 96"#;
        let experts = format!(
            r#"{wide}, "enable_moe_block": true, "num_experts": 3, "top_k_experts": 3, "moe_intermediate_size": {inner}"#
        );
        for options in [CacheOptions { batch: 2, ..one(700) }, sliding] {
            for more in [wide, &experts] {
                activations_stay_below_their_bound::<Gemma4ForCausalLm>(
                    &config("gemma4_text", more),
                    &options,
                );
            }
            let sparse = r#", "activation_sparsity_pattern": [0.9, 0.0, 0.9]"#;
            activations_stay_below_their_bound::<Gemma3nForCausalLm>(
                &config("gemma3n_text", sparse),
                &options,
            );
        }
    }
    for (hidden, heads, inner, function) in
        [(512, 8, 2048, "relu"), (256, 16, 64, "gated-gelu"), (256, 4, 2048, "gated-relu")]
    {
        let config = ModelConfig::from_json(&format!(
            r#"{{"model_type": "t5", "d_model": {hidden}, "num_heads": {heads}, "num_layers": 2, "d_ff": {inner},
                "feed_forward_proj": "{function}", "vocab_size": 512}}"#
        ));
        for options in [one(600), bf16(600)] {
            for (prompt, batch) in [(8, 1), (700, 1), (300, 2)] {
                let options = CacheOptions { prompt, batch, ..options };
                let config = config.as_ref().unwrap();
                activations_stay_below_their_bound::<T5ForConditionalGeneration>(config, &options);
            }
        }
    }
    let windows =
        r#", "model_type": "gemma3_text", "sliding_window": 300, "sliding_window_pattern": 2"#;
    a_snapshot_is_counted::<LlamaForCausalLm>(&config_with(128, 128, 8, 8, 512, windows));
    a_token_costs_no_copy_of_the_cache();
    texts_are_moved_in_the_memory_of_one();
}
