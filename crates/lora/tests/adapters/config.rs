//! What is read of `adapter_config.json`, what is refused by name, and which modules it matches.

use outsize_lora::{LoraConfig, ModulePattern};
use outsize_models::{ModelConfig, presets};
use proptest::prelude::*;
use serde_json::{Value, json};

/// As PEFT 0.21.2 writes it.
fn published() -> Value {
    json!({
        "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
        "base_model_name_or_path": "meta-llama/Llama-3.2-1B", "bias": "none", "corda_config": null,
        "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
        "inference_mode": true, "init_lora_weights": true, "kasa_config": null, "layer_replication": null,
        "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 16,
        "lora_bias": false, "lora_dropout": 0.05, "lora_ga_config": null, "megatron_config": null,
        "megatron_core": "megatron.core", "modules_to_save": null, "monteclora_config": null,
        "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16, "r": 8, "rank_pattern": {},
        "revision": null, "target_modules": ["v_proj", "q_proj"], "target_parameters": null,
        "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null, "use_dora": false,
        "use_qalora": false, "use_rslora": false, "velora_config": null
    })
}

fn with(field: &str, value: Value) -> Result<LoraConfig, String> {
    let mut fields = published();
    fields[field] = value;
    LoraConfig::from_json(&fields.to_string()).map_err(|error| error.to_string())
}

fn model(preset: &str) -> ModelConfig {
    ModelConfig::from_json(presets::config(preset).unwrap()).unwrap()
}

/// The modules that a configuration with this field matches.
fn modules(preset: &str, fields: &[(&str, Value)]) -> Result<Vec<String>, String> {
    let mut all = published();
    for (field, value) in fields {
        all[*field] = value.clone();
    }
    let config = LoraConfig::from_json(&all.to_string()).map_err(|error| error.to_string())?;
    let targets = config.targets(&model(preset)).map_err(|error| error.to_string())?;
    Ok(targets.into_iter().map(|target| target.module).collect())
}

#[test]
fn what_peft_writes_is_read_and_written_again() {
    let config = LoraConfig::from_json(&published().to_string()).unwrap();
    assert_eq!((config.rank, config.alpha, config.dropout), (8, 16.0, 0.05));
    assert_eq!(config.target_modules, ModulePattern::suffixes(["v_proj", "q_proj"]));
    assert_eq!(config.base_model.as_deref(), Some("meta-llama/Llama-3.2-1B"));
    let mut full = config.clone();
    full.use_rslora = true;
    full.alpha = 1.5;
    full.exclude_modules = Some(ModulePattern::Regex(".*0.*".into()));
    full.layers_to_transform = vec![1, 3];
    full.layers_pattern = vec!["layers".into()];
    full.rank_pattern = [("q_proj".to_owned(), 3)].into();
    // A number that is only read right if every digit counts.
    full.alpha_pattern = [("q_proj".to_owned(), 9.031016112173644e17)].into();
    for config in [config, full] {
        assert_eq!(LoraConfig::from_json(&config.to_json()).unwrap(), config);
    }
}

#[test]
fn what_would_change_the_result_is_refused_by_name() {
    for (field, value) in [
        ("peft_type", json!("IA3")),
        ("peft_type", Value::Null),
        ("bias", json!("all")),
        ("lora_bias", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("use_dora", json!(true)),
        ("target_parameters", json!([1])),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("loftq")),
        ("layer_replication", json!([[0, 2]])),
        ("trainable_token_indices", json!([1])),
        ("alora_invocation_tokens", json!([1])),
        ("some_new_thing", json!(1)),
        ("r", json!(0)),
        ("r", json!(1.5)),
        ("lora_alpha", json!("16")),
        ("rank_pattern", json!({"q_proj": 0})),
        ("alpha_pattern", json!({"q_proj": "4"})),
        ("target_modules", Value::Null),
        ("target_modules", json!([])),
        ("target_modules", json!([1])),
        ("layers_pattern", json!("layers")),
        ("layers_to_transform", json!([-1])),
        ("use_rslora", json!("yes")),
    ] {
        let message = with(field, value.clone()).expect_err(field);
        assert!(message.contains(&format!("`{field}`")), "{field} = {value}: {message}");
    }
    for (field, value) in [
        ("init_lora_weights", json!("gaussian")),
        ("some_new_thing", json!({})),
        ("some_new_thing", json!(false)),
        ("modules_to_save", json!([])),
        ("bias", Value::Null),
    ] {
        with(field, value).unwrap();
    }
    for text in ["", "[]", "3", "{\"r\": }"] {
        assert!(
            LoraConfig::from_json(text).unwrap_err().to_string().contains("adapter_config.json")
        );
    }
}

#[test]
fn modules_match_as_in_peft() {
    let q = |layers: &[usize]| -> Vec<_> {
        layers.iter().map(|n| format!("model.layers.{n}.self_attn.q_proj")).collect()
    };
    let one = |value: Value| modules("llama-demo", &[("target_modules", value)]);
    assert_eq!(one(json!(["q_proj"])).unwrap(), q(&(0..16).collect::<Vec<_>>()));
    // The end of a part of a name is none of the name's.
    assert!(one(json!(["proj"])).unwrap_err().contains("has no such linear layer"));
    assert_eq!(one(json!(["layers.3.self_attn.q_proj"])).unwrap(), q(&[3]));
    // All of a name must match, and what Python has and automata have not.
    assert!(one(json!("q_proj")).unwrap_err().contains("no such linear layer"));
    assert_eq!(one(json!(r".*\.(?=1\.)1\.(?!mlp).*\.q_proj")).unwrap(), q(&[1]));
    assert_eq!(one(json!("all-linear")).unwrap().len(), 16 * 7);
    assert_eq!(one(json!(["lm_head"])).unwrap(), ["lm_head"]);
    let some = |fields: &[(&str, Value)]| {
        modules("llama-demo", &[fields, &[("target_modules", json!(["q_proj"]))]].concat())
    };
    assert_eq!(some(&[("layers_to_transform", json!([2, 11]))]).unwrap(), q(&[2, 11]));
    assert_eq!(some(&[("layers_to_transform", json!(5))]).unwrap(), q(&[5]));
    let layers = [("layers_to_transform", json!([2])), ("layers_pattern", json!(["h", "layers"]))];
    assert_eq!(some(&layers).unwrap(), q(&[2]));
    let none = [("layers_to_transform", json!([2])), ("layers_pattern", json!("h"))];
    assert!(some(&none).unwrap_err().contains("no such linear layer"));
    let excluded = some(&[("exclude_modules", json!(r".*\.1?[0-9]\..*"))]);
    assert!(excluded.unwrap_err().contains("no such linear layer"));
    let excluded = some(&[("exclude_modules", json!(["layers.0.self_attn.q_proj"]))]);
    assert_eq!(excluded.unwrap(), q(&(1..16).collect::<Vec<_>>()));
}

#[test]
fn ranks_and_scales_are_those_of_the_first_pattern_that_matches() {
    let mut fields = published();
    fields["target_modules"] = json!(["q_proj", "v_proj"]);
    fields["rank_pattern"] = json!({"layers.0.self_attn.q_proj": 4, r"layers\.[01]\..*": 2});
    fields["alpha_pattern"] = json!({"v_proj": 3.0});
    let of = |fields: &Value| {
        let config = LoraConfig::from_json(&fields.to_string()).unwrap();
        config.targets(&model("llama-demo")).unwrap()
    };
    let found: Vec<_> = of(&fields).iter().map(|it| (it.rank, it.scale)).take(5).collect();
    assert_eq!(found, [(4, 4.0), (2, 1.5), (2, 8.0), (2, 1.5), (8, 2.0)]);
    fields["use_rslora"] = json!(true);
    let target = &of(&fields)[0];
    assert_eq!((target.rank, target.scale), (4, 8.0));
    assert_eq!((target.shape, target.in_out), ([1024, 1024], false));
    assert_eq!(target.parameter_count(), 4 * 2048);
}

#[test]
fn modules_that_no_adapter_can_be_added_to_are_named() {
    let refused =
        |preset, target: Value| modules(preset, &[("target_modules", target)]).unwrap_err();
    let message = refused("llama-demo", json!(["q_proj", "embed_tokens"]));
    assert!(message.contains("model.embed_tokens is a table of embeddings"), "{message}");
    let message = refused("qwen2-0.5b", json!(["lm_head"]));
    assert!(message.contains("lm_head is the output head, which is the table"), "{message}");
    let parameters = [("target_parameters", json!(["experts.down_proj"]))];
    let message = modules("olmoe-1b-7b", &parameters).unwrap_err();
    assert!(message.contains("`target_parameters` is experts.down_proj"), "{message}");
    let text = std::fs::read_to_string(crate::common::base("gpt_oss").join("config.json")).unwrap();
    let gpt_oss = ModelConfig::from_json(&text).unwrap();
    let config = LoraConfig::new(2, 2.0, ModulePattern::suffixes(["down_proj"]));
    let message = config.targets(&gpt_oss).unwrap_err().to_string();
    assert!(message.contains("experts.0.down_proj is an expert of a model that has"), "{message}");
    // Experts are no layers in transformers 5, but have names in 4.
    let named = modules("olmoe-1b-7b", &[("target_modules", json!(["gate", "up_proj"]))]).unwrap();
    assert_eq!(named.len(), 16 * (1 + 64));
    assert_eq!(named[0], "model.layers.0.mlp.gate");
    assert_eq!(named[64], "model.layers.0.mlp.experts.63.up_proj");
    let all = modules("olmoe-1b-7b", &[("target_modules", json!("all-linear"))]).unwrap();
    assert!(all.iter().all(|module| module.contains("self_attn")), "{all:?}");
}

#[test]
fn expressions_that_cost_too_much_are_refused() {
    for text in ["(", r"(a|a)*\1b(?=x)((((a*)*)*)*)*c", r"(\w{1000}){1000}", &"a".repeat(1 << 15)] {
        let found = modules("llama-demo", &[("target_modules", json!(text))]);
        let message = found.unwrap_err();
        assert!(
            message.contains("is not a regular expression")
                || message.contains("no such linear layer"),
            "{message}"
        );
    }
}

/// Any JSON, not too deep.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<i32>().prop_map(|n| Value::from(f64::from(n) / 8.0)),
        ".{0,12}".prop_map(Value::from),
        Just(json!("all-linear")),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever a field holds, reading ends without a panic; and what is read is written so that
    /// the same is read.
    #[test]
    fn fields_may_hold_anything(field in 0usize..43, value in anything(), cut in any::<prop::sample::Index>()) {
        let model = model("llama-demo");
        let mut fields = published();
        let names: Vec<_> = fields.as_object().unwrap().keys().cloned().collect();
        fields[&names[field % names.len()]] = value;
        if let Ok(config) = LoraConfig::from_json(&fields.to_string()) {
            prop_assert_eq!(&LoraConfig::from_json(&config.to_json()).unwrap(), &config);
            let _ = config.targets(&model);
        }
        let mut text = fields.to_string();
        let mut at = cut.index(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        text.truncate(at);
        prop_assert!(LoraConfig::from_json(&text).is_err());
    }
}
