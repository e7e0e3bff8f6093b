use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// The least configuration that is accepted.
fn least() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 256,
    })
}

fn read(changes: Value) -> Result<ModelConfig, Error> {
    let mut config = least();
    for (field, value) in changes.as_object().unwrap() {
        config[field] = value.clone();
    }
    ModelConfig::from_json(&config.to_string())
}

/// The error's message, which must name `field`.
#[track_caller]
fn refusal(changes: Value, field: &str) -> String {
    let message = read(changes).unwrap_err().to_string();
    assert!(message.contains(&format!("`{field}`")), "{message}");
    message
}

#[test]
fn defaults_are_those_of_transformers() {
    let config = read(json!({})).unwrap();
    assert_eq!((config.num_key_value_heads, config.head_dim), (4, 16));
    assert_eq!((config.query_size(), config.key_value_size()), (64, 64));
    assert_eq!(
        config.rope,
        RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default
        }
    );
    assert_eq!(
        (config.rms_norm_eps, config.max_position_embeddings),
        (1e-6, 2048)
    );
    assert!(
        !config.tie_word_embeddings
            && config.bos_token_ids.is_empty()
            && config.eos_token_ids.is_empty()
    );
    assert_eq!(config.dtype, None);
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
    let RopeScaling::Llama3 {
        factor,
        original_max_position_embeddings,
        ..
    } = old.rope.scaling
    else {
        panic!("{:?}", old.rope);
    };
    assert_eq!(
        (old.rope.theta, factor, original_max_position_embeddings),
        (500_000.0, 8.0, 8192)
    );
    // The first writers called it `type`; the theta within wins.
    let plain =
        read(json!({"rope_theta": 1e4, "rope_parameters": {"type": "default", "rope_theta": 2e4}}))
            .unwrap();
    assert_eq!(
        plain.rope,
        RopeConfig {
            theta: 2e4,
            scaling: RopeScaling::Default
        }
    );
}

#[test]
fn llama3_scaling_defaults_to_the_trained_context() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    let config = read(json!({"rope_scaling": scaling, "max_position_embeddings": 4096})).unwrap();
    assert!(matches!(
        config.rope.scaling,
        RopeScaling::Llama3 {
            original_max_position_embeddings: 4096,
            ..
        }
    ));
}

#[test]
fn ids_are_one_or_several() {
    let config =
        read(json!({"bos_token_id": 128_000, "eos_token_id": [128_001, 128_009]})).unwrap();
    assert_eq!(
        (config.bos_token_ids, config.eos_token_ids),
        (vec![128_000], vec![128_001, 128_009])
    );
    assert_eq!(
        read(json!({"eos_token_id": -1})).unwrap().eos_token_ids,
        Vec::<u32>::new()
    );
    for bad in [
        json!("2"),
        json!(1.5),
        json!([[2]]),
        json!(1u64 << 32),
        json!(vec![0; 2000]),
    ] {
        refusal(json!({"eos_token_id": bad}), "eos_token_id");
    }
}

#[test]
fn dtypes_old_and_new() {
    assert_eq!(
        read(json!({"dtype": "bfloat16", "torch_dtype": "float32"}))
            .unwrap()
            .dtype,
        Some(WeightDtype::Bf16)
    );
    assert_eq!(
        read(json!({"torch_dtype": "torch.float16"})).unwrap().dtype,
        Some(WeightDtype::F16)
    );
    refusal(json!({"torch_dtype": "float8_e4m3fn"}), "torch_dtype");
}

#[test]
fn an_unknown_architecture_lists_the_known_ones() {
    let message = read(json!({"model_type": "mamba"}))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("`mamba`") && message.contains("supported: llama"),
        "{message}"
    );
    refusal(json!({"model_type": null}), "model_type");
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    refusal(json!({"attention_bias": true}), "attention_bias");
    refusal(json!({"mlp_bias": true}), "mlp_bias");
    refusal(json!({"hidden_act": "gelu"}), "hidden_act");
    refusal(
        json!({"quantization_config": {"quant_method": "gptq"}}),
        "quantization_config",
    );
    refusal(
        json!({"partial_rotary_factor": 0.5}),
        "partial_rotary_factor",
    );
    refusal(
        json!({"rope_parameters": {"partial_rotary_factor": 0.5}}),
        "rope_parameters.partial_rotary_factor",
    );
    let yarn = refusal(
        json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}),
        "rope_scaling.type",
    );
    assert!(
        yarn.contains("\"yarn\"") && yarn.contains("llama3"),
        "{yarn}"
    );
    refusal(
        json!({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
        "rope_parameters.rope_type",
    );
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
    assert_eq!(
        read(json!({"num_attention_heads": 5, "head_dim": 30}))
            .unwrap()
            .query_size(),
        150
    );
    refusal(json!({"head_dim": 15}), "head_dim");
    refusal(json!({"num_attention_heads": 64}), "hidden_size");
    refusal(json!({"num_attention_heads": 128}), "hidden_size");
}

#[test]
fn numbers_out_of_bounds_are_refused_by_name() {
    for bad in [
        json!(0.0),
        json!(-1e-5),
        json!(1e-300),
        json!(2.0),
        json!("1e-5"),
    ] {
        refusal(json!({"rms_norm_eps": bad}), "rms_norm_eps");
    }
    for bad in [json!(0), json!(-1.0), json!(1e300), json!("10000")] {
        refusal(json!({"rope_theta": bad}), "rope_theta");
        refusal(
            json!({"rope_parameters": {"rope_theta": bad}}),
            "rope_parameters.rope_theta",
        );
    }
    let good = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    for (field, bad) in [
        ("factor", json!(0.5)),
        ("factor", json!(null)),
        ("low_freq_factor", json!(0)),
        ("high_freq_factor", json!(1.0)),
        ("original_max_position_embeddings", json!(0)),
    ] {
        let mut scaling = good.clone();
        scaling[field] = bad.clone();
        if field.starts_with("original") || !bad.is_null() {
            refusal(
                json!({"rope_scaling": scaling}),
                &format!("rope_scaling.{field}"),
            );
        } else {
            assert!(matches!(
                read(json!({"rope_scaling": scaling})),
                Err(Error::MissingField { .. })
            ));
        }
    }
    refusal(json!({"rope_scaling": [1]}), "rope_scaling");
}

#[test]
fn long_values_are_cut_in_messages() {
    let message = refusal(json!({"hidden_act": "é".repeat(10_000)}), "hidden_act");
    assert!(message.len() < 400, "{message}");
}

#[test]
fn text_that_is_no_object_is_refused() {
    for text in [
        "",
        "{",
        "[]",
        "7",
        "null",
        "\u{0}",
        "{\"model_type\": \"llama\"} x",
    ] {
        assert!(
            matches!(ModelConfig::from_json(text), Err(Error::Json { .. })),
            "{text}"
        );
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
        prop::sample::select(vec!["llama", "llama3", "default", "silu", "bfloat16", ""])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 6, |inner| {
        let key = prop::sample::select(vec![
            "rope_type",
            "type",
            "factor",
            "rope_theta",
            "low_freq_factor",
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
    /// Whatever a file says, it is refused by a message or gives a configuration whose sizes all hold together.
    #[test]
    fn any_fields_are_refused_or_consistent(
        changes in prop::collection::vec((
            prop::sample::select(vec![
                "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                "head_dim", "vocab_size", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
                "tie_word_embeddings", "max_position_embeddings", "bos_token_id", "eos_token_id", "dtype",
            ]),
            value(),
        ), 0..4),
    ) {
        let changes = Value::Object(changes.into_iter().map(|(field, value)| (field.to_owned(), value)).collect());
        match read(changes) {
            Err(error) => prop_assert!(error.to_string().starts_with("config.json")),
            Ok(config) => {
                prop_assert_eq!(config.num_attention_heads % config.num_key_value_heads, 0);
                prop_assert!(config.head_dim >= 2 && config.head_dim % 2 == 0);
                prop_assert!(config.parameters() > 0 && config.parameters() < 1 << 60);
                prop_assert!(crate::KvCache::bytes(&config, &crate::CacheOptions::new(usize::MAX)) > 0);
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
