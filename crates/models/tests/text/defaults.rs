//! What stands in place of absent fields, and configurations as published: as `transformers` has
//! them.

use outsize_models::arch::{DeepseekForCausalLm, Gemma4ForCausalLm, LlamaForCausalLm};
use outsize_models::{ModelConfig, RopeScaling};
use serde_json::{Value, json};

#[test]
fn the_text_part_of_mistral_large4_has_the_defaults_of_transformers() {
    // `MistralLarge4Config(text_config=..)` of transformers 5.24, but for the fields that are
    // given.
    let text = r#"{"model_type": "mistral_large4", "text_config": {"num_hidden_layers": 9, "n_routed_experts": 3, "num_experts_per_tok": 3}}"#;
    let config = ModelConfig::from_json(text).unwrap();
    assert_eq!(config.parameter_count(), 7_827_020_256);
    let read = config.of::<DeepseekForCausalLm>().unwrap();
    assert_eq!(read.rotated_layers, [true, true, true, false, true, true, true, false, true]);
    assert_eq!((read.max_position_embeddings, read.rms_norm_eps), (1 << 20, 1e-5));
    assert_eq!((read.logit_softcap, read.tie_word_embeddings), (Some(30.0), false));
    let RopeScaling::Yarn { factor, attention_factor, original_max_position_embeddings, .. } =
        read.rope.scaling
    else {
        panic!("{:?}", read.rope)
    };
    assert_eq!((read.rope.theta, factor, attention_factor), (1e4, 2048.0, 1.0));
    assert_eq!(original_max_position_embeddings, 512);
    assert!(config.is_part());
}

#[test]
fn axk2_has_the_defaults_of_transformers() {
    // `AXK2Config(num_hidden_layers=3)` of transformers 5.24, which does not count the correction
    // of experts' scores.
    let text = r#"{"model_type": "axk2", "num_hidden_layers": 3}"#;
    let config = ModelConfig::from_json(text).unwrap();
    assert_eq!(config.parameter_count(), 1_547_550_976 + 2 * 128);
    let read = config.of::<DeepseekForCausalLm>().unwrap();
    let routing = read.experts.unwrap().routing;
    assert_eq!((routing.per_token, routing.scale, routing.groups), (8, 2.5, None));
    assert_eq!((read.max_position_embeddings, read.rms_norm_eps), (131_072, 1e-6));
    assert_eq!(read.latent_attention.unwrap().indexer.unwrap().heads, 16);
}

#[test]
fn param2_and_minicpm_have_the_defaults_of_transformers() {
    // `Param2MoeConfig()`, `MiniCPM5MoeConfig()` and `MiniCPM3Config()` of transformers 5.25, which
    // does not count the corrections of experts' scores.
    let of_type = |name| ModelConfig::from_json(&format!(r#"{{"model_type": "{name}"}}"#)).unwrap();
    let config = of_type("param2moe");
    assert_eq!(config.parameter_count(), 17_151_124_096 + 20 * 64);
    let read = config.of::<DeepseekForCausalLm>().unwrap();
    let routing = read.experts.unwrap().routing;
    assert_eq!((routing.per_token, routing.scale, routing.groups), (6, 2.5, None));
    assert_eq!((read.rope.theta, read.max_position_embeddings, read.rotary_dim), (5e5, 32_768, 64));
    let config = of_type("minicpm5_moe");
    assert_eq!(config.parameter_count(), 15_002_552_320 + 27 * 160);
    let read = config.of::<DeepseekForCausalLm>().unwrap();
    let routing = read.experts.unwrap().routing;
    assert_eq!((routing.per_token, routing.scale, routing.groups), (16, 3.66, None));
    assert_eq!((read.rope.theta, read.max_position_embeddings), (5e6, 524_288));
    let config = of_type("minicpm3");
    assert_eq!(config.parameter_count(), 4_073_875_968);
    let read = config.of::<LlamaForCausalLm>().unwrap();
    assert_eq!((read.embed_scale, read.logit_scale), (Some(12.0), Some(0.1)));
    assert_eq!(read.residual_scale, Some(1.4 / 62f64.sqrt()));
    assert_eq!((read.rope.theta, read.rms_norm_eps), (1e4, 1e-5));
}

#[test]
fn lara_mini_has_the_defaults_of_transformers() {
    // `LaraMiniConfig()` of transformers 5.25.
    let config = ModelConfig::from_json(r#"{"model_type": "lara_mini"}"#).unwrap();
    assert_eq!(config.parameter_count(), 7_281_684_672);
    let read = config.of::<DeepseekForCausalLm>().unwrap();
    let routing = read.experts.unwrap().routing;
    assert_eq!((routing.per_token, routing.normalized), (4, true));
    assert_eq!(&read.windows[..5], [None, Some(512), None, None, Some(512)]);
    assert_eq!(read.mixers.iter().filter(|mixer| mixer.has_attention()).count(), 20);
    assert_eq!((read.rope.theta, read.max_position_embeddings), (1e4, 131_072));
}

#[test]
fn gemma4_without_encoders_has_the_defaults_of_transformers() {
    // `Gemma4UnifiedTextConfig()` of transformers 5.25, and what layers are multiplied by.
    let config = ModelConfig::from_json(r#"{"model_type": "gemma4_unified_text"}"#).unwrap();
    assert_eq!(config.parameter_count(), 3_010_758_400 + 30);
    let read = config.of::<Gemma4ForCausalLm>().unwrap();
    assert_eq!((read.text.windows[0], read.text.windows[5]), (Some(1024), None));
    assert_eq!(read.text.max_position_embeddings, 262_144);
}

#[test]
fn dots3_note_has_the_defaults_of_transformers() {
    // `Dots3NoteTextConfig()` of transformers 5.25, with the corrections of experts' scores.
    let config = ModelConfig::from_json(r#"{"model_type": "dots3_note_text"}"#).unwrap();
    assert_eq!(config.parameter_count(), 279_551_718_016 + 11_520);
    let read = config.of::<DeepseekForCausalLm>().unwrap();
    let seen: Vec<_> = (0..46).filter(|layer| read.windows[*layer].is_none()).take(4).collect();
    assert_eq!((seen, read.windows[2]), (vec![0, 1, 5, 9], Some(512)));
    assert_eq!((read.rope.theta, read.local_rope.as_ref().unwrap().theta), (8e7, 5e4));
    assert_eq!((read.max_position_embeddings, read.rms_norm_eps), (524_288, 1e-5));
    let routing = read.experts.unwrap().routing;
    assert_eq!((routing.per_token, routing.scale, routing.groups), (8, 1.0, None));
}

#[test]
fn the_text_part_of_gemma3_has_the_defaults_of_transformers() {
    // `Gemma3TextConfig()` of transformers 5.23, but for the two fields that are given.
    let text =
        r#"{"model_type": "gemma3", "text_config": {"num_hidden_layers": 7, "hidden_size": 16}}"#;
    let config = ModelConfig::from_json(text).unwrap();
    let read = config.of::<LlamaForCausalLm>().unwrap();
    assert_eq!((read.vocab_size, read.intermediate_size), (262_208, 9216));
    assert_eq!((read.num_attention_heads, read.num_key_value_heads, read.head_dim), (8, 4, 256));
    assert_eq!((read.max_position_embeddings, read.rms_norm_eps), (131_072, 1e-6));
    assert_eq!(read.query_pre_attn_scalar, Some(256.0));
    assert_eq!((read.rope.theta, read.local_rope.as_ref().unwrap().theta), (1e6, 1e4));
    let full: Vec<_> = (0..7).filter(|layer| read.windows[*layer].is_none()).collect();
    assert_eq!((full, read.windows[0]), (vec![5], Some(4096)));
    assert!(read.tie_word_embeddings);
    assert!(config.is_part());
}

/// Configurations as published, with the parameters that `transformers` counts in their models
/// (`sum(p.numel() for p in AutoModelForCausalLM.from_config(..).parameters())`).
#[test]
fn published_models_have_the_parameters_that_transformers_counts() {
    let text = include_str!("../published.json");
    let models: serde_json::Map<String, Value> = serde_json::from_str(text).unwrap();
    assert!(models.len() > 10);
    for (name, model) in models {
        let config = ModelConfig::from_json(&model["config"].to_string()).unwrap();
        assert_eq!(config.unknown_fields, [""; 0], "{name}");
        assert_eq!(Some(config.parameter_count()), model["parameters"].as_u64(), "{name}");
    }
}

/// What stands in place of absent fields makes the published sizes: those that `transformers`
/// counts, with the buffers of routers.
#[test]
fn absent_fields_of_text_parts_are_those_of_the_published_ones() {
    for (whole, parameters) in [
        ("muse_glimmer", 27_854_780_928),
        ("muse_spark", 819_990_552_064),
        ("hy_v4_vl", 769_907_408_797),
    ] {
        let (name, text) = (whole, format!("{whole}_text"));
        let config = json!({"model_type": whole, "text_config": {"model_type": text}});
        let config = ModelConfig::from_json(&config.to_string()).unwrap();
        assert_eq!(config.parameter_count(), parameters, "{name}");
    }
}
