//! Models of attention and one feed-forward block in each layer.

use outsize_models::arch::{
    ApertusForCausalLm, ArceeForCausalLm, BloomForCausalLm, FalconForCausalLm, GlmForCausalLm,
    Gpt2LmHeadModel, GptNeoxForCausalLm, GptjForCausalLm, LlamaForCausalLm, OptForCausalLm,
    Phi3ForCausalLm, PhiForCausalLm, Starcoder2ForCausalLm,
};
use outsize_models::{CacheOptions, KvDtype, ModelConfig, WhenFull};

use crate::passes::activations_stay_below_their_bound;
use crate::{bf16, config, config_with, sliding};

pub fn dense_models_need_what_is_said() {
    let one = CacheOptions::new;
    let biases = r#", "attention_bias": true, "mlp_bias": true, "hidden_act": "gelu_new""#;
    let window = r#", "model_type": "mistral", "sliding_window": 300"#;
    let mixed = r#", "model_type": "qwen2", "use_sliding_window": true, "sliding_window": 200, "max_window_layers": 1"#;
    let sliding = sliding();
    // Which part of a pass needs most: scores, MLP, projections, logits; or what is held of it.
    for (config, options) in [
        (config(512, 1408, 8, 2, 2048), one(2048)),
        (config(256, 4096, 4, 4, 512), one(1024)),
        (config(1024, 512, 32, 32, 512), one(1024)),
        (config(128, 128, 2, 1, 16_384), one(260)),
        (config_with(256, 4096, 4, 4, 512, biases), one(1024)),
        (config_with(1024, 64, 2, 1, 512, biases), one(600)),
        (config(512, 1408, 8, 8, 2048), bf16(1024)),
        (config_with(512, 512, 8, 8, 512, window), one(1024)),
        (config_with(512, 512, 8, 8, 512, mixed), bf16(1024)),
        (
            config(512, 512, 8, 8, 512),
            CacheOptions { when_full: WhenFull::Slide, dtype: KvDtype::F16, ..one(400) },
        ),
        (config(256, 512, 4, 2, 512), CacheOptions { batch: 3, ..one(700) }),
    ] {
        activations_stay_below_their_bound::<LlamaForCausalLm>(&config, &options);
    }
    for (hidden, heads, inner, function) in
        [(512, 8, 2048, "gelu_new"), (1024, 16, 128, "relu"), (256, 4, 2048, "gelu")]
    {
        let gpt = |model_type| {
            ModelConfig::from_json(&format!(
                r#"{{"model_type": "{model_type}", "n_embd": {hidden}, "n_head": {heads}, "n_layer": 2, "n_inner": {inner},
                    "activation_function": "{function}", "vocab_size": 512}}"#
            ))
            .unwrap()
        };
        activations_stay_below_their_bound::<Gpt2LmHeadModel>(&gpt("gpt2"), &one(1024));
        activations_stay_below_their_bound::<Gpt2LmHeadModel>(&gpt("gpt2"), &bf16(600));
        activations_stay_below_their_bound::<GptjForCausalLm>(&gpt("gptj"), &one(1024));
        activations_stay_below_their_bound::<GptjForCausalLm>(&gpt("gptj"), &sliding);
    }
    // Of which the parts of a pass that need most are others again.
    for (hidden, inner, heads, kv_heads) in [(512, 1408, 8, 2), (256, 2048, 4, 4), (1024, 64, 8, 1)]
    {
        let relative = |model_type| {
            let scale = if model_type == "granite" { 2 } else { 1 };
            // Multipliers, of those that have them.
            let more = match model_type {
                "stablelm" => r#", "use_parallel_residual": true"#,
                _ => "",
            };
            let head_dim = match model_type {
                "cohere2" | "stablelm" => hidden / heads,
                _ => 64,
            };
            let more = format!(
                r#", "model_type": "{model_type}", "residual_multiplier": {scale}, "logits_scaling": {scale},
                    "head_dim": {head_dim}{more}"#
            );
            config_with(hidden, inner, heads, kv_heads, 512, &more)
        };
        activations_stay_below_their_bound::<LlamaForCausalLm>(&relative("qwen3"), &one(1024));
        activations_stay_below_their_bound::<LlamaForCausalLm>(&relative("olmo2"), &bf16(700));
        activations_stay_below_their_bound::<Phi3ForCausalLm>(&relative("phi3"), &one(1024));
        activations_stay_below_their_bound::<Phi3ForCausalLm>(&relative("phi3"), &sliding);
        for (model_type, options) in [
            ("gemma", one(700)),
            ("gemma2", one(1024)),
            ("vaultgemma", one(700)),
            ("cwm", one(700)),
            ("granite_swa", bf16(700)),
            ("gemma3_text", bf16(700)),
            ("olmo3", one(700)),
            ("granite", bf16(700)),
            ("smollm3", one(700)),
            ("seed_oss", bf16(700)),
        ] {
            activations_stay_below_their_bound::<LlamaForCausalLm>(&relative(model_type), &options);
        }
        for model_type in ["exaone4", "ernie4_5", "hunyuan_v1_dense"] {
            activations_stay_below_their_bound::<LlamaForCausalLm>(
                &relative(model_type),
                &one(700),
            );
        }
        activations_stay_below_their_bound::<GlmForCausalLm>(&relative("glm"), &one(700));
        activations_stay_below_their_bound::<GlmForCausalLm>(&relative("glm4"), &bf16(700));
        for model_type in ["cohere", "cohere2", "stablelm"] {
            let config = relative(model_type);
            activations_stay_below_their_bound::<LlamaForCausalLm>(&config, &bf16(700));
        }
        activations_stay_below_their_bound::<PhiForCausalLm>(&relative("phi"), &one(700));
        activations_stay_below_their_bound::<Starcoder2ForCausalLm>(
            &relative("starcoder2"),
            &one(700),
        );
        let growing = r#", "model_type": "ministral3", "rope_parameters": {"rope_type": "default",
            "original_max_position_embeddings": 100, "llama_4_scaling_beta": 0.1}"#;
        activations_stay_below_their_bound::<LlamaForCausalLm>(
            &config_with(hidden, inner, heads, kv_heads, 512, growing),
            &bf16(700),
        );
        activations_stay_below_their_bound::<ArceeForCausalLm>(&relative("arcee"), &one(700));
        activations_stay_below_their_bound::<ArceeForCausalLm>(&relative("nemotron"), &bf16(700));
        activations_stay_below_their_bound::<ApertusForCausalLm>(
            &config_with(hidden, inner, heads, kv_heads, 512, r#", "model_type": "apertus""#),
            &one(700),
        );
        activations_stay_below_their_bound::<LlamaForCausalLm>(
            &config_with(
                hidden,
                inner,
                heads,
                kv_heads,
                512,
                r#", "model_type": "olmo", "clip_qkv": 1"#,
            ),
            &one(700),
        );
    }
    for (hidden, heads, inner, function) in
        [(512, 8, 2048, "gelu_new"), (1024, 16, 128, "relu"), (256, 4, 2048, "gelu")]
    {
        let decoder = |model_type, more: &str| {
            ModelConfig::from_json(&format!(
                r#"{{"model_type": "{model_type}", "hidden_size": {hidden}, "num_attention_heads": {heads},
                    "num_hidden_layers": 2, "vocab_size": 512, "activation": "{function}", "hidden_act": "{function}",
                    "activation_function": "{function}", "intermediate_size": {inner}, "ffn_dim": {inner},
                    "ffn_hidden_size": {inner}{more}}}"#
            ))
            .unwrap()
        };
        for parallel in [true, false] {
            let neox = decoder("gpt_neox", &format!(r#", "use_parallel_residual": {parallel}"#));
            activations_stay_below_their_bound::<GptNeoxForCausalLm>(&neox, &one(1024));
            let opt =
                format!(r#", "do_layer_norm_before": {parallel}, "word_embed_proj_dim": {inner}"#);
            activations_stay_below_their_bound::<OptForCausalLm>(&decoder("opt", &opt), &bf16(700));
            let bloom = format!(r#", "apply_residual_connection_post_layernorm": {parallel}"#);
            activations_stay_below_their_bound::<BloomForCausalLm>(
                &decoder("bloom", &bloom),
                &sliding,
            );
            for more in [
                format!(r#", "parallel_attn": {parallel}, "alibi": {parallel}"#),
                format!(r#", "multi_query": {parallel}, "bias": true"#),
                r#", "new_decoder_architecture": true, "num_kv_heads": 2"#.to_owned(),
            ] {
                activations_stay_below_their_bound::<FalconForCausalLm>(
                    &decoder("falcon", &more),
                    &one(1024),
                );
            }
        }
    }
}
