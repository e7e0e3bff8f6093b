//! Models whose linear layers become integers: near what they were, the same in every budget, and
//! refused where they cannot.

use crate::common::{
    assert_alike, done, failed, folder, outsize, path, read_logits, report, start, tiny,
};
use outsize::checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Models of all kinds, and whether they can be run block by block.
fn configs() -> Vec<(Value, bool)> {
    let decoder = json!({
        "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 600, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "eos_token_id": null, "tie_word_embeddings": false
    });
    let with = |more: Value| {
        let mut config = decoder.clone();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    vec![
        (with(json!({"model_type": "llama"})), true),
        (with(json!({"model_type": "phi3", "pad_token_id": 0, "tie_word_embeddings": true})), true),
        (with(json!({"model_type": "gpt_neox", "rotary_pct": 0.25})), true),
        (
            with(json!({
                "model_type": "qwen3_moe", "head_dim": 32, "moe_intermediate_size": 64, "num_experts": 6,
                "num_experts_per_tok": 2, "eos_token_id": 2
            })),
            true,
        ),
        // Keys and values of a compressed cache.
        (
            with(json!({
                "model_type": "deepseek_v3", "moe_intermediate_size": 64, "n_routed_experts": 8, "n_group": 4,
                "topk_group": 2, "num_experts_per_tok": 3, "n_shared_experts": 1, "first_k_dense_replace": 1,
                "q_lora_rank": 100, "kv_lora_rank": 128, "qk_nope_head_dim": 40, "qk_rope_head_dim": 24,
                "v_head_dim": 48, "eos_token_id": 2
            })),
            true,
        ),
        (
            with(json!({
                "model_type": "bamba", "num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_d_head": 32,
                "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 6, "eos_token_id": 2
            })),
            true,
        ),
        (
            json!({
                "model_type": "t5", "d_model": 128, "d_ff": 192, "d_kv": 32, "num_heads": 4, "num_layers": 2,
                "num_decoder_layers": 2, "vocab_size": 600, "decoder_start_token_id": 0, "eos_token_id": 1,
                "pad_token_id": 0
            }),
            false,
        ),
    ]
}

fn synth(dir: &TempDir, config: &Value) -> PathBuf {
    let file = dir.path().join("config.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let out = dir.path().join("plain");
    done(&outsize(&["synth", path(&file), path(&out), "--seed", "5"]));
    out
}

fn texts(dir: &TempDir) -> PathBuf {
    let file = dir.path().join("texts.jsonl");
    let words = ["stone", "river", "of", "the", "green", "and", "seven", "light", "under", "walks"];
    let text = |line: usize| -> String {
        (0..12)
            .map(|at| words[(line * 7 + at * at * 3) % words.len()])
            .collect::<Vec<_>>()
            .join(" ")
    };
    let lines = (0..40).map(|line| json!({"text": text(line)}).to_string() + "\n");
    std::fs::write(&file, lines.collect::<String>()).unwrap();
    file
}

fn quantize(model: &Path, out: &Path, more: &[&str]) -> Value {
    report(&outsize(&[&["quantize", path(model), path(out), "--json"], more].concat()))
}

fn logits(dir: &TempDir, model: &Path) -> Vec<f32> {
    let out = dir.path().join("logits.safetensors");
    let ids = "1,20,3,44,5,36,7,58,9";
    done(&outsize(&["logits", path(model), "--ids", ids, "--force", "--output", path(&out)]));
    read_logits(&out)
}

/// How far logits are from others, as a part of these.
fn apart(found: &[f32], wanted: &[f32]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|value| f64::from(value).powi(2)).sum()
    };
    let error = squares(&mut found.iter().zip(wanted).map(|(found, wanted)| found - wanted));
    (error / squares(&mut wanted.iter().copied())).sqrt()
}

#[test]
fn all_kinds_of_models_stay_near_what_they_were() {
    for (config, has_blocks) in configs() {
        let dir = folder();
        let plain = synth(&dir, &config);
        let before = logits(&dir, &plain);
        let mut found = Vec::new();
        for dtype in ["int4", "int8"] {
            let out = dir.path().join(dtype);
            let made = quantize(&plain, &out, &["--dtype", dtype]);
            assert!(made["quantized"].as_u64().unwrap() >= 8, "{made}");
            // What the integers are worth is what the model computes with.
            let floats = dir.path().join(format!("{dtype}-f32"));
            done(&outsize(&["shard", path(&out), path(&floats), "--dtype", "f32"]));
            let after = logits(&dir, &out);
            assert_alike(&after, &logits(&dir, &floats), &config.to_string());
            found.push(apart(&after, &before));
        }
        assert!(found[0] < 0.3 && found[1] < 0.02 && found[1] < found[0], "{config}: {found:?}");
        let out = dir.path().join("texts");
        let texts = texts(&dir);
        let arguments = ["quantize", path(&plain), path(&out), "--texts", path(&texts)];
        if !has_blocks {
            let error = failed(&outsize(&arguments), 1);
            assert!(error.contains("block by block"), "{error}");
            continue;
        }
        let made = quantize(&plain, &out, &["--texts", path(&texts)]);
        assert!(made["calibration_tokens"].as_u64().unwrap() > 100, "{made}");
        let with_texts = apart(&logits(&dir, &out), &before);
        assert!(with_texts < 0.3, "{config}: {with_texts}, {found:?}");
    }
}

/// Experts that lie in one tensor become what they do with tensors of their own.
#[test]
fn stacked_experts_are_taken_apart() {
    let dir = folder();
    let (apart, _) = configs().swap_remove(3);
    assert_eq!(apart["model_type"], "qwen3_moe");
    let plain = synth(&dir, &apart);
    let checkpoint = Checkpoint::open(&plain).unwrap();
    let expert = |layer: usize, at: usize, part: &str| {
        let name = format!("model.layers.{layer}.mlp.experts.{at}.{part}_proj.weight");
        checkpoint.read(checkpoint.get(&name).unwrap()).unwrap()
    };
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for tensor in checkpoint.tensors().iter().filter(|it| !it.name.contains(".experts.")) {
        tensors.push((tensor.name.clone(), tensor.shape.clone(), checkpoint.read(tensor).unwrap()));
    }
    for layer in 0..2 {
        let stack = |parts: &[&str]| -> Vec<u8> {
            let all = (0..6).flat_map(|at| parts.iter().map(move |part| (at, *part)));
            all.flat_map(|(at, part)| expert(layer, at, part)).collect()
        };
        let name = |part: &str| format!("model.layers.{layer}.mlp.experts.{part}_proj");
        tensors.push((name("gate_up"), vec![6, 128, 96], stack(&["gate", "up"])));
        tensors.push((name("down"), vec![6, 96, 64], stack(&["down"])));
    }
    let stacked = dir.path().join("stacked");
    let specs =
        tensors.iter().map(|(name, shape, _)| TensorSpec::new(name, Dtype::BF16, shape.clone()));
    let mut writer = ShardWriter::create(&stacked, specs.collect(), 1 << 30).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        writer.add_file(file, &std::fs::read(plain.join(file)).unwrap()).unwrap();
    }
    for (name, _, bytes) in &tensors {
        writer.write(name, bytes).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(logits(&dir, &plain), logits(&dir, &stacked));

    let texts = texts(&dir);
    for options in [&[][..], &["--texts", path(&texts)]] {
        let made = [&plain, &stacked].map(|model| {
            let out = dir.path().join(format!("{}-{}", options.len(), model == &plain));
            (quantize(model, &out, options)["quantized"].clone(), out)
        });
        assert_eq!(made[0].0, made[1].0);
        let [one, other] =
            made.map(|(_, out)| std::fs::read(out.join("model.safetensors")).unwrap());
        assert!(one == other, "{options:?}");
    }
}

/// Names that the makers of a model gave are found as those of transformers are.
#[test]
fn experts_of_other_names_become_integers() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    for name in
        ["deepseek_v4-published-fp8", "kimi_linear-published-bf16", "step3p7-published-bf16"]
    {
        let (dir, plain) = (folder(), fixtures.join(name));
        let out = dir.path().join("int8");
        quantize(&plain, &out, &["--dtype", "int8"]);
        let made = Checkpoint::open(&out).unwrap();
        let experts = made.tensors().iter().filter(|it| it.name.contains(".experts."));
        let (packed, others): (Vec<_>, Vec<_>) =
            experts.partition(|it| it.name.contains(".weight_"));
        assert!(packed.len() >= 12 && others.is_empty(), "{name}: {packed:?}, {others:?}");
        // Logits would tell little of weights: where two experts are almost as good, rounding
        // chooses the other.
        let floats = [&plain, &out].map(|model| {
            let floats = dir.path().join(format!("{}-f32", model == &plain));
            done(&outsize(&["shard", path(model), path(&floats), "--dtype", "f32"]));
            floats
        });
        assert_alike(&logits(&dir, &out), &logits(&dir, &floats[1]), name);
        let [before, after] = floats.map(|floats| Checkpoint::open(&floats).unwrap());
        for tensor in before.tensors().iter().filter(|it| it.name.contains(".experts.")) {
            let [before, after] = [&before, &after].map(|checkpoint| {
                let bytes = checkpoint.read(checkpoint.get(&tensor.name).unwrap()).unwrap();
                bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect::<Vec<_>>()
            });
            let far = apart(&after, &before);
            assert!(far < 0.01, "{name}: {}: {far}", tensor.name);
        }
    }
}

/// What a model of a few megabytes becomes is the same in every budget, which holds.
#[test]
fn budgets_change_no_bit_and_are_kept() {
    let dir = folder();
    let config = json!({
        "model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 600,
        "moe_intermediate_size": 512, "num_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "eos_token_id": null, "decoder_sparse_step": 2
    });
    let (plain, texts) = (synth(&dir, &config), texts(&dir));
    let with = |name: &str, budget: &str| {
        let out = dir.path().join(name);
        let budget = format!("cpu={budget}");
        let options = ["--texts", path(&texts), "--context", "64", "--max-memory", &budget];
        (
            out.clone(),
            outsize(&[&["quantize", path(&plain), path(&out), "--json"], &options[..]].concat()),
        )
    };
    let (large, output) = with("large", "2GB");
    report(&output);
    // A refusal says how much would do.
    let error = failed(&with("none", "40MB").1, 1);
    let least = error.split("cpu=").nth(2).and_then(|rest| rest.split(' ').next());
    let least = least.and_then(|it| it.parse().ok());
    let least: u64 = least.unwrap_or_else(|| panic!("{error}"));
    // The process itself may take a little more in another run.
    for budget in [least + 2_000_000, least + 30_000_000] {
        let (small, output) = with(&budget.to_string(), &budget.to_string());
        let peak = report(&output)["peak_rss_bytes"].as_u64().unwrap();
        assert!(peak <= budget, "{peak} of {budget}");
        let file = "model.safetensors";
        let [one, other] = [&large, &small].map(|folder| std::fs::read(folder.join(file)).unwrap());
        assert!(one == other, "{budget}");
    }
    assert!(failed(&with("less", &(least - 4_000_000).to_string()).1, 1).contains("at least"));
}

#[test]
fn what_cannot_be_done_is_said() {
    let dir = folder();
    let (plain, out, texts) = (tiny(&dir), dir.path().join("out"), texts(&dir));
    let with = |more: &[&str], status| {
        let error =
            failed(&outsize(&[&["quantize", path(&plain), path(&out)], more].concat()), status);
        assert!(!out.exists());
        error
    };
    assert!(with(&["--group-size", "70000"], 2).contains("--group-size 70000"));
    assert!(with(&["--dtype", "int3"], 2).contains("int4"));
    assert!(with(&["--tokens", "5"], 2).contains("--texts"));
    assert!(with(&["--texts", "nowhere.jsonl"], 1).contains("nowhere.jsonl"));
    let bad = dir.path().join("bad.jsonl");
    std::fs::write(&bad, "{\"text\": \"good and long\"}\n{}\n").unwrap();
    assert!(with(&["--texts", path(&bad)], 1).contains("line 2"));
    let texts = path(&texts);
    assert!(with(&["--texts", texts, "--max-memory", "cpu=1MB"], 1).contains("at least"));
    assert!(with(&["--texts", texts, "--max-memory", "gpu0=1GB"], 1).contains("processors"));

    let conv = json!({
        "model_type": "gpt2", "n_embd": 128, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 600,
        "eos_token_id": 2
    });
    let plain = synth(&dir, &conv);
    let error = failed(&outsize(&["quantize", path(&plain), path(&out)]), 2);
    assert!(error.contains("no linear layer"), "{error}");
}

/// A weight that is no number is refused by name; nothing is left of what was written.
#[test]
fn weights_that_are_no_numbers_are_refused() {
    let dir = folder();
    let plain = tiny(&dir);
    let file = plain.join("model.safetensors");
    let checkpoint = Checkpoint::open(&plain).unwrap();
    let tensor =
        checkpoint.tensors().iter().find(|it| it.name.ends_with("up_proj.weight")).unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    // The upper half of all numbers that are none, in bf16 and in f32.
    let last = (tensor.offset + tensor.len) as usize;
    bytes[last - 2..last].copy_from_slice(&[0xc0, 0x7f]);
    std::fs::write(&file, bytes).unwrap();
    let out = dir.path().join("out");
    let error = failed(&outsize(&["quantize", path(&plain), path(&out)]), 1);
    assert!(error.contains(&tensor.name) && error.contains("integers"), "{error}");
    assert!(!out.exists());
    let left = std::fs::read_dir(dir.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("partial"));
    assert_eq!(left.count(), 0);
}

#[test]
#[cfg(unix)]
fn an_interrupt_leaves_nothing() {
    let dir = folder();
    let config = json!({
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12,
        "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 600, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "eos_token_id": null, "tie_word_embeddings": true
    });
    let (plain, texts, out) = (synth(&dir, &config), texts(&dir), dir.path().join("out"));
    let arguments =
        ["quantize", path(&plain), path(&out), "--texts", path(&texts), "--context", "128"];
    let mut child = start(dir.path(), &arguments);
    std::thread::sleep(Duration::from_millis(1500));
    let interrupted =
        std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(interrupted.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!out.exists());
}
