//! Every field that is known, one by one.

use super::*;
use crate::Architecture;

/// Llama, Mistral and Qwen2, and the fields they know.
fn tables() -> impl Iterator<Item = (&'static str, Vec<KnownField>)> {
    LlamaForCausalLm::MODEL_TYPES[..3].iter().map(|(model_type, _)| {
        let own = LlamaForCausalLm::fields(model_type).iter();
        let fields = COMMON.iter().chain(own.copied().flatten());
        (*model_type, fields.copied().collect())
    })
}

#[test]
fn every_field_that_changes_the_result_is_refused_at_an_unknown_value() {
    let mut tried = 0;
    for (architecture, fields) in tables() {
        for (field, effect) in fields {
            for value in nonsense() {
                let changes = match field {
                    "model_type" => json!({"model_type": value}),
                    _ => {
                        json!({"model_type": architecture, "num_key_value_heads": 4, field: value})
                    }
                };
                match effect {
                    Effect::Harmless => {
                        let config = read(changes).unwrap().model;
                        assert!(config.unknown_fields.is_empty(), "{field}");
                        continue;
                    }
                    // Read only where another field asks for it.
                    Effect::Read if field == "original_max_position_embeddings" => {
                        let mut changes = changes;
                        changes["rope_scaling"] = json!({"rope_type": "yarn", "factor": 2.0});
                        refusal(changes, field);
                    }
                    // An object of which no field is known says nothing, and is mentioned.
                    Effect::Read
                        if ["rope_parameters", "rope_scaling"].contains(&field)
                            && value.is_object() =>
                    {
                        let unknown = read(changes).unwrap().model.unknown_fields;
                        assert_eq!(unknown, [format!("{field}.an")]);
                    }
                    // An unknown name has an error of its own.
                    Effect::Read if field == "model_type" && value.is_string() => {
                        let error = read(changes).unwrap_err();
                        assert!(matches!(error, Error::ModelType { .. }), "{error}");
                    }
                    Effect::Read | Effect::Only(_) => {
                        refusal(changes, field);
                    }
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 1000, "{tried}");
}

#[test]
fn fields_of_relatives_are_fine_where_they_change_nothing() {
    for (architecture, fields) in tables() {
        for (field, effect) in fields {
            let Effect::Only(values) = effect else {
                continue;
            };
            let neutral = values.iter().map(|text| serde_json::from_str(text).unwrap());
            for value in neutral.chain([Value::Null]) {
                let mut changes = json!({"model_type": architecture, "num_key_value_heads": 4});
                let plain = read(changes.clone()).unwrap();
                changes[field] = value;
                assert_eq!(read(changes).unwrap(), plain, "{field}");
            }
        }
    }
    refusal(json!({"logit_scale": 1.5}), "logit_scale");
    read(json!({"logit_scale": 1.0})).unwrap();
    refusal(json!({"num_experts": 8}), "num_experts");
}

/// An architecture may read what others must not have: its own tables come first.
#[test]
fn a_field_is_in_two_tables_only_if_the_first_reads_it() {
    for (model_type, _) in &LlamaForCausalLm::MODEL_TYPES[..3] {
        let own: Vec<_> = LlamaForCausalLm::fields(model_type).iter().copied().flatten().collect();
        let all: Vec<_> = own.iter().copied().chain(COMMON).collect();
        for (index, (name, _)) in all.iter().enumerate() {
            let before = all[..index].iter().find(|(other, _)| other == name);
            let reads = before.is_none_or(|(_, effect)| matches!(effect, Effect::Read));
            assert!(reads && (before.is_none() || index >= own.len()), "{model_type}: {name}");
        }
    }
}

#[test]
fn fields_that_nobody_knows_are_named() {
    let config =
        read(json!({"zeta": 1, "auto_map": {}, "rope_scaling": {"type": "default", "beta": 2}}));
    assert_eq!(config.unwrap().model.unknown_fields, ["zeta", "auto_map", "rope_scaling.beta"]);
    let hostile = json!({"\u{1b}[2J": 1, "é".repeat(1000): 2});
    for name in read(hostile).unwrap().model.unknown_fields {
        assert!(name.len() < 400 && !name.contains('\u{1b}'), "{name}");
    }
    let many: serde_json::Map<_, _> = (0..1000).map(|i| (format!("x{i}"), json!(1))).collect();
    assert_eq!(read(Value::Object(many)).unwrap().model.unknown_fields.len(), 32);
}
