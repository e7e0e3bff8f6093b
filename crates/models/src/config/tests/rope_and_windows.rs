//! What decides how far a token sees, and how it is rotated.

use super::*;

#[test]
fn numbers_out_of_bounds_are_refused_by_name() {
    for bad in [json!(0.0), json!(-1e-5), json!(1e-300), json!(2.0), json!("1e-5")] {
        refusal(json!({"rms_norm_eps": bad}), "rms_norm_eps");
    }
    for bad in [json!(0), json!(-1.0), json!(1e300), json!("10000")] {
        refusal(json!({"rope_theta": bad}), "rope_theta");
        refusal(json!({"rope_parameters": {"rope_theta": bad}}), "rope_parameters.rope_theta");
    }
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 64, "truncate": false});
    let mut scaled = yarn.clone();
    scaled["attention_factor"] = json!(null);
    for (scaling, fields) in [
        (json!({"rope_type": "linear", "factor": 8.0}), vec!["factor"]),
        (json!({"rope_type": "dynamic", "factor": 8.0}), vec!["factor"]),
        (
            yarn,
            vec![
                "factor",
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "original_max_position_embeddings",
                "truncate",
            ],
        ),
        (scaled, vec!["mscale", "mscale_all_dim"]),
        (
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
            vec![
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            ],
        ),
    ] {
        read(json!({"rope_scaling": scaling})).unwrap();
        for field in fields {
            for bad in nonsense().into_iter().chain([json!(1e300)]) {
                let mut scaling = scaling.clone();
                scaling[field] = bad;
                refusal(json!({"rope_scaling": scaling}), &format!("rope_scaling.{field}"));
            }
        }
        let mut without = scaling.clone();
        without.as_object_mut().unwrap().remove("factor");
        assert!(matches!(read(json!({"rope_scaling": without})), Err(Error::MissingField { .. })));
    }
    let good = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    for (field, bad) in [
        ("factor", json!(0.5)),
        ("low_freq_factor", json!(0)),
        ("high_freq_factor", json!(0.9)),
        ("original_max_position_embeddings", json!(0)),
    ] {
        let mut scaling = good.clone();
        scaling[field] = bad.clone();
        refusal(json!({"rope_scaling": scaling}), &format!("rope_scaling.{field}"));
    }
    for (field, effect) in known::ROPE {
        if matches!(effect, Effect::Only(_)) {
            for bad in nonsense() {
                refusal(
                    json!({"rope_parameters": {*field: bad}}),
                    &format!("rope_parameters.{field}"),
                );
            }
        }
    }
    let narrow = json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": 2});
    refusal(narrow, "head_dim");
    let flat = json!({"rope_scaling": {"type": "yarn", "factor": 2.0, "rope_theta": 1.0}});
    refusal(flat, "rope_scaling.rope_theta");
    refusal(json!({"rope_scaling": [1]}), "rope_scaling");
}

#[test]
fn windows_are_where_transformers_has_them() {
    let windows = |changes: Value| {
        let mut all = json!({"num_key_value_heads": 4, "num_hidden_layers": 3});
        for (field, value) in changes.as_object().unwrap() {
            all[field] = value.clone();
        }
        read(all).map(|config| config.llama.windows)
    };
    let used = |changes: Value| {
        let mut all =
            json!({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 7});
        for (field, value) in changes.as_object().unwrap() {
            all[field] = value.clone();
        }
        windows(all)
    };
    let (seven, none) = (Some(7), None);
    assert_eq!(used(json!({})).unwrap(), [none; 3]);
    assert_eq!(used(json!({"max_window_layers": 0})).unwrap(), [seven; 3]);
    assert_eq!(used(json!({"max_window_layers": 2})).unwrap(), [none, none, seven]);
    assert_eq!(used(json!({"max_window_layers": 2, "sliding_window": null})).unwrap(), [none; 3]);
    assert_eq!(
        used(json!({"max_window_layers": 0, "use_sliding_window": false})).unwrap(),
        [none; 3]
    );
    let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    assert_eq!(used(json!({"layer_types": types})).unwrap(), [seven, none, seven]);
    for bad in [
        json!(["full_attention"]),
        json!(["full_attention", "full_attention", "chunked_attention"]),
        json!(["full_attention", "full_attention", 3]),
        json!("full_attention"),
    ] {
        let message = used(json!({"layer_types": bad})).unwrap_err().to_string();
        assert!(message.contains("`layer_types`"), "{message}");
    }
    let unused = used(json!({"layer_types": types, "use_sliding_window": false}));
    assert!(unused.unwrap_err().to_string().contains("`layer_types`"));
    for (bad, field) in [
        (json!({"sliding_window": 0}), "sliding_window"),
        (json!({"max_window_layers": -1}), "max_window_layers"),
    ] {
        assert!(used(bad).unwrap_err().to_string().contains(field));
    }

    let mistral = |changes: Value| {
        let mut all = json!({"model_type": "mistral", "sliding_window": 7});
        for (field, value) in changes.as_object().unwrap() {
            all[field] = value.clone();
        }
        windows(all)
    };
    assert_eq!(mistral(json!({})).unwrap(), [seven; 3]);
    assert_eq!(mistral(json!({"layer_types": vec!["sliding_attention"; 3]})).unwrap(), [seven; 3]);
    assert!(mistral(json!({"layer_types": types})).is_err());
    assert!(mistral(json!({"sliding_window": 0})).is_err());
    assert_eq!(windows(json!({"layer_types": vec!["full_attention"; 3]})).unwrap(), [none; 3]);
    refusal(json!({"sliding_window": 4096}), "sliding_window");
}
