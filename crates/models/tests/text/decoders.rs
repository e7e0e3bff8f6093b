//! Decoders against what `transformers` computes in float32 (`scripts/fixtures/gpt.py`,
//! `decoders.py`, `relatives.py`, `families.py`, `hybrids.py`, `mixtures.py`, `linear_attention.py`
//! and `variants.py`), dispatched from their checkpoints: with the names of tensors as published,
//! and as saved today.

use crate::common::decoder_fixtures::{BATCHES, FIXTURES, has_experts};
use crate::common::dispatched::{assert_same_streamed, config, load, load_in};
use crate::common::reference::*;
use burn::tensor::{Device, Tensor};
use outsize_models::{
    ActivationDtype, Batch, CacheOptions, DispatchedDecoder, Error, KvCache, KvDtype, Logits,
    ModelConfig, WhenFull,
};

/// Several tiles for each matrix.
const TILE: u64 = 700;

fn forward(
    model: &DispatchedDecoder,
    rows: &[impl AsRef<[u32]>],
    cache: &mut KvCache,
) -> Result<Tensor<3>, Error> {
    let batch = Batch::left_padded(rows)?;
    model.forward_batch(&batch, cache, Logits::All).unwrap()
}

fn in_passes(model: &DispatchedDecoder, ids: &[u32], step: usize, cache: &mut KvCache) -> Vec<f32> {
    // What LongRoPE stretches depends on the whole text.
    cache.expect(ids.len());
    let passes = ids.chunks(step);
    passes.flat_map(|ids| values(forward(model, &[ids], cache).unwrap())).collect()
}

#[test]
fn passes_of_any_length_give_the_reference_logits() {
    for &name in FIXTURES {
        let (config, model) = load(name, TILE);
        assert_eq!(config.unknown_fields, [""; 0], "{name}");
        let expected = expected(name);
        for step in [24, 1, 2, 5, 7, 23] {
            let found = in_passes(&model, &expected.ids, step, &mut cache(&config, 40));
            assert_close(&found, &expected.logits, &format!("{name} by {step}"));
            if step == 24 {
                println!("{name}: off by {:.1e}", difference(&found, &expected.logits));
            }
        }
    }
}

#[test]
fn greedy_tokens_are_the_references() {
    for &name in FIXTURES {
        let (config, model) = load(name, TILE);
        let expected = expected(name);
        let mut cache = cache(&config, 40);
        let (mut ids, mut found) = (expected.ids.clone(), Vec::<u32>::new());
        while found.len() < expected.greedy.len() {
            let logits = values(forward(&model, &[&ids], &mut cache).unwrap());
            ids = vec![first_maximum(&logits[logits.len() - config.vocab_size()..])];
            found.extend(&ids);
        }
        assert_eq!(found, expected.greedy, "{name}");
    }
}

#[test]
fn the_last_positions_logits_are_those_of_all() {
    for &name in FIXTURES {
        let (config, model) = load(name, TILE);
        let expected = expected(name);
        let rows = if BATCHES.contains(&name) { expected.batch } else { vec![expected.ids] };
        let batch = Batch::left_padded(&rows).unwrap();
        let options = CacheOptions { batch: batch.rows(), ..CacheOptions::new(batch.tokens()) };
        let [mut whole, mut narrow, mut kept] = [0, 1, 2].map(|_| cache_of(&config, &options));
        let half = batch.tokens() / 2 + 1;
        for piece in batch.chunks(half) {
            let all = model.forward_batch(&piece, &mut whole, Logits::All).unwrap().unwrap();
            let all = values(all.narrow(1, piece.tokens() - 1, 1));
            let last = |cache: &mut KvCache| {
                values(model.forward_batch(&piece, cache, Logits::Last).unwrap().unwrap())
            };
            assert_eq!(last(&mut narrow), all, "{name}");
            if piece.tokens() == half {
                model.keep_batch(&piece, &mut kept).unwrap().unwrap();
            } else {
                assert_eq!(last(&mut kept), all, "{name}, behind what was kept");
            }
        }
    }
}

#[test]
fn rounded_activations_stay_near_the_reference_logits() {
    for &name in FIXTURES {
        let (model, _) = load_in(name, TILE, "16MiB", ActivationDtype::Bf16).unwrap();
        let expected = expected(name);
        let config = config(name);
        let found = in_passes(&model, &expected.ids, 24, &mut cache(&config, 40));
        if has_experts(name) {
            assert!(difference(&found, &expected.logits) > TOLERANCE, "{name}");
            // A token near a tie goes to another expert than without rounding, or sees another
            // token.
            let chooses = [
                "_dsa",
                "_v32",
                "hy_v4",
                "minimax_m3",
                "deepseek_v4",
                "mistral_large4",
                "axk2",
                "dots3_note",
            ]
            .iter()
            .any(|it| name.contains(it));
            // In tiles one does of this model, whose states then remember it.
            let in_tiles = outsize_kernels::Isa::detected() == outsize_kernels::Isa::AmxBf16;
            let chooses = chooses || in_tiles && name == "jamba-published-bf16";
            let least = if chooses { 8 } else { 9 };
            let [found, logits] =
                [&found, &expected.logits].map(|all| all.chunks(config.vocab_size()));
            let near = found
                .zip(logits)
                .filter(|(found, logits)| difference(found, logits) < ROUNDED_TOLERANCE);
            let (near, tokens) = (near.count(), expected.ids.len());
            assert!(near * 10 > tokens * least, "{name}: {near} of {tokens} tokens");
        } else {
            assert_rounded(&found, &expected.logits, name);
        }
    }
}

#[test]
fn tokens_give_the_same_bits_whatever_goes_to_their_experts() {
    // And layers composed of Burn's own operations.
    let is_one = |name: &&&str| {
        has_experts(name)
            || [
                "gemma3n",
                "lfm2",
                "lfm3",
                "bamba",
                "falcon_h1",
                "olmo_hybrid",
                "mamba",
                "falcon_mamba",
            ]
            .iter()
            .any(|it| name.starts_with(it))
    };
    for &name in FIXTURES.iter().filter(is_one) {
        let (config, model) = load(name, TILE);
        let ids = expected(name).ids;
        let bits = |logits: Vec<f32>| -> Vec<u32> { logits.iter().map(|v| v.to_bits()).collect() };
        let run = |step| bits(in_passes(&model, &ids, step, &mut cache(&config, 40)));
        let whole = run(24);
        for step in [1, 2, 5, 23] {
            assert_eq!(run(step), whole, "{name} by {step}");
        }
        let texts = [&ids[..9], &ids, &ids[5..7]];
        let options = CacheOptions { batch: 3, ..CacheOptions::new(40) };
        let found = forward(&model, &texts, &mut cache_of(&config, &options)).unwrap();
        let found = bits(values(found));
        let row = found.len() / 3;
        assert_eq!(found[row..2 * row], whole, "{name} among others");
    }
}

#[test]
fn padded_batches_give_the_reference() {
    for &name in BATCHES {
        let (config, model) = load(name, TILE);
        let expected = expected(name);
        let batch = Batch::left_padded(&expected.batch).unwrap();
        let width = batch.tokens() * config.vocab_size();
        let options = CacheOptions { batch: batch.rows(), ..CacheOptions::new(40) };
        let mut cache = cache_of(&config, &options);
        let found = values(forward(&model, &expected.batch, &mut cache).unwrap());
        for row in 0..batch.rows() {
            // What is computed at padding means nothing.
            let from = row * width + batch.padding()[row] * config.vocab_size();
            let (found, reference) = (&found[from..(row + 1) * width], &expected.batch_logits);
            assert_close(found, &reference[from..(row + 1) * width], name);
        }
        let last = |logits: &[f32]| -> Vec<[u32; 1]> {
            let rows = logits.chunks(logits.len() / batch.rows());
            rows.map(|row| [first_maximum(&row[row.len() - config.vocab_size()..])]).collect()
        };
        let mut next = last(&found);
        for step in 0..8 {
            let column: Vec<_> = expected.batch_greedy.iter().map(|row| [row[step]]).collect();
            assert_eq!(next, column, "{name}, token {step}");
            next = last(&values(forward(&model, &next, &mut cache).unwrap()));
        }
    }
}

#[test]
fn streamed_or_resident_the_bits_are_the_same() {
    for &name in FIXTURES {
        let (config, model) = load(name, TILE);
        let expected = expected(name);
        let run = |model: &DispatchedDecoder| {
            let options = CacheOptions { dtype: KvDtype::Bf16, ..CacheOptions::new(30) };
            in_passes(model, &expected.ids, 9, &mut cache_of(&config, &options))
        };
        assert_same_streamed(name, TILE, &run(&model), run);
    }
}

#[test]
fn classes_are_those_of_transformers() {
    for (name, head, block) in
        [("gpt2", "GPT2LMHeadModel", "GPT2Block"), ("gptj", "GPTJForCausalLM", "GPTJBlock")]
    {
        let tree = config(name).tree_without_weights().unwrap();
        assert_eq!((tree.classes[""].as_str()), head);
        assert_eq!(tree.classes["transformer.h.1"], block);
        let family = &head[..4];
        assert_eq!(tree.classes["transformer.h.0.attn"], format!("{family}Attention"));
        assert_eq!(tree.classes["transformer.h.0.mlp"], format!("{family}MLP"));
        assert_eq!(tree.classes["transformer.ln_f"], "LayerNorm");
        let linear = tree.classes.values().filter(|class| *class == "Conv1D").count();
        assert_eq!(linear, if name == "gpt2" { 2 * 4 } else { 0 });
    }
    for (name, class, modules) in [
        (
            "gpt_neox",
            "GPTNeoX",
            ["gpt_neox.layers.1", "gpt_neox.layers.0.attention", "gpt_neox.layers.0.mlp"],
        ),
        ("opt", "OPT", ["model.decoder.layers.1", "model.decoder.layers.0.self_attn", ""]),
        (
            "bloom",
            "Bloom",
            ["transformer.h.1", "transformer.h.0.self_attention", "transformer.h.0.mlp"],
        ),
        (
            "falcon",
            "Falcon",
            ["transformer.h.1", "transformer.h.0.self_attention", "transformer.h.0.mlp"],
        ),
    ] {
        let tree = config(name).tree_without_weights().unwrap();
        let block = match name {
            "gpt_neox" => "Layer",
            "bloom" => "Block",
            _ => "DecoderLayer",
        };
        let last = if name == "opt" { "ForCausalLM" } else { "MLP" };
        for (module, end) in modules.into_iter().zip([block, "Attention", last]) {
            assert_eq!(tree.classes[module], format!("{class}{end}"), "{module}");
        }
    }
    for (name, family) in [("qwen3", "Qwen3"), ("olmo2", "Olmo2"), ("phi3", "Phi3")] {
        let tree = config(name).tree_without_weights().unwrap();
        for (module, class) in [
            ("", "ForCausalLM"),
            ("model", "Model"),
            ("model.layers.1", "DecoderLayer"),
            ("model.layers.0.self_attn", "Attention"),
            ("model.layers.0.mlp", "MLP"),
            ("model.norm", "RMSNorm"),
        ] {
            assert_eq!(tree.classes[module], format!("{family}{class}"), "{module}");
        }
    }
}

#[test]
fn positions_end_where_the_table_does() {
    let (config, model) = load("gpt2", TILE);
    let mut cache = cache(&config, 50);
    let error = forward(&model, &[vec![5; 41]], &mut cache).unwrap_err();
    assert!(matches!(error, Error::Context { context: 41, max: 40 }), "{error:?}");
    forward(&model, &[vec![5; 40]], &mut cache).unwrap();
    let slide = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(8) };
    let refused = KvCache::new(config.cache(), &slide, &Device::flex()).unwrap_err();
    assert!(matches!(refused, Error::CannotSlide { .. }), "{refused:?}");
    // A rotary embedding knows no end.
    let config = self::config("gptj");
    KvCache::new(config.cache(), &slide, &Device::flex()).unwrap();
}

#[test]
fn spellings_and_mistakes_of_a_configuration() {
    let read = |model_type: &str, more: &str| {
        let own = r#""n_embd": 24, "n_layer": 2, "n_head": 2, "vocab_size": 9"#;
        ModelConfig::from_json(&format!(r#"{{"model_type": "{model_type}", {own}{more}}}"#))
    };
    let alias = ModelConfig::from_json(
        r#"{"model_type": "gpt2", "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9,
            "max_position_embeddings": 1024}"#,
    );
    assert_eq!(alias.unwrap(), read("gpt2", "").unwrap());
    for (model_type, more, field) in [
        ("gpt2", r#", "n_head": 5"#, "n_head"),
        ("gpt2", r#", "activation_function": "sin""#, "activation_function"),
        ("gpt2", r#", "add_cross_attention": true"#, "add_cross_attention"),
        ("gptj", r#", "rotary_dim": 5"#, "rotary_dim"),
        ("gptj", r#", "rotary_dim": 14"#, "rotary_dim"),
        ("gptj", r#", "rotary_dim": null"#, "rotary_dim"),
        ("gptj", "", "rotary_dim"),
        ("gptj", r#", "rotary_dim": 4, "tie_word_embeddings": true"#, "tie_word_embeddings"),
    ] {
        let message = read(model_type, more).unwrap_err().to_string();
        assert!(message.contains(&format!("`{field}`")), "{more}: {message}");
    }
}

#[test]
fn what_models_with_experts_in_groups_cannot_be_is_refused_by_field() {
    let read = |model_type: &str, (field, value): (&str, serde_json::Value)| {
        let mut config = serde_json::json!({
            "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 9,
            "num_key_value_heads": 4, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 3, "topk_group": 1,
            "moe_intermediate_size": 4, "first_k_dense_replace": 1,
        });
        config["model_type"] = model_type.into();
        config[field] = value;
        ModelConfig::from_json(&config.to_string())
    };
    for model_type in ["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite"] {
        read(model_type, ("n_group", 3.into())).unwrap();
        let mut wrong = vec![
            ("n_routed_experts", 0.into()),
            ("n_routed_experts", (1 << 20).into()),
            ("num_experts_per_tok", 7.into()),
            ("n_shared_experts", (-1).into()),
            ("n_shared_experts", (1 << 17).into()),
            ("routed_scaling_factor", (-1.0).into()),
            ("routed_scaling_factor", 1e9.into()),
            ("topk_method", "best".into()),
            ("scoring_func", "tanh".into()),
            ("moe_layer_freq", 2.into()),
            ("moe_intermediate_size", "4".into()),
            ("first_k_dense_replace", (-1).into()),
        ];
        match model_type {
            "deepseek_v2" => wrong.push(("norm_topk_prob", true.into())),
            // Groups are chosen.
            _ => wrong.extend([
                ("n_group", 4.into()),
                ("n_group", 6.into()),
                ("topk_group", 4.into()),
                ("num_experts_per_tok", 3.into()),
            ]),
        }
        match model_type {
            "glm4_moe" => wrong.push(("partial_rotary_factor", 0.2.into())),
            _ => wrong.extend([
                ("num_key_value_heads", 2.into()),
                ("qk_rope_head_dim", 5.into()),
                ("qk_nope_head_dim", 0.into()),
                ("kv_lora_rank", 0.into()),
                ("q_lora_rank", "none".into()),
                ("v_head_dim", 1e9.into()),
                ("head_dim", 6.into()),
            ]),
        }
        if model_type == "glm4_moe_lite" {
            wrong.push(("mlp_layer_types", serde_json::json!(["dense", "sparse"])));
            wrong.push(("mlp_layer_types", serde_json::json!(["dense", "sparse", "mixed"])));
        }
        for (field, value) in wrong {
            let message = read(model_type, (field, value.clone())).unwrap_err().to_string();
            // What does not fit may be said of either field.
            let named = [field, "topk_group"].iter().any(|it| message.contains(&format!("`{it}`")));
            assert!(named, "{model_type}, {field} {value}: {message}");
        }
    }
    // Kimi K2 is a DeepSeek-V3 by another name.
    let one = read("kimi_k2", ("first_k_dense_replace", 1.into())).unwrap();
    let other = read("deepseek_v3", ("first_k_dense_replace", 1.into())).unwrap();
    assert_eq!(one.weights(), other.weights());
    assert_eq!(one.cache(), other.cache());
    // No shared expert, and layers without any but the last.
    let none = read("deepseek_v3", ("n_shared_experts", serde_json::Value::Null)).unwrap();
    assert!(none.weights().iter().all(|weight| !weight.name.contains("shared_experts")));
    let last = read("deepseek_v3", ("first_k_dense_replace", 2.into())).unwrap();
    let sparse =
        last.weights().into_iter().filter(|weight| weight.name.ends_with("mlp.gate.weight"));
    assert_eq!(
        sparse.map(|weight| weight.name).collect::<Vec<_>>(),
        ["model.layers.2.mlp.gate.weight"]
    );
}
