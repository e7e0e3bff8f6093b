//! Models with experts.

use outsize_models::arch::{
    DbrxForCausalLm, DeepseekForCausalLm, DeepseekV4ForCausalLm, ErnieMoeForCausalLm,
    GptOssForCausalLm, GraniteMoeForCausalLm, HunyuanMoeForCausalLm, HyV4ForCausalLm,
    KimiForCausalLm, Lfm2ForCausalLm, Llama4ForCausalLm, LlamaForCausalLm, LongcatForCausalLm,
    MixtralForCausalLm, MuseSparkForCausalLm, Qwen3VlMoeForCausalLm, SparseMoeForCausalLm,
};
use outsize_models::{CacheOptions, ModelConfig};

use crate::passes::{a_snapshot_is_counted, activations_stay_below_their_bound};
use crate::{bf16, config_with, sliding};

pub fn experts_need_what_is_said() {
    let (one, sliding) = (CacheOptions::new, sliding());
    // At worst all tokens go to the same expert: here they go to all.
    for (hidden, inner, query_heads) in [(512, 1408, 8), (256, 2048, 4), (1024, 64, 8)] {
        let heads = query_heads;
        let experts = |model_type, more: &str| {
            let more = format!(
                r#", "model_type": "{model_type}", "num_experts": 3, "num_experts_per_tok": 3{more}"#
            );
            config_with(hidden, inner, heads, heads, 512, &more)
        };
        let narrow = format!(r#", "moe_intermediate_size": {inner}"#);
        let shared = format!(r#"{narrow}, "shared_expert_intermediate_size": {inner}"#);
        activations_stay_below_their_bound::<MixtralForCausalLm>(
            &experts("mixtral", ""),
            &one(1024),
        );
        activations_stay_below_their_bound::<MixtralForCausalLm>(
            &experts("phimoe", r#", "num_experts_per_tok": 2, "num_experts": 2"#),
            &one(700),
        );
        let stacks = format!(
            r#"{{"model_type": "dbrx", "d_model": {hidden}, "n_heads": {heads}, "n_layers": 2, "vocab_size": 512,
                "attn_config": {{"kv_n_heads": {heads}, "clip_qkv": 1}},
                "ffn_config": {{"ffn_hidden_size": {inner}, "moe_num_experts": 3, "moe_top_k": 3}}}}"#
        );
        activations_stay_below_their_bound::<DbrxForCausalLm>(
            &ModelConfig::from_json(&stacks).unwrap(),
            &one(700),
        );
        let chosen = format!(r#"{narrow}, "moe_topk": 3, "moe_k": 3, "moe_num_experts": 3"#);
        activations_stay_below_their_bound::<MixtralForCausalLm>(
            &experts("minimax_m2", ""),
            &bf16(700),
        );
        activations_stay_below_their_bound::<ErnieMoeForCausalLm>(
            &experts("ernie4_5_moe", &chosen),
            &one(700),
        );
        activations_stay_below_their_bound::<HunyuanMoeForCausalLm>(
            &experts("hunyuan_v1_moe", &chosen),
            &bf16(700),
        );
        let text = format!(
            r#"{{"hidden_size": {hidden}, "intermediate_size": {inner}, "num_attention_heads": {heads}, "vocab_size": 512,
                "num_key_value_heads": {heads}, "num_hidden_layers": 2, "num_experts": 3, "num_experts_per_tok": 3{narrow}}}"#
        );
        let vision = format!(r#"{{"model_type": "qwen3_vl_moe", "text_config": {text}}}"#);
        activations_stay_below_their_bound::<Qwen3VlMoeForCausalLm>(
            &ModelConfig::from_json(&vision).unwrap(),
            &one(700),
        );
        let llama4 = format!(
            r#", "head_dim": {}, "intermediate_size_mlp": {inner}, "attention_chunk_size": 100"#,
            hidden / heads
        );
        activations_stay_below_their_bound::<Llama4ForCausalLm>(
            &experts("llama4_text", &llama4),
            &one(1024),
        );
        let granite = format!(r#", "shared_intermediate_size": {inner}"#);
        activations_stay_below_their_bound::<GraniteMoeForCausalLm>(
            &experts("granitemoeshared", &granite),
            &one(700),
        );
        let lfm2 = format!(
            r#"{narrow}, "head_dim": {}, "num_dense_layers": 1, "layer_types": ["conv", "full_attention"]"#,
            hidden / heads
        );
        activations_stay_below_their_bound::<Lfm2ForCausalLm>(
            &experts("lfm2_moe", &lfm2),
            &bf16(700),
        );
        let heads = format!(r#", "head_dim": {}, "sliding_window": 100"#, hidden / heads);
        for blocks in ["", r#", "quantization_config": {"quant_method": "mxfp4"}"#] {
            let gpt_oss = experts("gpt_oss", &format!("{heads}{blocks}"));
            for options in [one(1024), bf16(700)] {
                activations_stay_below_their_bound::<GptOssForCausalLm>(&gpt_oss, &options);
            }
        }
        for (model_type, more, options) in [
            ("qwen2_moe", &*shared, bf16(700)),
            ("qwen3_moe", &narrow, one(1024)),
            ("olmoe", "", bf16(700)),
            ("flex_olmo", "", one(700)),
        ] {
            activations_stay_below_their_bound::<SparseMoeForCausalLm>(
                &experts(model_type, more),
                &options,
            );
        }
        let gated = format!(r#"{narrow}, "num_dense_layers": 1"#);
        let narrow_values = format!(
            r#"{narrow}, "num_key_value_heads": 2, "v_head_dim": 40, "sliding_window": 100,
                "rope_parameters": {{"full_attention": {{"partial_rotary_factor": 0.5}},
                    "sliding_attention": {{"partial_rotary_factor": 0.25}}}},
                "layer_types": ["full_attention", "sliding_attention"]"#
        );
        let limits = r#""swiglu_limits": [null, 7], "swiglu_limits_shared": [16, 16]"#;
        let clamped = format!(
            r#"{{"model_type": "step3p7", "text_config": {{"hidden_size": {hidden}, "intermediate_size": {inner},
                "num_attention_heads": {query_heads}, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512,
                "num_hidden_layers": 2, "n_routed_experts": 3, "num_experts_per_tok": 3, "share_expert_dim": {inner},
                "moe_layers_enum": "1", {limits}{narrow}}}}}"#
        );
        activations_stay_below_their_bound::<DeepseekForCausalLm>(
            &ModelConfig::from_json(&clamped).unwrap(),
            &one(700),
        );
        let blocks = format!(
            r#"{{"model_type": "minimax_m3_vl", "text_config": {{"hidden_size": {hidden}, "intermediate_size": {inner},
                "dense_intermediate_size": {inner}, "shared_intermediate_size": {inner}, "vocab_size": 512,
                "num_attention_heads": {query_heads}, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 2,
                "num_local_experts": 3, "num_experts_per_tok": 3, "index_n_heads": 2, "index_head_dim": 32,
                "index_block_size": 50, "index_topk_blocks": 4, "partial_rotary_factor": 0.5, "rotary_dim": 32,
                "layer_types": ["full_attention", "minimax_m3_sparse"]}}}}"#
        );
        let blocks = ModelConfig::from_json(&blocks).unwrap();
        for options in [one(700), bf16(700), sliding, CacheOptions { batch: 2, ..one(700) }] {
            activations_stay_below_their_bound::<DeepseekForCausalLm>(&blocks, &options);
        }
        for latent in [32, hidden, 2 * hidden] {
            let weighed = format!(
                r#"{{"model_type": "muse_spark", "text_config": {{"hidden_size": {hidden}, "intermediate_size": {inner},
                    "moe_intermediate_size": {inner}, "moe_hidden_size": {latent}, "num_attention_heads": {query_heads},
                    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512, "num_hidden_layers": 2,
                    "num_local_experts": 3, "num_experts_per_tok": 3, "sliding_window": 100,
                    "mlp_layer_types": ["sparse", "dense"]}}}}"#
            );
            activations_stay_below_their_bound::<MuseSparkForCausalLm>(
                &ModelConfig::from_json(&weighed).unwrap(),
                &one(700),
            );
        }
        let beside =
            r#", "num_shared_experts": 1, "first_k_dense_replace": 1, "sliding_window": 100"#;
        activations_stay_below_their_bound::<DeepseekForCausalLm>(
            &experts("cohere2_moe", beside),
            &one(700),
        );
        let of_elements = format!(r#"{shared}, "gating": "per-element""#);
        for (model_type, more, options) in [
            ("afmoe", &gated, one(700)),
            ("laguna", &shared, bf16(700)),
            ("laguna", &of_elements, one(700)),
            ("mimo_v2_flash", &narrow_values, one(700)),
        ] {
            activations_stay_below_their_bound::<DeepseekForCausalLm>(
                &experts(model_type, more),
                &options,
            );
        }
    }
    // Queries, what they are compressed to, or what they become over what the cache has is the
    // widest.
    for (hidden, inner, heads, sizes) in [
        (512, 512, 4, [256, 192, 64, 32, 64]),
        (128, 64, 40, [64, 64, 24, 8, 16]),
        (1024, 64, 2, [1536, 32, 16, 8, 16]),
        (64, 64, 24, [32, 16, 128, 64, 128]),
        (256, 2048, 4, [64, 64, 32, 16, 32]),
    ] {
        let [queries, rank, plain, rotated, value] = sizes;
        let latent_with = |model_type, query_rank: &str, more: &str| {
            let config = format!(
                r#"{{"model_type": "{model_type}", "hidden_size": {hidden}, "intermediate_size": {inner},
                    "moe_intermediate_size": {inner}, "num_hidden_layers": 2, "num_attention_heads": {heads},
                    "num_key_value_heads": {heads}, "vocab_size": 512, "n_routed_experts": 3, "n_group": 1, "topk_group": 1,
                    "num_experts_per_tok": 3, "first_k_dense_replace": 1, "q_lora_rank": {query_rank}, "kv_lora_rank": {rank},
                    "qk_nope_head_dim": {plain}, "qk_rope_head_dim": {rotated}, "v_head_dim": {value}{more}}}"#
            );
            ModelConfig::from_json(&config).unwrap()
        };
        let latent = |model_type, query_rank: &str| latent_with(model_type, query_rank, "");
        let queries = queries.to_string();
        // Of tokens that an indexer chooses, or all; in the second layer those of the first.
        let chosen = |top_k: usize, heads: usize| {
            format!(
                r#", "index_topk": {top_k}, "index_n_heads": {heads}, "index_head_dim": 64, "index_topk_freq": 2,
                    "index_skip_topk_offset": 1"#
            )
        };
        let growing = r#", "rope_parameters": {"rope_type": "default", "original_max_position_embeddings": 100,
            "llama_4_scaling_beta": 0.1}"#;
        for (config, options) in [
            (latent("deepseek_v2", "null"), one(1024)),
            (latent("deepseek_v3", &queries), bf16(700)),
            (latent("deepseek_v3", &queries), CacheOptions { batch: 2, ..one(700) }),
            (latent("deepseek_v3", "null"), sliding),
            (latent_with("deepseek_v32", &queries, &chosen(100, 4)), one(1024)),
            (latent_with("deepseek_v32", &queries, &chosen(680, 32)), bf16(700)),
            (
                latent_with("glm_moe_dsa", &queries, &chosen(300, 2)),
                CacheOptions { batch: 2, ..one(700) },
            ),
            (latent_with("glm_moe_dsa", &queries, &chosen(100, 8)), sliding),
            (latent_with("mistral4", &queries, growing), one(700)),
            (latent("axk1", &queries), one(700)),
            (latent_with("axk2", &queries, &chosen(100, 4)), one(700)),
            (latent_with("axk2", &queries, &chosen(680, 8)), CacheOptions { batch: 2, ..one(700) }),
        ] {
            activations_stay_below_their_bound::<DeepseekForCausalLm>(&config, &options);
        }
        // Layers that see what others keep, some with an indexer of their own, and some that rotate
        // nothing.
        let shared = |top_k: usize, index_heads: usize| {
            let text = format!(
                r#"{{"hidden_size": {hidden}, "intermediate_size": {inner}, "moe_intermediate_size": {inner},
                    "num_hidden_layers": 4, "num_attention_heads": {heads}, "num_key_value_heads": {heads}, "vocab_size": 512,
                    "n_routed_experts": 3, "num_experts_per_tok": 3, "kv_lora_rank": {rank}, "qk_nope_head_dim": {plain},
                    "qk_rope_head_dim": {rotated}, "v_head_dim": {value}, "index_topk": {top_k},
                    "index_n_heads": {index_heads}, "index_head_dim": 64, "no_rope_layers": [1, 0, 1, 0],
                    "kv_source_layers": [0, 1, 0, 1], "indexer_types": ["full", "full", "full", "shared"]}}"#
            );
            let config = format!(r#"{{"model_type": "mistral_large4", "text_config": {text}}}"#);
            ModelConfig::from_json(&config).unwrap()
        };
        for (config, options) in [
            (shared(100, 4), one(700)),
            (shared(300, 2), CacheOptions { batch: 2, ..one(700) }),
            (shared(680, 32), bf16(700)),
            (shared(100, 8), sliding),
        ] {
            activations_stay_below_their_bound::<DeepseekForCausalLm>(&config, &options);
        }
        let youtu = format!(
            r#"{{"model_type": "youtu", "hidden_size": {hidden}, "intermediate_size": {inner}, "num_hidden_layers": 2,
                "num_attention_heads": {heads}, "num_key_value_heads": {heads}, "vocab_size": 512, "q_lora_rank": {queries},
                "kv_lora_rank": {rank}, "qk_nope_head_dim": {plain}, "qk_rope_head_dim": {rotated},
                "v_head_dim": {value}}}"#
        );
        activations_stay_below_their_bound::<LlamaForCausalLm>(
            &ModelConfig::from_json(&youtu).unwrap(),
            &one(700),
        );
        let gated = r#", "layer_types": ["linear_attention", "full_attention"]"#;
        activations_stay_below_their_bound::<KimiForCausalLm>(
            &latent_with("bailing_hybrid", &queries, gated),
            &one(700),
        );
        let streams = latent_with("hy_v4", &queries, &chosen(100, 4));
        activations_stay_below_their_bound::<HyV4ForCausalLm>(&streams, &one(700));
        // Of entries, all or those that an indexer chooses, beside a window.
        let entries = |types: &str, window: usize, top_k: usize| {
            let config = format!(
                r#"{{"model_type": "deepseek_v4", "hidden_size": {hidden}, "moe_intermediate_size": {inner},
                    "num_hidden_layers": 2, "num_attention_heads": {heads}, "vocab_size": 512, "n_routed_experts": 3,
                    "num_experts_per_tok": 3, "num_hash_layers": 1, "head_dim": 64, "qk_rope_head_dim": {rotated},
                    "q_lora_rank": {queries}, "o_groups": 2, "o_lora_rank": {rank}, "sliding_window": {window},
                    "index_topk": {top_k}, "index_n_heads": 4, "index_head_dim": 64, "layer_types": [{types}]}}"#
            );
            ModelConfig::from_json(&config).unwrap()
        };
        let [last, chosen, all] = [
            r#""sliding_attention""#,
            r#""compressed_sparse_attention""#,
            r#""heavily_compressed_attention""#,
        ];
        for (types, window, top_k, options) in [
            (format!("{last}, {all}"), 128, 512, one(400)),
            (format!("{last}, {chosen}"), 100, 30, one(400)),
            (format!("{chosen}, {chosen}"), 128, 512, bf16(400)),
            (format!("{all}, {chosen}"), 40, 40, CacheOptions { batch: 2, ..one(400) }),
        ] {
            // Attention goes token by token, and takes its time.
            if heads > 24 {
                continue;
            }
            let config = entries(&types, window, top_k);
            activations_stay_below_their_bound::<DeepseekV4ForCausalLm>(&config, &options);
        }
        a_snapshot_is_counted::<DeepseekV4ForCausalLm>(&entries(
            &format!("{all}, {chosen}"),
            60,
            100,
        ));
        let twice = format!(
            r#"{{"model_type": "longcat_flash", "hidden_size": {hidden}, "ffn_hidden_size": {inner},
                "expert_ffn_hidden_size": {inner}, "num_layers": 2, "num_attention_heads": {heads}, "vocab_size": 512,
                "n_routed_experts": 3, "zero_expert_num": 2, "moe_topk": 5, "q_lora_rank": {queries},
                "kv_lora_rank": {rank}, "qk_nope_head_dim": {plain}, "qk_rope_head_dim": {rotated},
                "v_head_dim": {value}}}"#
        );
        activations_stay_below_their_bound::<LongcatForCausalLm>(
            &ModelConfig::from_json(&twice).unwrap(),
            &bf16(700),
        );
    }
}
