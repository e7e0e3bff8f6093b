use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::arch::{LlamaForCausalLm, RmsConfig};
use crate::{CacheOptions, KvCache, ModelConfig, Rope};

mod every_field;
mod integers;
mod rope_and_windows;

/// The least configuration that is accepted.
fn least() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 256,
    })
}

/// What all architectures read, and what Llama's does.
#[derive(Debug, Clone, PartialEq)]
struct Both {
    model: ModelConfig,
    llama: RmsConfig,
}

impl std::ops::Deref for Both {
    type Target = RmsConfig;

    fn deref(&self) -> &RmsConfig {
        &self.llama
    }
}

fn read(changes: Value) -> Result<Both, Error> {
    let mut config = least();
    for (field, value) in changes.as_object().unwrap() {
        config[field] = value.clone();
    }
    let model = ModelConfig::from_json(&config.to_string())?;
    let llama = model.of::<LlamaForCausalLm>().unwrap().clone();
    Ok(Both { model, llama })
}

/// The error's message, which must name `field`.
#[track_caller]
fn refusal(changes: Value, field: &str) -> String {
    let message = read(changes).unwrap_err().to_string();
    assert!(message.contains(&format!("`{field}`")), "{message}");
    message
}

/// What no field means anything by.
fn nonsense() -> [Value; 4] {
    [json!("an unknown value"), json!(-7.25), json!([[0.5]]), json!({"an": "unknown value"})]
}

#[test]
fn defaults_are_those_of_transformers() {
    let config = read(json!({})).unwrap();
    assert_eq!((config.num_key_value_heads, config.head_dim), (4, 16));
    assert_eq!(config.rope, RopeConfig { theta: 10_000.0, scaling: RopeScaling::Default });
    assert_eq!((config.rms_norm_eps, config.max_position_embeddings), (1e-6, 2048));
    assert!(!config.tie_word_embeddings);
    assert_eq!(config.model.dtype, None);
    // `null` is absent.
    let nulls = json!({"head_dim": null, "num_key_value_heads": null, "rope_scaling": null, "rope_parameters": null,
        "quantization_config": null, "eos_token_id": null, "dtype": null, "rms_norm_eps": null});
    assert_eq!(read(nulls).unwrap(), config);
}

#[test]
fn both_forms_of_rope_say_the_same() {
    let scaling = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let mut new = scaling.clone();
    new["rope_theta"] = json!(500_000.0);
    let old = read(json!({"rope_theta": 500_000, "rope_scaling": scaling})).unwrap();
    assert_eq!(old, read(json!({"rope_parameters": new})).unwrap());
    let RopeScaling::Llama3 { factor, original_max_position_embeddings, .. } = old.rope.scaling
    else {
        panic!("{:?}", old.rope);
    };
    assert_eq!((old.rope.theta, factor, original_max_position_embeddings), (500_000.0, 8.0, 8192));
    // The first writers called it `type`; the theta within wins.
    let plain =
        read(json!({"rope_theta": 1e4, "rope_parameters": {"type": "default", "rope_theta": 2e4}}))
            .unwrap();
    assert_eq!(plain.rope, RopeConfig { theta: 2e4, scaling: RopeScaling::Default });
}

#[test]
fn llama3_scaling_defaults_to_the_trained_context() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    let config = read(json!({"rope_scaling": scaling, "max_position_embeddings": 4096})).unwrap();
    assert!(matches!(
        config.rope.scaling,
        RopeScaling::Llama3 { original_max_position_embeddings: 4096, .. }
    ));
}

#[test]
fn dtypes_old_and_new() {
    assert_eq!(
        read(json!({"dtype": "bfloat16", "torch_dtype": "float32"})).unwrap().model.dtype,
        Some(Dtype::BF16)
    );
    assert_eq!(
        read(json!({"torch_dtype": "torch.float16"})).unwrap().model.dtype,
        Some(Dtype::F16)
    );
    assert_eq!(read(json!({"dtype": "float64"})).unwrap().model.dtype, Some(Dtype::F64));
    refusal(json!({"torch_dtype": "float8_e4m3fn"}), "torch_dtype");
}

#[test]
fn an_unknown_architecture_names_those_that_are_called_alike() {
    for (found, nearest) in
        [("qwen4_moe", "name qwen2, qwen3, "), ("mpt", "name mistral, "), ("", "name llama, ")]
    {
        let message = read(json!({"model_type": found})).unwrap_err().to_string();
        assert!(message.contains(&format!("`{found}`")) && message.contains(nearest), "{message}");
        assert!(
            message.contains(&format!("supported: {} types", crate::model_types().count())),
            "{message}"
        );
    }
    refusal(json!({"model_type": null}), "model_type");
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    refusal(
        json!({"quantization_config": {"quant_method": "hqq"}}),
        "quantization_config.quant_method",
    );
    let fp8 = |changes: Value| {
        let mut blocks = json!({"quant_method": "fp8", "weight_block_size": [128, 64]});
        for (field, value) in changes.as_object().unwrap() {
            blocks[field] = value.clone();
        }
        json!({"quantization_config": blocks})
    };
    for (field, value) in [
        ("fmt", json!("e5m2")),
        ("activation_scheme", json!("blocked")),
        ("weight_block_size", json!([128, 0])),
        ("weight_block_size", json!([128, 128, 1])),
        ("weight_block_size", json!([128, 70_000])),
        ("weight_block_size", json!(128)),
        ("modules_to_not_convert", json!("lm_head")),
        ("modules_to_not_convert", json!([1])),
    ] {
        let path = format!("quantization_config.{field}");
        refusal(fp8(json!({ field: value })), &path);
    }
    let read = |changes| read(fp8(changes)).unwrap().model;
    let whole = read(json!({"weight_block_size": null, "activation_scheme": "static"}));
    let whole = whole.quantization.unwrap().format.unwrap().scales.unwrap();
    assert_eq!(whole.shape([500, 300]), [1, 1]);
    let model = read(json!({"fmt": "e4m3", "activation_scheme": "dynamic"}));
    let quantization = model.quantization.clone().unwrap();
    assert_eq!(quantization.format.unwrap().scales.unwrap().block, [128, 64]);
    let converted = |model: &ModelConfig| {
        let weights = model.weights().into_iter();
        weights.filter(|weight| model.quantization.as_ref().unwrap().converts(weight)).count()
    };
    assert_eq!(converted(&model), 2 * 7);
    let others = ["hqq", "bitsandbytes"];
    for method in others {
        let said = fp8(json!({ "quant_method": method }));
        let said = self::read(said).unwrap_err().to_string();
        assert!(said.contains(method) && said.contains("GGUF"), "{said}");
    }
    let kept = ["model.layers.0.mlp", "model.layers.1.self_attn.q_proj"];
    assert_eq!(converted(&read(json!({"modules_to_not_convert": kept}))), 2 * 7 - 4 + 1);
    refusal(json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor");
    refusal(
        json!({"rope_parameters": {"partial_rotary_factor": 0.5}}),
        "rope_parameters.partial_rotary_factor",
    );
    let message = refusal(
        json!({"rope_scaling": {"type": "proportional", "factor": 4.0}}),
        "rope_scaling.type",
    );
    assert!(message.contains("\"proportional\"") && message.contains("yarn"), "{message}");
    let message = refusal(json!({"hidden_act": "xielu"}), "hidden_act");
    assert!(message.contains("gelu_pytorch_tanh"), "{message}");
    let message =
        refusal(json!({"architectures": ["LlamaForSequenceClassification"]}), "architectures");
    assert!(message.contains("ForCausalLM"), "{message}");
    refusal(json!({"is_causal": false}), "is_causal");
}

#[test]
fn biases_are_where_the_architecture_has_them() {
    let biases = |changes| {
        let config = read(changes).unwrap();
        let (inputs, output) = (config.attention_in_bias, config.attention_out_bias);
        (inputs, output, config.mlp_bias)
    };
    assert_eq!(biases(json!({})), (false, false, false));
    let attention = json!({"attention_bias": true});
    assert_eq!(biases(attention), (true, true, false));
    assert_eq!(biases(json!({"mlp_bias": true})), (false, false, true));
    assert_eq!(
        biases(json!({"model_type": "mistral", "num_key_value_heads": 4})),
        (false, false, false)
    );
    assert_eq!(
        biases(json!({"model_type": "qwen2", "num_key_value_heads": 4})),
        (true, false, false)
    );
    refusal(json!({"model_type": "mistral", "attention_bias": true}), "attention_bias");
    refusal(json!({"model_type": "qwen2", "attention_bias": false}), "attention_bias");
}

#[test]
fn what_is_absent_is_as_in_each_architecture() {
    // `LlamaConfig()`, `MistralConfig()`, `Qwen2Config()` of transformers 5.23.
    for (name, positions, kv_heads, window) in [
        ("llama", 2048, 64, None),
        ("mistral", 131_072, 8, Some(4096)),
        ("qwen2", 32_768, 32, None),
    ] {
        let config =
            read(json!({"model_type": name, "num_attention_heads": 64, "hidden_size": 256}));
        let config = config.unwrap();
        assert_eq!(config.model.model_type(), name);
        assert_eq!(config.max_position_embeddings, positions);
        assert_eq!(config.num_key_value_heads, kv_heads);
        assert_eq!(config.windows, [window; 2]);
        // Null is not absent here.
        let nulls =
            read(json!({"model_type": name, "num_key_value_heads": null, "sliding_window": null}))
                .unwrap();
        assert_eq!((nulls.num_key_value_heads, nulls.windows.clone()), (4, vec![None; 2]));
    }
}

#[test]
fn sizes_out_of_bounds_are_refused_by_name() {
    for field in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "head_dim",
        "num_key_value_heads",
        "max_position_embeddings",
    ] {
        for bad in [
            json!(0),
            json!(-4),
            json!(1u64 << 40),
            json!(u64::MAX),
            json!(64.0),
            json!("64"),
            json!([64]),
        ] {
            let message = refusal(json!({field: bad}), field);
            assert!(message.contains(&bad.to_string()), "{message}");
        }
    }
    for field in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
    ] {
        let message = refusal(json!({field: null}), field);
        assert!(message.contains("missing"), "{message}");
    }
}

#[test]
fn heads_must_fit_together() {
    refusal(json!({"num_key_value_heads": 3}), "num_key_value_heads");
    refusal(json!({"num_key_value_heads": 8}), "num_key_value_heads");
    refusal(json!({"num_attention_heads": 5}), "hidden_size");
    let odd = read(json!({"num_attention_heads": 5, "head_dim": 30})).unwrap();
    assert_eq!(odd.model.weights()[2].shape, [150, 64]);
    refusal(json!({"head_dim": 15}), "head_dim");
    refusal(json!({"num_attention_heads": 64}), "hidden_size");
    refusal(json!({"num_attention_heads": 128}), "hidden_size");
}

#[test]
fn long_values_are_cut_in_messages() {
    let message = refusal(json!({"hidden_act": "é".repeat(10_000)}), "hidden_act");
    assert!(message.len() < 400, "{message}");
}

#[test]
fn control_characters_are_escaped_in_messages() {
    let message = refusal(json!({"hidden_act": "a\u{7f}\u{9b}2J\u{1b}[2J\"'é"}), "hidden_act");
    assert!(message.contains(r#""a\u{7f}\u{9b}2J\u001b[2J\"'é""#), "{message}");
}

#[test]
fn text_that_is_no_object_is_refused() {
    for text in ["", "{", "[]", "7", "null", "\u{0}", "{\"model_type\": \"llama\"} x"] {
        assert!(matches!(ModelConfig::from_json(text), Err(Error::Json { .. })), "{text}");
    }
}

/// Any JSON, with numbers and strings that fields may hold among it.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u64..5000).prop_map(Value::from),
        (0u32..64).prop_map(|shift| Value::from(1u64 << shift)),
        prop::sample::select(vec![
            "llama",
            "mistral",
            "qwen2",
            "llama3",
            "yarn",
            "dynamic",
            "linear",
            "default",
            "silu",
            "gelu",
            "bfloat16",
            "full_attention",
            "sliding_attention",
            "LlamaForCausalLM",
            "",
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 6, |inner| {
        let key = prop::sample::select(vec![
            "rope_type",
            "type",
            "factor",
            "rope_theta",
            "low_freq_factor",
            "high_freq_factor",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "beta_fast",
            "beta_slow",
            "truncate",
            "original_max_position_embeddings",
            "x",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.prop_map(String::from), inner), 0..5)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Whatever a file says, it is refused by a message or gives a configuration whose sizes all
    /// hold together.
    #[test]
    fn any_fields_are_refused_or_consistent(
        changes in prop::collection::vec((
            prop::sample::select(vec![
                "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                "head_dim", "vocab_size", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
                "tie_word_embeddings", "max_position_embeddings", "bos_token_id", "eos_token_id", "dtype", "model_type",
                "hidden_act", "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window", "max_window_layers",
                "layer_types", "architectures", "original_max_position_embeddings", "logit_scale", "x",
            ]),
            value(),
        ), 0..5),
    ) {
        let changes = Value::Object(changes.into_iter().map(|(field, value)| (field.to_owned(), value)).collect());
        match read(changes) {
            Err(error) => prop_assert!(error.to_string().starts_with("config.json")),
            Ok(config) => {
                prop_assert_eq!(config.num_attention_heads % config.num_key_value_heads, 0);
                prop_assert!(config.head_dim >= 2 && config.head_dim % 2 == 0);
                prop_assert!(config.model.parameter_count() > 0 && config.model.parameter_count() < 1 << 60);
                prop_assert_eq!(config.windows.len(), config.num_hidden_layers);
                prop_assert!(config.windows.iter().flatten().all(|&window| window > 0));
                prop_assert!(config.model.unknown_fields.len() <= 32);
                prop_assert!(Rope::new(&config.rope, config.head_dim).is_finite());
                prop_assert!(KvCache::bytes(config.model.cache(), &CacheOptions::new(usize::MAX)) > 0);
            }
        }
    }

    /// Text that has been damaged never panics.
    #[test]
    fn damaged_text_never_panics(at in 0usize..2000, byte in any::<u8>(), cut in 0usize..2000) {
        let mut bytes = crate::presets::config("llama-1b").unwrap().as_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(cut.max(1));
        let _ = ModelConfig::from_json(&String::from_utf8_lossy(&bytes));
    }
}
