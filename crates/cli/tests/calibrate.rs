//! `outsize bench --calibrate` with little memory and disk: what it keeps, and what it leaves
//! behind, which is nothing.

mod common;

use common::{folder, message, start};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use tempfile::TempDir;

/// As little as can be measured with.
const LITTLE: [&str; 2] = ["--size", "17MB"];

fn bench(cache: &Path, args: &[&str]) -> Output {
    start(cache, &[&["bench"], args].concat()).wait_with_output().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = folder
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A model of some 20 MB.
fn model(dir: &TempDir) -> PathBuf {
    let config = dir.path().join("config.json");
    let text = r#"{
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 2000, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": false
    }"#;
    std::fs::write(&config, text).unwrap();
    let out = dir.path().join("model");
    let made = Command::new(env!("CARGO_BIN_EXE_outsize"))
        .args(["synth", config.to_str().unwrap(), out.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    out
}

#[test]
fn the_figures_are_kept_and_used() {
    let dir = folder();
    let cache = dir.path().join("cache");
    let output = bench(&cache, &[&["--calibrate", "--json"][..], &LITTLE].concat());
    assert!(output.status.success(), "{}", message(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(names(&cache), ["machine.json"], "nothing else stays");
    let kept: Value =
        serde_json::from_slice(&std::fs::read(cache.join("machine.json")).unwrap()).unwrap();
    assert_eq!(report["calibration"], kept);
    assert_eq!(kept["version"], 3);
    let figures = &kept["figures"];
    for path in [
        "/disk/bytes_per_second",
        "/disk/latency_seconds",
        "/copy_bytes_per_second",
        "/first_touch_bytes_per_second",
        "/cpu/memory_bytes_per_second",
        "/cpu/product_bytes_per_second",
        "/cpu/product_flops",
        "/cpu/prefill/f32/bytes_per_second",
        "/cpu/prefill/f32/flops",
        "/cpu/prefill/bf16/bytes_per_second",
        "/cpu/prefill/bf16/flops",
        "/cpu/prefill/attention_flops",
        "/cpu/prefill/f32/values_per_second",
        "/cpu/prefill/bf16/values_per_second",
        "/cpu/cache_bytes_per_second",
        "/cpu/block_seconds",
    ] {
        let value = figures.pointer(path).and_then(Value::as_f64);
        assert!(value.is_some_and(|value| value > 0.0), "{path}: {figures}");
    }
    assert_eq!(figures["gpus"], serde_json::json!({}));
    let measurements = kept["measurements"].as_array().unwrap();
    assert_eq!(measurements.len(), 16);

    // The other command takes them from there.
    let env = Command::new(env!("CARGO_BIN_EXE_outsize"))
        .args(["env", "--json"])
        .env("OUTSIZE_CACHE", &cache)
        .output()
        .unwrap();
    let env: Value = serde_json::from_slice(&env.stdout).unwrap();
    assert_eq!(env["calibration"]["provenance"]["measured"], true, "{env:#}");
    assert_eq!(env["calibration"]["figures"], *figures);
}

#[test]
fn a_model_is_read_and_nothing_is_written_beside_it() {
    let dir = folder();
    let model = model(&dir);
    let before = names(&model);
    let place = model.to_str().unwrap();
    let output = bench(&dir.path().join("cache"), &[&["--calibrate", place][..], &LITTLE].concat());
    assert!(output.status.success(), "{}", message(&output));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(text.contains("the model's own tensors"), "{text}");
    for part in ["median", "spread", "disk, streaming", "attention", "machine.json"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(names(&model), before);
}

#[test]
fn a_folder_without_weights_is_one_to_write_in() {
    let dir = folder();
    let place = dir.path().join("place");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("config.json"), "{}").unwrap();
    std::fs::write(dir.path().join("machine.json"), "{").unwrap();
    let output =
        bench(dir.path(), &[&["--calibrate", place.to_str().unwrap()][..], &LITTLE].concat());
    // What was kept and is damaged is mentioned, and replaced.
    let said = message(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("damaged") && said.contains("machine.json"), "{said}");
    assert_eq!(names(&place), ["config.json"]);
    assert_eq!(names(dir.path()), ["machine.json", "place"]);
}

#[test]
fn what_cannot_be_measured_is_said() {
    let dir = folder();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    std::fs::write(small.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let missing = dir.path().join("missing");
    for (status, args, named) in [
        (2, vec!["--calibrate", "--rounds", "2"], "--rounds"),
        (2, vec!["--calibrate", "--size", "1MB"], "--size"),
        (2, vec!["--calibrate", "--size", "big"], "--size"),
        (2, vec!["--calibrate", missing.to_str().unwrap()], "missing"),
        (2, vec!["--calibrate", file.to_str().unwrap()], "not a folder"),
        (1, vec!["--calibrate", small.to_str().unwrap()], "small"),
    ] {
        let output = bench(dir.path(), &args);
        let said = message(&output);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        assert!(said.contains(named), "{args:?}: {said}");
        assert!(output.stdout.is_empty());
    }
    let output = bench(&file, &["--calibrate"]);
    assert_eq!(output.status.code(), Some(1), "{}", message(&output));
    assert!(message(&output).contains("OUTSIZE_CACHE"), "{}", message(&output));
    assert_eq!(names(dir.path()), ["file", "small"]);
}

#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
#[cfg(unix)]
fn an_interrupt_leaves_nothing() {
    let dir = folder();
    for milliseconds in [100, 500, 1500] {
        let child = start(dir.path(), &["bench", "--calibrate"]);
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        signal(&child, "-INT");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", message(&output));
        assert!(message(&output).contains("interrupted"), "{}", message(&output));
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }
}

/// Where the file never has a name, not even a killed process leaves one.
#[test]
#[cfg(target_os = "linux")]
fn a_killed_one_leaves_nothing() {
    let dir = folder();
    for milliseconds in [150, 1000] {
        let mut child = start(dir.path(), &["bench", "--calibrate"]);
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
        signal(&child, "-KILL");
        child.wait().unwrap();
        assert_eq!(names(dir.path()), Vec::<String>::new());
    }
}
