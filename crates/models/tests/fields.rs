//! Every field that an architecture knows beside those of all, one by one: what changes the result
//! is read or refused by name. And configurations as published are read as a whole.

mod common;

use outsize_models::arch::{
    BloomForCausalLm, FalconForCausalLm, Gemma3ForCausalLm, GptNeoxForCausalLm, Olmo2ForCausalLm,
    OptForCausalLm, Phi3ForCausalLm, Qwen3ForCausalLm,
};
use outsize_models::{Architecture, Effect, KnownField, ModelConfig};
use serde_json::{Value, json};

/// A fixture of each architecture, with the tables of the fields that it knows.
fn architectures() -> Vec<(&'static str, &'static [&'static [KnownField]])> {
    fn of<A: Architecture>(name: &'static str) -> (&'static str, &'static [&'static [KnownField]]) {
        (name, A::fields(A::MODEL_TYPES[0].0))
    }
    vec![
        of::<Qwen3ForCausalLm>("qwen3"),
        of::<Olmo2ForCausalLm>("olmo2"),
        of::<Phi3ForCausalLm>("phi3"),
        of::<Gemma3ForCausalLm>("gemma3"),
        of::<GptNeoxForCausalLm>("gpt_neox"),
        of::<OptForCausalLm>("opt"),
        of::<BloomForCausalLm>("bloom"),
        of::<FalconForCausalLm>("falcon"),
    ]
}

/// The fixture's configuration with one field changed.
fn read(name: &str, field: &str, value: Value) -> Result<ModelConfig, outsize_models::Error> {
    let text = std::fs::read_to_string(common::folder(name).join("config.json")).unwrap();
    let mut fields: Value = serde_json::from_str(&text).unwrap();
    fields[field] = value;
    ModelConfig::from_json(&fields.to_string())
}

/// What no field means anything by.
fn nonsense() -> [Value; 4] {
    [json!("an unknown value"), json!(-7.25), json!([[0.5]]), json!({"an": "unknown value"})]
}

/// Fields that only count together with others, or of which an object with nothing known in it says
/// nothing.
fn may_be_passed_over(name: &str, field: &str, value: &Value) -> bool {
    match field {
        "original_max_position_embeddings" => true,
        "rope_parameters" | "rope_scaling" => value.is_object(),
        // In files of older versions: those of newer ones have it in `rope_parameters`.
        "rope_theta"
        | "rotary_emb_base"
        | "rotary_pct"
        | "partial_rotary_factor"
        | "rope_local_base_freq" => true,
        // Other names of fields that are there.
        "num_attention_heads" | "num_hidden_layers" => name == "bloom",
        _ => false,
    }
}

#[test]
fn what_changes_the_result_is_read_or_refused_by_name() {
    let mut tried = 0;
    for (name, tables) in architectures() {
        for &(field, effect) in tables.iter().copied().flatten() {
            for value in nonsense() {
                let passed_over = may_be_passed_over(name, field, &value);
                match (read(name, field, value), effect) {
                    (Ok(config), Effect::Harmless) => {
                        assert!(config.unknown_fields.is_empty(), "{name}: {field}");
                    }
                    (Ok(_), Effect::Read) => assert!(passed_over, "{name}: {field}"),
                    (Ok(_), Effect::Only(_)) => panic!("{name}: {field} is not refused"),
                    (Err(error), _) => {
                        let message = error.to_string();
                        assert!(message.contains(&format!("`{field}")), "{name}: {message}");
                        tried += 1;
                    }
                }
            }
            if let Effect::Only(values) = effect {
                let plain = read(name, "use_cache", json!(true)).unwrap();
                for value in values.iter().map(|text| serde_json::from_str(text).unwrap()) {
                    assert_eq!(read(name, field, value).unwrap(), plain, "{name}: {field}");
                }
            }
        }
    }
    assert!(tried > 50, "{tried}");
}

#[test]
fn no_field_is_in_two_tables_of_one_architecture() {
    for (name, tables) in architectures() {
        let mut fields: Vec<_> = tables.iter().copied().flatten().map(|(field, _)| field).collect();
        let all = fields.len();
        fields.sort();
        fields.dedup();
        assert_eq!(fields.len(), all, "{name}");
    }
}

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
        ("gemma3", "attn_logit_softcapping", json!(50.0), "attn_logit_softcapping"),
        ("gemma3", "final_logit_softcapping", json!(30.0), "final_logit_softcapping"),
        ("gemma3", "use_bidirectional_attention", json!(true), "use_bidirectional_attention"),
        ("gemma3", "sliding_window", Value::Null, "sliding_window"),
        ("gemma3", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0}), "rope_scaling"),
        ("gemma3", "vision_config", json!({}), "vision_config"),
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
    ] {
        let message = read(name, field, value).unwrap_err().to_string();
        assert!(message.contains(&format!("`{refused}`")), "{name}: {message}");
    }
}

/// Configurations as published, with the parameters that `transformers` counts in their models
/// (`sum(p.numel() for p in AutoModelForCausalLM.from_config(..).parameters())`).
#[test]
fn published_models_have_the_parameters_that_transformers_counts() {
    let text = include_str!("published.json");
    let models: serde_json::Map<String, Value> = serde_json::from_str(text).unwrap();
    assert!(models.len() > 10);
    for (name, model) in models {
        let config = ModelConfig::from_json(&model["config"].to_string()).unwrap();
        assert_eq!(config.unknown_fields, [""; 0], "{name}");
        assert_eq!(Some(config.parameter_count()), model["parameters"].as_u64(), "{name}");
    }
}
