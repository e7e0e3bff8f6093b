//! What a model allocates, by a counting allocator. One test: the counter sees all threads.

mod passes;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};
use outsize_models::arch::{
    ApertusForCausalLm, ArceeForCausalLm, BambaForCausalLm, BloomForCausalLm, DbrxForCausalLm,
    DeepseekForCausalLm, DeepseekV4ForCausalLm, ErnieMoeForCausalLm, FalconForCausalLm,
    FalconH1ForCausalLm, Gemma3nForCausalLm, Gemma4ForCausalLm, GlmForCausalLm, Gpt2LmHeadModel,
    GptNeoxForCausalLm, GptOssForCausalLm, GptjForCausalLm, GraniteMoeForCausalLm,
    GraniteMoeHybridForCausalLm, HunyuanMoeForCausalLm, HyV4ForCausalLm, KimiForCausalLm,
    Lfm2ForCausalLm, Llama4ForCausalLm, LlamaForCausalLm, LongcatForCausalLm, MiniMaxForCausalLm,
    MixtralForCausalLm, NemotronHForCausalLm, OptForCausalLm, Phi3ForCausalLm, PhiForCausalLm,
    Qwen3VlMoeForCausalLm, SparseMoeForCausalLm, Starcoder2ForCausalLm, T5ForConditionalGeneration,
};
use outsize_models::{CacheOptions, Decoder, Init, KvDtype, ModelConfig, WhenFull, presets};
use passes::{
    a_snapshot_is_counted, a_token_costs_no_copy_of_the_cache, activations_stay_below_their_bound,
    texts_are_moved_in_the_memory_of_one,
};
use peak_alloc::PeakAlloc;
use std::process::Command;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Runs `work` and gives the bytes that it had allocated at most, and those it left allocated.
fn allocated<T>(work: impl FnOnce() -> T) -> (T, u64, u64) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let result = work();
    let peak = ALLOCATOR.peak_usage().saturating_sub(before);
    (result, peak as u64, ALLOCATOR.current_usage().saturating_sub(before) as u64)
}

struct CountLazy {
    lazy: usize,
    initialized: usize,
}

impl ModuleVisitor for CountLazy {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_initialized() { self.initialized += 1 } else { self.lazy += 1 }
    }
}

/// Gives each parameter small numbers in place of random ones, which would take longer than the passes.
struct FillWeights;

impl ModuleMapper for FillWeights {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, device) = (param.lazy_shape(), param.lazy_device());
        let values = (0..shape.num_elements()).map(|i| (i % 61) as f32 / 1000.0 - 0.03).collect();
        let tensor = Tensor::from_data(TensorData::new::<f32, _>(values, shape), &device);
        let id = param.id;
        param.transform_for_load(tensor, id)
    }
}

/// The model with weights, of which the values do not matter to what a pass allocates.
fn filled<D: Decoder>(config: &ModelConfig, device: &Device) -> D {
    config.build::<D>(&Init::new(device)).unwrap().map(&mut FillWeights)
}

fn config(hidden: usize, inner: usize, heads: usize, kv_heads: usize, vocab: usize) -> ModelConfig {
    config_with(hidden, inner, heads, kv_heads, vocab, "")
}

/// With more fields, each behind a comma.
fn config_with(
    hidden: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    vocab: usize,
    more: &str,
) -> ModelConfig {
    ModelConfig::from_json(&format!(
        r#"{{"hidden_size": {hidden}, "intermediate_size": {inner}, "num_hidden_layers": 2, "model_type": "llama",
            "num_attention_heads": {heads}, "num_key_value_heads": {kv_heads}, "head_dim": 64, "vocab_size": {vocab}{more}}}"#
    ))
    .unwrap()
}

/// The counter sees all threads: what is measured at the same time is in a process of its own.
#[test]
fn memory_is_what_is_said() {
    const ASKS: &str = "OUTSIZE_MEMORY_OF_EXPERTS";
    if std::env::var_os(ASKS).is_some() {
        return experts_need_what_is_said();
    }
    let said = tempfile::NamedTempFile::new().unwrap();
    let mut beside = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory_is_what_is_said", "--nocapture"])
        .env(ASKS, "1")
        .stdout(said.reopen().unwrap())
        .spawn()
        .unwrap();
    creating_a_model_allocates_no_weights();
    dense_models_need_what_is_said();
    other_layers_need_what_is_said();
    let status = beside.wait().unwrap();
    let said = std::fs::read_to_string(said.path()).unwrap();
    assert!(status.success() && said.contains("1 passed"), "{said}");
    println!("{said}");
}

fn bf16(context: usize) -> CacheOptions {
    CacheOptions { dtype: KvDtype::Bf16, ..CacheOptions::new(context) }
}

fn sliding() -> CacheOptions {
    CacheOptions { when_full: WhenFull::Slide, ..bf16(600) }
}

fn dense_models_need_what_is_said() {
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

fn experts_need_what_is_said() {
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
    // Queries, what they are compressed to, or what they become over what the cache has is the widest.
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

fn other_layers_need_what_is_said() {
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
        for options in [one(1024), bf16(700), CacheOptions { batch: 2, ..one(700) }] {
            activations_stay_below_their_bound::<SparseMoeForCausalLm>(
                &config("qwen3_next", experts),
                &options,
            );
            activations_stay_below_their_bound::<LlamaForCausalLm>(
                &config("qwen3_5_text", ""),
                &options,
            );
        }
        let kinds = r#""layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],"#;
        let olmo = config("olmo_hybrid", kinds);
        // One matrix after the other takes most, or what is made of the tokens before anything passes between them.
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
        for options in [one(1024), bf16(700), CacheOptions { batch: 2, ..one(700) }] {
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

fn creating_a_model_allocates_no_weights() {
    let config = ModelConfig::from_json(presets::config("llama-7b").unwrap()).unwrap();
    let (model, peak, _) =
        allocated(|| config.build::<LlamaForCausalLm>(&Init::new(&Device::default())).unwrap());
    assert!(peak < 1 << 20, "creating a model of 6.7 billion parameters allocated {peak} bytes");
    let mut count = CountLazy { lazy: 0, initialized: 0 };
    model.visit(&mut count);
    assert_eq!((count.lazy, count.initialized), (32 * 9 + 3, 0));
}
