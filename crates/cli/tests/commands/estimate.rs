//! `outsize estimate`: its figures are those of other software and of `outsize run`, and what is
//! wrong is said.

use crate::common::{CONFIG, done, failed, folder, model, outsize, path, report};
use outsize_checkpoint::{Dtype, ShardWriter, TensorSpec};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn estimate(model: &Path, more: &[&str]) -> Value {
    let mut args = vec!["estimate", path(model), "--json"];
    args.extend(more);
    report(&outsize(&args))
}

/// Cases that `scripts/fixtures/estimate.py` made with Accelerate and transformers.
#[test]
fn figures_are_those_of_accelerate_and_transformers() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../fixtures/estimate.json")).unwrap();
    assert!(cases.len() >= 26);
    let mut windows = 0;
    for case in &cases {
        let source = case["source"].as_str().unwrap();
        let model = match source.split_once('/').unwrap() {
            ("presets", name) => crates().join(format!("models/src/presets/{name}.json")),
            (_, name) => crates().join(format!("models/tests/fixtures/{name}")),
        };
        let number = |value: &Value| value.as_u64().unwrap();
        for kv in case["kv"].as_array().unwrap() {
            let (context, batch) = (kv["context"].to_string(), kv["batch"].to_string());
            let dtype = kv["dtype"].as_str().unwrap();
            let report = estimate(
                &model,
                &[
                    "--dtypes",
                    "float32",
                    "float16",
                    "bfloat16",
                    "int8",
                    "--context",
                    &context,
                    "--batch",
                    &batch,
                    "--kv-dtype",
                    dtype,
                ],
            );
            let [f32, f16, bf16, int8] = &report["estimates"].as_array().unwrap()[..] else {
                panic!("{report}");
            };
            // Accelerate counts the rotary embedding's tables, which no checkpoint has and nothing
            // keeps here.
            let total = number(&case["total"]) - number(&case["buffers"]);
            assert_eq!(number(&f32["weights"]), total, "{source}");
            assert_eq!(number(&f16["weights"]), total / 2, "{source}");
            assert_eq!(number(&report["parameters"]), total / 4, "{source}");
            let largest = &f32["largest_block"];
            assert_eq!(largest["bytes"], case["largest"], "{source}");
            let names = case["largest_names"].as_array().unwrap();
            assert!(names.contains(&largest["name"]), "{source}: {largest}");
            let half = number(&case["largest"]) / 2;
            assert_eq!(number(&bf16["largest_block"]["bytes"]), half, "{source}");
            // In f32 Accelerate shows the sum; in mixed precision the largest part, where ours is
            // their sum.
            let training = |name: &str, part: &str| number(&case["training"][name][part]);
            assert_eq!(number(&f32["training"]["total"]), training("float32", "step"), "{source}");
            for (row, name) in [(f32, "float32"), (f16, "float16"), (bf16, "bfloat16")] {
                let parts = ["model", "gradients", "optimizer"].map(|part| training(name, part));
                assert_eq!(
                    number(&row["training"]["total"]),
                    parts.iter().sum::<u64>(),
                    "{source} {name}"
                );
                assert_eq!(number(&row["training"]["moments"]), parts[2]);
            }
            assert_eq!(
                (&int8["training"], case["training"]["int8"]["step"].as_i64()),
                (&Value::Null, Some(-1))
            );
            // Accelerate divides all by four; here embeddings, head and norms stay as they are.
            assert!(number(&int8["weights"]) > total / 4, "{source}");
            // A sliding window holds the token itself, as a static cache does; a dynamic one leaves
            // it out.
            assert_eq!(f32["kv_cache"], kv["static"], "{source}: {kv}");
            match number(&kv["static"]) - number(&kv["dynamic"]) {
                0 => {}
                _ => windows += 1,
            }
        }
    }
    assert!(windows >= 3);
}

/// The least budget that a refusal of `outsize run` names.
fn least(message: &str) -> u64 {
    let (_, rest) = message.split_once("at least cpu=").unwrap_or_else(|| panic!("{message}"));
    rest.split(|char: char| !char.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn running_takes_what_is_said() {
    let dir = folder();
    let model = model(&dir);
    let said = estimate(&model, &["--dtypes", "stored", "--context", "512"]);
    let row = &said["estimates"][0];
    let (resident, streamed) = (row["resident"].as_u64().unwrap(), row["least"].as_u64().unwrap());
    let run = |budget: u64| {
        let budget = format!("cpu={budget}");
        let args =
            ["--context", "512", "--max-new-tokens", "2", "--ignore-eos", "--max-memory", &budget];
        crate::common::run(&model, &args)
    };
    let refused = failed(&run(1), 1);
    // What is said does, and is not much more than what would do.
    let least = least(&refused);
    assert!((least..least + (16 << 20)).contains(&streamed), "{streamed}: {refused}");
    let streams = report(&run(streamed));
    assert!(streams["placement"]["streamed_bytes"].as_u64().unwrap() > 0);
    assert!(streams["peak_rss_bytes"].as_u64().unwrap() <= streamed);
    let stays = report(&run(resident));
    assert_eq!(stays["placement"]["streamed_bytes"], 0);
    assert!(stays["peak_rss_bytes"].as_u64().unwrap() <= resident);
    assert!(streamed < resident);
}

#[test]
fn a_configuration_says_what_its_checkpoint_says() {
    let dir = folder();
    let model = model(&dir);
    let whole = estimate(&model, &[]);
    let config = model.join("config.json");
    let bare = estimate(&config, &[]);
    assert_eq!(bare["source"], "config");
    for key in ["parameters", "tensors", "stored", "context", "pass"] {
        assert_eq!(bare[key], whole[key], "{key}");
    }
    let rows = |report: &Value| -> Vec<Value> {
        let rows = report["estimates"].as_array().unwrap();
        rows.iter()
            .map(|row| json!([row["dtype"], row["weights"], row["kv_cache"], row["training"]]))
            .collect()
    };
    assert_eq!(rows(&bare), rows(&whole));
    assert_eq!(rows(&bare).len(), 5);
    assert_eq!(bare["estimates"][0]["dtype"], Value::Null);
    // An index or a shard alone stands for itself, and for the configuration beside it.
    let index = estimate(&model.join("model.safetensors.index.json"), &[]);
    assert_eq!(rows(&index), rows(&whole));
    let shown = done(&outsize(&["estimate", path(&model), "--dtypes", "bf16,int4"]));
    for part in [
        "weights in",
        "model.layers.0",
        "\nbf16 ",
        "\nint4 ",
        "to train: with Adam",
        "where a checkpoint stores them",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("as stored (") && !shown.contains('\u{1b}'), "{shown}");
}

/// A checkpoint of a mixture of experts in 8-bit floats, without a configuration.
fn experts(dir: &TempDir) -> PathBuf {
    let out = dir.path().join("experts");
    let mut specs = vec![TensorSpec::new("model.embed_tokens.weight", Dtype::BF16, [50, 8])];
    for layer in 0..3 {
        for expert in 0..40 {
            let name = format!("model.layers.{layer}.mlp.experts.{expert}.up_proj.weight");
            specs.push(TensorSpec::new(name, Dtype::F8E4M3, [8, 8]));
        }
    }
    let sizes: Vec<_> = specs
        .iter()
        .map(|spec| (spec.name.clone(), spec.shape.iter().product::<usize>()))
        .collect();
    let mut writer = ShardWriter::create(&out, specs, 1 << 20).unwrap();
    for (name, size) in sizes {
        let bytes = size * if name.contains("embed") { 2 } else { 1 };
        writer.write(&name, &vec![0; bytes]).unwrap();
    }
    writer.finish().unwrap();
    out
}

#[test]
fn of_names_alone_weights_are_known() {
    let dir = folder();
    let model = experts(&dir);
    let said = estimate(&model, &["--dtypes", "stored", "bf16", "int4"]);
    assert_eq!((&said["source"], &said["architecture"]), (&json!("headers"), &Value::Null));
    assert_eq!(said["stored"], json!({"bf16": 800, "f8": 3 * 40 * 64}));
    let [stored, bf16, int4] = &said["estimates"].as_array().unwrap()[..] else {
        panic!("{said}");
    };
    assert_eq!(stored["weights"], 800 + 3 * 40 * 64);
    assert_eq!(stored["largest_block"], json!({"name": "model.layers.0", "bytes": 40 * 64}));
    assert_eq!(stored["training"], Value::Null);
    assert_eq!(bf16["weights"], 800 + 2 * 3 * 40 * 64);
    assert_eq!(int4["weights"], 800 + 3 * 40 * 32);
    assert_eq!(bf16["training"]["total"], 18 * (400 + 3 * 40 * 64));
    for key in ["kv_cache", "activations", "resident", "least"] {
        assert_eq!(bf16[key], Value::Null, "{key}");
    }
    let shown = done(&outsize(&["estimate", path(&model)]));
    assert!(shown.contains("unknown") && shown.contains("no config.json"), "{shown}");
    // Of an architecture that is not built in: it is named.
    fs::write(model.join("config.json"), r#"{"model_type": "unheard_of"}"#).unwrap();
    let shown = done(&outsize(&["estimate", path(&model)]));
    assert!(shown.contains("unheard_of") && shown.contains("is not built in"), "{shown}");
}

#[test]
fn what_is_wrong_is_said() {
    let dir = folder();
    let config = dir.path().join("config.json");
    fs::write(&config, CONFIG).unwrap();
    let with = |more: &[&str], status: i32| {
        let mut args = vec!["estimate", path(&config)];
        args.extend(more);
        failed(&outsize(&args), status)
    };
    assert!(with(&["--dtypes", "bf17"], 2).contains("int8"));
    assert!(with(&["--context", "0"], 2).contains("'0' for '--context"));
    let long = with(&["--context", "99999999999"], 2);
    assert!(long.contains("more than the 512 tokens"), "{long}");
    assert!(with(&["--batch", "0"], 2).contains("'0' for '--batch"));
    assert!(with(&["--batch", "4097"], 2).contains("1..=4096"));
    assert!(with(&["--context", "-1"], 2).contains("-1"));
    let change = |from: &str, to: &str| {
        fs::write(&config, CONFIG.replace(from, to)).unwrap();
        let message = with(&[], 1);
        assert!(message.contains(path(&config)), "{message}");
        message
    };
    let unknown = change("\"llama\"", "\"mamba\\u001b[2J\"");
    assert!(
        unknown.contains("without weights beside it") && !unknown.contains('\u{1b}'),
        "{unknown}"
    );
    assert!(change("\"hidden_size\": 768", "\"hidden_size\": -1").contains("hidden_size"));
    assert!(change("{", "[").contains("is not a JSON object"));
    let gone = failed(&outsize(&["estimate", path(&dir.path().join("none.json"))]), 2);
    assert!(gone.contains("none.json: no such file or folder"), "{gone}");
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(failed(&outsize(&["estimate", path(&empty)]), 1).contains("describes no model"));
    #[cfg(unix)]
    {
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("nothing", &link).unwrap();
        let message = failed(&outsize(&["estimate", path(&link)]), 1);
        assert!(message.contains(path(&link)), "{message}");
    }
}

/// The largest that a configuration may ask for, and the longest text: saturated, refused, never a
/// panic.
#[test]
fn the_absurd_is_counted_or_refused() {
    let dir = folder();
    let config = dir.path().join("config.json");
    let most = json!({
        "model_type": "llama", "hidden_size": 1 << 20, "intermediate_size": 1 << 22, "num_hidden_layers": 4096,
        "num_attention_heads": 4096, "num_key_value_heads": 4096, "head_dim": 4096, "vocab_size": 1 << 24,
        "max_position_embeddings": 1 << 30, "tie_word_embeddings": false
    });
    fs::write(&config, most.to_string()).unwrap();
    let shown = done(&outsize(&["estimate", path(&config), "--context", "1000"]));
    assert!(shown.contains("TB"), "{shown}");
    let long = ["--context", "16777216", "--batch", "4096"];
    let cache = failed(&outsize(&[&["estimate", path(&config)], &long[..]].concat()), 2);
    assert!(cache.contains("lower --batch or --context"), "{cache}");
    let beyond = failed(&outsize(&["estimate", path(&config), "--context", "16777217"]), 2);
    assert!(beyond.contains("16777216 tokens"), "{beyond}");
}
