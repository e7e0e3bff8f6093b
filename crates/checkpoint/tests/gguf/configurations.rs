//! The `config.json` that metadata becomes.

use super::*;

#[test]
fn metadata_becomes_a_configuration() {
    let more = [
        ("llama.block_count", u32(2)),
        ("llama.embedding_length", u32(32)),
        ("llama.attention.head_count", u32(4)),
        ("llama.attention.layer_norm_rms_epsilon", f32(1e-5)),
        ("llama.rope.dimension_count", u32(8)),
        ("llama.context_length", u32(64)),
        ("llama.new_thing", u32(7)),
        ("general.name", text("x")),
        ("tokenizer.ggml.eos_token_id", u32(2)),
        ("tokenizer.ggml.eot_token_id", u32(5)),
    ];
    let found = config("llama", &more).unwrap();
    let wanted = json!({
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "llama.new_thing": 7, "vocab_size": 3,
        "tie_word_embeddings": true, "quantization_config": { "quant_method": "gguf" },
        "rope_interleaved": true, "bos_token_id": null, "eos_token_id": [2, 5],
    });
    assert_eq!(Json::from(found), wanted);
}

#[test]
fn experts_become_a_configuration() {
    let sizes = [("embedding_length", 32), ("attention.head_count", 4), ("expert_count", 8)];
    let read = |architecture: &'static str, more: &[(&str, u32)]| {
        let values = sizes.iter().chain(more).map(|(key, n)| (format!("{architecture}.{key}"), n));
        let values: Vec<_> = values.map(|(key, n)| (key, made::u32(*n))).collect();
        let more: Vec<_> = values.iter().map(|(key, n)| (key.as_str(), n.clone())).collect();
        config(architecture, &more)
    };
    let used = ("expert_used_count", 3);
    let mixtral = read("llama", &[used, ("expert_feed_forward_length", 40)]).unwrap();
    assert_eq!(
        ["model_type", "num_experts", "num_experts_per_tok", "intermediate_size", "head_dim"]
            .map(|field| mixtral[field].clone()),
        [json!("mixtral"), json!(8), json!(3), json!(40), json!(8)]
    );
    assert!(!mixtral.contains_key("moe_intermediate_size"));
    let gpt_oss = read("gpt-oss", &[used, ("expert_feed_forward_length", 40)]).unwrap();
    assert_eq!(
        ["model_type", "intermediate_size", "experts_gate_apart", "attention_bias"]
            .map(|field| gpt_oss[field].clone()),
        [json!("gpt_oss"), json!(40), json!(true), json!(false)]
    );
    // Where nothing is said transformers would take another one.
    assert_eq!(gpt_oss["rope_scaling"], json!({ "rope_type": "default" }));
    for (architecture, normalized) in [("qwen3moe", true), ("qwen2moe", false), ("olmoe", false)] {
        let found = read(architecture, &[used]).unwrap();
        assert_eq!(found["norm_topk_prob"], json!(normalized), "{architecture}");
        let missing = read(architecture, &[]).unwrap_err();
        assert!(missing.contains(&format!("{architecture}.expert_used_count")), "{missing}");
    }

    // What the metadata leaves out, shapes say.
    let tensors: &[Tensor<'_>] = &[
        ("blk.0.ffn_gate_exps.weight", &[2, 5, 8], 0, 0),
        ("blk.0.ffn_gate_shexp.weight", &[2, 7], 0, 320),
    ];
    let values = [
        ("general.architecture", text("qwen2moe")),
        ("qwen2moe.expert_count", u32(8)),
        ("qwen2moe.expert_used_count", u32(2)),
    ];
    let (_place, path) = written(&file(&values, tensors, 400));
    let found = object(&path, "config.json");
    assert_eq!(found["moe_intermediate_size"], 5);
    assert_eq!(found["shared_expert_intermediate_size"], 7);
}

#[test]
fn compressed_keys_and_experts_in_groups_become_a_configuration() {
    let read = |architecture: &str, more: &[(&str, Value)]| {
        let tensors: &[Tensor<'_>] = &[
            ("blk.0.attn_k_b.weight", &[4, 6, 2], 0, 0),
            ("blk.0.attn_q_norm.weight", &[4], 0, 192),
            ("blk.1.exp_probs_b.bias", &[8], 0, 224),
            ("blk.2.nextn.eh_proj.weight", &[2, 2], 0, 256),
            ("blk.1.ffn_up_shexp.weight", &[2, 2], 0, 288),
        ];
        let own = [
            ("attention.head_count", u32(2)),
            ("embedding_length", u32(16)),
            ("block_count", u32(3)),
        ];
        let experts = [("expert_count", u32(8)), ("expert_used_count", u32(3))];
        let values = own.into_iter().chain(experts).chain(more.iter().cloned());
        let values = values.map(|(key, value)| (format!("{architecture}.{key}"), value));
        let values: Vec<_> = values.collect();
        let named = ("general.architecture", text(architecture));
        let values: Vec<_> = [named]
            .into_iter()
            .chain(values.iter().map(|(key, value)| (key.as_str(), value.clone())))
            .collect();
        let (place, path) = written(&file(&values, tensors, 320));
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tensors: Vec<_> = (checkpoint.tensors().iter())
            .map(|tensor| (tensor.name.clone(), tensor.shape.clone()))
            .collect();
        let config = read_object(&path.join("config.json")).map_err(|error| error.to_string());
        drop(place);
        config.map(|config| (config.unwrap(), tensors))
    };
    let sizes = [
        ("attention.key_length", u32(10)),
        ("attention.key_length_mla", u32(8)),
        ("attention.value_length", u32(6)),
        ("attention.value_length_mla", u32(5)),
        ("attention.head_count_kv", u32(1)),
        ("attention.kv_lora_rank", u32(6)),
        ("rope.dimension_count", u32(4)),
        ("rope.scaling.type", text("yarn")),
        ("rope.scaling.factor", f32(40.0)),
        ("rope.scaling.yarn_log_multiplier", f32(0.125)),
        ("expert_gating_func", u32(2)),
        ("expert_shared_count", u32(1)),
    ];
    let (found, tensors) = read("deepseek2", &sizes).unwrap();
    let wanted = json!({
        "model_type": "deepseek_v3", "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 16, "num_hidden_layers": 3, "n_routed_experts": 8,
        "num_experts_per_tok": 3, "q_lora_rank": null, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
        "v_head_dim": 5, "kv_b_apart": true, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
        "norm_topk_prob": false, "first_k_dense_replace": 0, "n_shared_experts": 1, "tie_word_embeddings": true,
        "bos_token_id": null, "eos_token_id": null,
        "rope_scaling": { "rope_type": "yarn", "factor": 40.0, "mscale_all_dim": 1.25, "attention_factor": 1.0 },
    });
    assert_eq!(Json::from(found), wanted);
    let names: Vec<_> =
        tensors.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    assert_eq!(
        names,
        [
            ("model.layers.0.self_attn.kv_b_proj.keys", &[12, 4][..]),
            ("model.layers.0.self_attn.q_norm.weight", &[4]),
            ("model.layers.1.mlp.gate.e_score_correction_bias", &[8]),
            ("blk.2.nextn.eh_proj.weight", &[2, 2]),
            ("model.layers.1.mlp.shared_experts.up_proj.weight", &[2, 2]),
        ]
    );

    // Older files have no such widths beside others, and choose by a softmax unless something is
    // added to scores.
    let (found, _) =
        read("deepseek2", &[sizes[0].clone(), sizes[2].clone(), sizes[6].clone()]).unwrap();
    assert_eq!(
        ["model_type", "qk_nope_head_dim", "v_head_dim"].map(|field| found[field].clone()),
        [json!("deepseek_v3"), json!(6), json!(6)]
    );
    let experts = [("deepseek2.expert_count", u32(8)), ("deepseek2.expert_used_count", u32(3))];
    assert_eq!(config("deepseek2", &experts).unwrap()["model_type"], "deepseek_v2");
    // Without experts there is another model.
    assert_eq!(config("deepseek2", &[]).unwrap()["model_type"], "youtu");
    // Layers that guess further tokens are none of the model's.
    let (found, tensors) = read("glm4moe", &[("nextn_predict_layers", u32(1))]).unwrap();
    assert!(tensors.iter().all(|(name, _)| !name.contains("nextn")), "{tensors:?}");
    assert_eq!(
        ["model_type", "num_hidden_layers", "use_qk_norm"].map(|field| found[field].clone()),
        [json!("glm4_moe"), json!(2), json!(true)]
    );
    for architecture in ["deepseek2", "glm4moe"] {
        let error = read(architecture, &[("expert_gating_func", u32(4))]).unwrap_err();
        assert!(error.contains("expert_gating_func"), "{error}");
    }
}

#[test]
fn gpt_oss_has_sinks_biases_of_experts_and_several_messages_an_answer() {
    let tensors: &[Tensor<'_>] = &[
        ("blk.1.attn_sinks.weight", &[4], 0, 0),
        ("blk.1.ffn_gate_inp.bias", &[3], 0, 32),
        ("blk.1.ffn_up_exps.bias", &[2, 3], 0, 64),
    ];
    let types: Vec<_> = [3, 3, 1, 3].map(u32).into();
    let values = [
        ("general.architecture", text("gpt-oss")),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.tokens", texts(&["<|end|>", "<|return|>", "a", "<|call|>"])),
        ("tokenizer.ggml.token_type", array(&types)),
    ];
    let (_place, path) = written(&file(&values, tensors, 96));
    let checkpoint = Checkpoint::open(&path).unwrap();
    let found: Vec<_> = (checkpoint.tensors().iter())
        .map(|tensor| {
            (tensor.name.strip_prefix("model.layers.1.").unwrap(), &*tensor.shape, tensor.len)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("self_attn.sinks", &[4][..], 16),
            ("mlp.router.bias", &[3], 12),
            ("mlp.experts.0.up_proj.bias", &[2], 8),
            ("mlp.experts.1.up_proj.bias", &[2], 8),
            ("mlp.experts.2.up_proj.bias", &[2], 8),
        ]
    );
    // The end of a message is none of the answer.
    assert_eq!(object(&path, "config.json")["eos_token_id"], json!([1, 3]));
}

#[test]
fn layers_of_state_spaces_are_told_by_lists() {
    let numbers = |numbers: &[u32]| array(&numbers.iter().map(|n| u32(*n)).collect::<Vec<_>>());
    let nemotron = |heads: Value, widths: Value| {
        let more = [
            ("nemotron_h.block_count", u32(3)),
            ("nemotron_h.embedding_length", u32(32)),
            ("nemotron_h.attention.head_count", u32(4)),
            ("nemotron_h.attention.head_count_kv", heads),
            ("nemotron_h.feed_forward_length", widths),
            ("nemotron_h.attention.layer_norm_epsilon", f32(1e-5)),
            ("nemotron_h.ssm.inner_size", u32(64)),
            ("nemotron_h.ssm.time_step_rank", u32(4)),
        ];
        config("nemotron_h", &more)
    };
    let found = nemotron(numbers(&[0, 2, 0]), numbers(&[0, 0, 48])).unwrap();
    let fields = [
        ("hybrid_override_pattern", json!("M*-")),
        ("num_key_value_heads", json!(2)),
        ("intermediate_size", json!(48)),
        ("layer_norm_epsilon", json!(1e-5)),
        ("mamba_head_dim", json!(16)),
        ("linear_rates_negated", json!(true)),
        ("use_conv_bias", json!(false)),
    ];
    for (field, wanted) in fields {
        assert_eq!(found[field], wanted, "{field}");
    }
    let said = nemotron(u32(2), numbers(&[0, 0, 48])).unwrap_err();
    assert!(said.contains("nemotron_h.attention.head_count_kv"), "{said}");

    let jamba = |layers: u32, heads: &[u32]| {
        let more = [
            ("jamba.block_count", u32(layers)),
            ("jamba.embedding_length", u32(32)),
            ("jamba.attention.head_count", u32(4)),
            ("jamba.attention.head_count_kv", numbers(heads)),
            ("jamba.ssm.inner_size", u32(64)),
        ];
        config("jamba", &more)
    };
    let found = jamba(6, &[0, 2, 0, 0, 2, 0]).unwrap();
    let periods = ["attn_layer_period", "attn_layer_offset", "num_experts"];
    assert_eq!(periods.map(|field| found[field].clone()), [json!(3), json!(1), json!(1)]);
    let said = jamba(6, &[0, 2, 0, 2, 0, 0]).unwrap_err();
    assert!(said.contains("jamba.attention.head_count_kv") && said.contains("period"), "{said}");
    let said = jamba(u32::MAX, &[0, 2]).unwrap_err();
    assert!(said.contains("jamba.block_count"), "{said}");

    let sizeless = config("mamba", &[("mamba.block_count", u32(1))]).unwrap_err();
    assert!(sizeless.contains("mamba.ssm.inner_size"), "{sizeless}");
}

#[test]
fn layers_of_gemma_are_told_by_lists() {
    let flags = |flags: &[bool]| array(&flags.iter().map(|local| flag(*local)).collect::<Vec<_>>());
    let gemma = |architecture: &'static str, more: &[(&'static str, Value)], factors: &[f32]| {
        let sizes = [("block_count", 2), ("embedding_length", 32), ("attention.head_count", 4)];
        let keys = sizes.map(|(key, n)| (format!("{architecture}.{key}"), u32(n)));
        let mut values = vec![("general.architecture", text(architecture))];
        values.extend(keys.iter().map(|(key, n)| (key.as_str(), n.clone())));
        values.extend(more.iter().cloned());
        let tensors: &[Tensor<'_>] = &[("rope_freqs.weight", &[4], 0, 0)];
        let mut bytes = file(&values, tensors, 16);
        let start = bytes.len() - 16;
        for (at, factor) in factors.iter().enumerate() {
            bytes[start + 4 * at..][..4].copy_from_slice(&factor.to_le_bytes());
        }
        let (_place, path) = written(&bytes);
        let read = read_object(&path.join("config.json"));
        read.map(Option::unwrap).map_err(|error| error.to_string())
    };
    let pattern = ("gemma4.attention.sliding_window_pattern", flags(&[true, false]));
    let found = gemma("gemma4", std::slice::from_ref(&pattern), &[1.0, 1e30, 1e30, 1e30]).unwrap();
    assert_eq!(found["layer_types"], json!(["sliding_attention", "full_attention"]));
    let full = &found["rope_parameters"]["full_attention"];
    assert_eq!(full, &json!({"rope_type": "proportional", "partial_rotary_factor": 0.375}));
    let said = gemma("gemma4", &[pattern], &[1.0, 2.0, 1e30, 1e30]).unwrap_err();
    assert!(said.contains("rope_freqs.weight"), "{said}");
    let said = gemma("gemma4", &[], &[1.0; 4]).unwrap_err();
    assert!(said.contains("gemma4.attention.sliding_window_pattern"), "{said}");

    let scales = array(&[f32(1.644_853_5), f32(f32::NEG_INFINITY)]);
    let more = [
        ("gemma3n.attention.sliding_window_pattern", flags(&[true, false])),
        ("gemma3n.activation_sparsity_scale", scales),
    ];
    let found = gemma("gemma3n", &more, &[1.0; 4]).unwrap();
    assert_eq!(found["activation_sparsity_pattern"], json!([0.95, 0.0]));
}

#[test]
fn only_queries_of_ministral_grow() {
    let read = |architecture: &'static str| {
        let keys = ["attention.temperature_scale", "rope.scaling.yarn_log_multiplier"];
        let keys = keys.map(|key| (format!("{architecture}.{key}"), f32(0.125)));
        let kind = (format!("{architecture}.rope.scaling.type"), text("yarn"));
        let values: Vec<_> = keys.into_iter().chain([kind]).collect();
        let more: Vec<_> =
            values.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        config(architecture, &more).unwrap()
    };
    let ministral = read("mistral3");
    assert_eq!(ministral["model_type"], "ministral3");
    assert_eq!(ministral["rope_scaling"]["llama_4_scaling_beta"], 0.125);
    assert!(!ministral.keys().any(|field| field.starts_with("mistral3.")), "{ministral:?}");
    // What nobody knows of another model is left to be mentioned.
    let qwen = read("qwen2");
    assert_eq!(qwen["model_type"], "qwen2");
    assert_eq!(qwen["qwen2.attention.temperature_scale"], 0.125);
    assert_eq!(qwen["qwen2.rope.scaling.yarn_log_multiplier"], 0.125);
    assert!(qwen["rope_scaling"].get("attention_factor").is_none());
}

/// Values of every type, some of them beyond all bounds.
pub fn odd_value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![Just(0u32), Just(1), 2u32..100, Just(u32::MAX)];
    let real = prop_oneof![-1e3f32..1e3, Just(f32::NEG_INFINITY), Just(f32::NAN), Just(0.0)];
    let numbers = prop::collection::vec(number.clone(), 0..6);
    let flags = prop::collection::vec(any::<bool>(), 0..6);
    let reals = prop::collection::vec(real.clone(), 0..6);
    let all = |values: Vec<Value>| array(&values);
    prop_oneof![
        4 => number.prop_map(u32),
        1 => real.prop_map(f32),
        1 => any::<bool>().prop_map(flag),
        1 => Just(text("yarn")),
        2 => numbers.prop_map(move |of| all(of.into_iter().map(u32).collect())),
        2 => flags.prop_map(move |of| all(of.into_iter().map(flag).collect())),
        1 => reals.prop_map(move |of| all(of.into_iter().map(f32).collect())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn odd_metadata_becomes_a_configuration_or_one_error(
        architecture in prop::sample::select(vec![
            "nemotron_h", "nemotron_h_moe", "granitehybrid", "granitemoe", "falcon-h1", "jamba", "mamba",
            "mamba2", "gemma3n", "gemma4", "llama4", "mistral3", "exaone4", "deepseek2", "qwen3next", "lfm2",
            "cohere2moe", "laguna", "mimo2", "step35", "kimi-linear", "deepseek4", "afmoe", "hy_v3", "exaone-moe",
            "mellum", "olmo2",
        ]),
        values in prop::collection::hash_map(
            prop::sample::select(vec![
                "activation_sparsity_scale", "attention.head_count", "attention.head_count_kv",
                "attention.recurrent_layers", "attention.value_length",
                "attention.key_length", "attention.key_length_swa", "attention.shared_kv_layers",
                "attention.sliding_window", "attention.sliding_window_pattern",
                "attention.temperature_scale", "block_count", "embedding_length", "expert_count",
                "expert_feed_forward_length", "expert_gating_func",
                "expert_shared_feed_forward_length", "expert_used_count", "feed_forward_length",
                "kda.head_dim", "nextn_predict_layers", "rope.dimension_count", "rope.freq_base",
                "rope.dimension_count_swa", "rope.scaling.factor", "rope.scaling.finetuned",
                "rope.scaling.type", "rope.scaling.yarn_log_multiplier", "ssm.dt_b_c_rms",
                "ssm.inner_size", "ssm.time_step_rank", "swiglu_clamp_exp", "swiglu_clamp_shexp",
            ]),
            odd_value(),
            0..16,
        ),
    ) {
        let values: Vec<_> = values.into_iter()
            .map(|(key, value)| (format!("{architecture}.{key}"), value))
            .collect();
        let more: Vec<_> = values.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        let began = Instant::now();
        if let Err(said) = config(architecture, &more) {
            prop_assert!(said.contains("model.gguf: ") && !said.chars().any(char::is_control), "{said}");
        }
        prop_assert!(began.elapsed() < Duration::from_secs(5));
    }
}
