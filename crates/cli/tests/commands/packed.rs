//! Packed bf16 gives the bits of the same weights as they were, in fewer bytes, wherever they are.

use crate::common::{CONFIG, done, failed, folder, model, outsize, path, report, run};
use outsize::checkpoint::{Checkpoint, Dtype};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Models whose rows are whole groups, or some of them.
fn configs() -> Vec<Value> {
    let decoder = json!({
        "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 600, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "eos_token_id": null, "tie_word_embeddings": true
    });
    let with = |more: Value| {
        let mut config = decoder.clone();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    vec![
        with(json!({"model_type": "llama"})),
        with(json!({
            "model_type": "qwen3_moe", "head_dim": 32, "moe_intermediate_size": 64, "num_experts": 6,
            "num_experts_per_tok": 2, "tie_word_embeddings": false, "eos_token_id": 2
        })),
        // Keys and values of a compressed cache, and rows that are no whole groups.
        with(json!({
            "model_type": "deepseek_v3", "moe_intermediate_size": 64, "n_routed_experts": 8, "n_group": 4,
            "topk_group": 2, "num_experts_per_tok": 3, "n_shared_experts": 1, "first_k_dense_replace": 1,
            "q_lora_rank": 100, "kv_lora_rank": 128, "qk_nope_head_dim": 40, "qk_rope_head_dim": 24,
            "v_head_dim": 48, "eos_token_id": 2
        })),
        with(json!({
            "model_type": "bamba", "num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_d_head": 32,
            "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 8, "eos_token_id": 2
        })),
        json!({
            "model_type": "gpt2", "n_embd": 128, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 600,
            "eos_token_id": 2
        }),
        json!({
            "model_type": "t5", "d_model": 128, "d_ff": 192, "d_kv": 32, "num_heads": 4, "num_layers": 2,
            "num_decoder_layers": 2, "vocab_size": 600, "decoder_start_token_id": 0, "eos_token_id": 1,
            "pad_token_id": 0
        }),
    ]
}

fn synth(dir: &TempDir, config: &Value, more: &[&str]) -> PathBuf {
    let file = dir.path().join("config.json");
    std::fs::write(&file, config.to_string()).unwrap();
    let out = dir.path().join("plain");
    done(&outsize(&[&["synth", path(&file), path(&out)], more].concat()));
    out
}

fn pack(dir: &TempDir, plain: &Path) -> PathBuf {
    let out = dir.path().join("packed");
    done(&outsize(&["shard", path(plain), path(&out), "--pack"]));
    out
}

#[test]
fn all_kinds_of_models_compute_the_same_bits() {
    for config in configs() {
        let dir = folder();
        let plain = synth(&dir, &config, &["--seed", "3"]);
        let packed = pack(&dir, &plain);
        let (before, after) =
            (Checkpoint::open(&plain).unwrap(), Checkpoint::open(&packed).unwrap());
        let is_packed = |name: &str| matches!(after.get(name).unwrap().dtype, Dtype::PackedBf16(_));
        let whole = before
            .tensors()
            .iter()
            .filter(|tensor| tensor.shape.len() == 2 && tensor.shape[1].is_multiple_of(64));
        let whole: Vec<_> = whole.collect();
        assert!(whole.len() >= 8, "{config}");
        assert!(whole.iter().all(|tensor| is_packed(&tensor.name)), "{config}");
        for compute in ["f32", "bf16"] {
            let logits = |model: &Path, ids: &str| {
                let out = dir.path().join("logits");
                let args = ["--ids", ids, "--output", path(&out), "--force", "--compute", compute];
                done(&outsize(&[&["logits", path(model)][..], &args].concat()));
                std::fs::read(&out).unwrap()
            };
            // One token, some, and more than a few rows.
            let many: Vec<String> = (0..40).map(|at| (at * 7 + 3).to_string()).collect();
            for ids in ["5", "5,6,7", &many.join(",")] {
                assert!(logits(&plain, ids) == logits(&packed, ids), "{compute} {ids} {config}");
            }
        }
    }
}

#[test]
fn a_packed_model_streams_in_its_budget_and_comes_back() {
    let dir = folder();
    let plain = model(&dir);
    let packed = pack(&dir, &plain);
    let bytes = |model: &Path| Checkpoint::open(model).unwrap().total_bytes() as f64;
    let share = bytes(&packed) / bytes(&plain);
    assert!(share < 0.73, "{share}");
    let more = ["--max-new-tokens", "12", "--context", "64"];
    let wanted = report(&run(&plain, &more))["tokens"].clone();
    assert_eq!(wanted.as_array().unwrap().len(), 12);
    for budget in ["cpu=70MB", "cpu=85MB", "cpu=200MB"] {
        let args = [&more[..], &["--max-memory", budget]].concat();
        let found = report(&run(&packed, &args));
        assert_eq!(found["tokens"], wanted, "{budget}");
        let most: f64 = budget[4..budget.len() - 2].parse().unwrap();
        let peak = found["peak_rss_bytes"].as_f64().unwrap();
        assert!(peak <= most * 1e6, "{peak} in {budget}");
    }
    let back = dir.path().join("back");
    done(&outsize(&["merge", path(&packed), path(&back), "--dtype", "bf16"]));
    let (before, after) = (Checkpoint::open(&plain).unwrap(), Checkpoint::open(&back).unwrap());
    for tensor in before.tensors() {
        let found = after.get(&tensor.name).unwrap();
        assert_eq!((found.dtype, &found.shape), (tensor.dtype, &tensor.shape));
        assert!(after.read(found).unwrap() == before.read(tensor).unwrap(), "{}", tensor.name);
    }
    let config: Value =
        serde_json::from_slice(&std::fs::read(back.join("config.json")).unwrap()).unwrap();
    assert_eq!(config.get("quantization_config"), None);
    // As it is, and packed once more, it stays what it is.
    for (name, more) in [("again", &[][..]), ("twice", &["--pack"])] {
        let again = dir.path().join(name);
        done(&outsize(&[&["merge", path(&packed), path(&again)], more].concat()));
        let read = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
        assert!(read(&again) == read(&packed), "{name}");
    }
}

#[test]
fn an_adapter_learns_the_same_bits() {
    let dir = folder();
    let plain = crate::common::tiny(&dir);
    let packed = pack(&dir, &plain);
    let data = dir.path().join("data.jsonl");
    let lines = (0..6).map(|at| json!({"text": format!("some words {at} and others")}).to_string());
    std::fs::write(&data, lines.collect::<Vec<_>>().join("\n")).unwrap();
    for compute in ["f32", "bf16"] {
        let learn = |model: &Path, name: &str| {
            let out = dir.path().join(format!("{name}-{compute}"));
            done(&outsize(&[
                "finetune",
                path(model),
                path(&data),
                "--output",
                path(&out),
                "--max-steps",
                "2",
                "--rank",
                "4",
                "--context",
                "32",
                "--compute",
                compute,
            ]));
            std::fs::read(out.join("adapter_model.safetensors")).unwrap()
        };
        assert!(learn(&plain, "plain") == learn(&packed, "packed"), "{compute}");
    }
    // What all weights learn in is as wide as it is.
    let out = dir.path().join("all");
    let all = ["finetune", path(&packed), path(&data), "--full", "--output", path(&out)];
    let message = failed(&outsize(&all), 1);
    assert!(message.contains("packed BF16") && message.contains("--dtype bf16"), "{message}");
    assert!(!out.exists());
}

#[test]
fn what_cannot_be_packed_is_said() {
    let dir = folder();
    let mut config: Value = serde_json::from_str(CONFIG).unwrap();
    config["num_hidden_layers"] = 1.into();
    let plain = synth(&dir, &config, &["--dtype", "f32"]);
    let out = dir.path().join("out");
    let shard =
        |more: &[&str]| outsize(&[&["shard", path(&plain), path(&out), "--pack"], more].concat());
    let message = failed(&shard(&[]), 2);
    assert!(
        message.contains("no matrix that becomes bf16") && message.contains("--dtype bf16"),
        "{message}"
    );
    let message = failed(&shard(&["--dtype", "f16"]), 2);
    assert!(message.contains("--pack is for bf16, and --dtype says f16"), "{message}");
    assert!(!out.exists());
    // Rounded first.
    done(&shard(&["--dtype", "bf16"]));
    let tensors = Checkpoint::open(&out).unwrap();
    assert!(tensors.tensors().iter().any(|tensor| matches!(tensor.dtype, Dtype::PackedBf16(_))));
}

#[test]
fn damaged_weights_are_numbers_of_some_kind() {
    let dir = folder();
    let packed = pack(&dir, &crate::common::tiny(&dir));
    let file = packed.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let start = bytes.len() / 2;
    for byte in &mut bytes[start..] {
        *byte = 0xff;
    }
    std::fs::write(&file, bytes).unwrap();
    let out = dir.path().join("logits");
    done(&outsize(&["logits", path(&packed), "--ids", "1,2,3", "--output", path(&out)]));
}
