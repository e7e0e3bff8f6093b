//! Commands with a GPU, or a software adapter that acts as one.

mod common;

use common::{done, folder, message, path, start};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

/// As little as can be measured with.
const LITTLE: [&str; 3] = ["--json", "--size", "17MB"];

fn outsize(cache: &Path, args: &[&str]) -> Output {
    start(cache, args).wait_with_output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", message(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Whether there is a GPU to test on: it is a failure if there is none where `OUTSIZE_GPU_TESTS` is
/// set.
fn there_is_a_gpu(cache: &Path) -> bool {
    let found = !json(&outsize(cache, &["env", "--json"]))["gpus"].as_array().unwrap().is_empty();
    assert!(found || std::env::var_os("OUTSIZE_GPU_TESTS").is_none(), "no GPU");
    if !found {
        eprintln!("skipped: no GPU");
    }
    found
}

/// A model of such a configuration.
fn synth(cache: &Path, text: &str, dtype: &str) -> PathBuf {
    let (config, model) = (cache.join("config.json"), cache.join("model"));
    std::fs::write(&config, text).unwrap();
    done(&outsize(cache, &["synth", path(&config), path(&model), "--dtype", dtype]));
    model
}

#[test]
fn a_calibrated_gpu_is_predicted_by_its_own_figures() {
    let dir = folder();
    let cache = dir.path();
    if !there_is_a_gpu(cache) {
        return;
    }
    let report = json(&outsize(cache, &[&["bench", "--calibrate"], &LITTLE[..]].concat()));
    let gpu = &report["calibration"]["figures"]["gpus"]["0"];
    for path in [
        "/upload/bytes_per_second",
        "/upload/latency_seconds",
        "/download/bytes_per_second",
        "/download/latency_seconds",
        "/processor/memory_bytes_per_second",
        "/processor/product_bytes_per_second",
        "/processor/product_flops",
        "/processor/cache_bytes_per_second",
        "/processor/block_seconds",
    ] {
        let value = gpu.pointer(path).and_then(Value::as_f64);
        assert!(value.is_some_and(|value| value > 0.0), "{path}: {gpu}");
    }
    let budget = ["--max-memory", "gpu0=4GB,cpu=4GB", "--json"];
    let plan = json(&outsize(cache, &[&["plan", "llama-1b"], &budget[..]].concat()));
    assert_eq!(&plan["figures"]["gpus"]["0"], gpu, "{}", plan["figures"]);
    let table = outsize(cache, &["env"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("copied to it"));
}

#[test]
fn a_model_runs_beside_the_limits_of_a_gpu() {
    let dir = folder();
    let cache = dir.path();
    if !there_is_a_gpu(cache) {
        return;
    }
    let text = r#"{
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1000, "tie_word_embeddings": false
    }"#;
    let model = synth(cache, text, "bf16");
    let args = ["bench", path(&model), "--max-memory", "gpu0=500MB,cpu=2GB", "--rounds", "1"];
    let few = ["--prompt-tokens", "8", "--new-tokens", "3"];
    let results = json(&outsize(cache, &[&args, &few[..], &LITTLE].concat()));
    assert!(results["gpus"]["0"]["upload"]["bytes_per_second"].as_f64() > Some(0.0));
    let budget = &results["budgets"][0];
    assert!(budget["error"].is_null(), "{budget}");
    let held = budget["runs"][0]["report"]["gpu_memory_bytes"]["gpu0"].as_u64();
    assert!((1..500_000_000).contains(&held.unwrap()), "{budget}");
    let phases = budget["phases"].as_array().unwrap();
    for phase in &phases[1..] {
        assert!(phase["predicted_seconds"].as_f64() > Some(0.0), "{phase}");
    }
    let bound = |phase: usize, name: &str| {
        let mut bounds = phases[phase]["bounds"].as_array().unwrap().iter();
        bounds.any(|bound| bound["limit_of"] == name)
    };
    // Weights that are on the GPU are read from its memory.
    assert!(bound(3, "memory of the GPU") && bound(2, "products on the GPU"), "{budget}");
}

#[test]
fn weights_in_fp8_give_the_tokens_of_the_processors() {
    let dir = folder();
    let cache = dir.path();
    if !there_is_a_gpu(cache) {
        return;
    }
    // Blocks of 128 divide neither all rows nor all columns.
    let text = r#"{
        "model_type": "llama", "hidden_size": 264, "intermediate_size": 520, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 48, "vocab_size": 1000,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 500, "tie_word_embeddings": false
    }"#;
    let model = synth(cache, text, "fp8");
    let tokens = |more: &[&str]| {
        let args = ["run", path(&model), "--ids", "5,6,7,8,9,10,11,12,13,14", "--json"];
        let few = ["--max-new-tokens", "6"];
        let report = json(&outsize(cache, &[&args[..], &few, more].concat()));
        let tiers = report["placement"]["tiers"].as_array().unwrap();
        let on_gpu = tiers.iter().find(|held| held["tier"] == "gpu0");
        let kept = on_gpu.map_or(0, |held| held["weights"].as_u64().unwrap());
        let held = report["gpu_memory_bytes"]["gpu0"].as_u64();
        assert!(on_gpu.is_none_or(|_| (1..1_000_000_000).contains(&held.unwrap())), "{held:?}");
        (report["tokens"].clone(), kept)
    };
    let (expected, _) = tokens(&["--max-memory", "cpu=1GB"]);
    let map = cache.join("map.json");
    for (place, least) in [("gpu0", 1_500_000), ("cpu", 0)] {
        std::fs::write(&map, format!(r#"{{"": "{place}"}}"#)).unwrap();
        let budget = ["--max-memory", "gpu0=1GB,cpu=1GB", "--device-map", path(&map)];
        let (found, kept) = tokens(&budget);
        assert_eq!(found, expected, "{place}");
        assert!(kept >= least, "{kept} bytes with {place}");
    }
}

#[test]
fn a_picture_is_painted_on_a_gpu() {
    let dir = folder();
    let cache = dir.path();
    if !there_is_a_gpu(cache) {
        return;
    }
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../diffuse/tests/fixtures/pipeline");
    let picture = cache.join("cat.png");
    let args = ["image", path(&fixture), "--output", path(&picture), "--prompt", "a cat"];
    let few = ["--steps", "2", "--max-memory", "gpu0=400MB,cpu=1GB"];
    let made = outsize(cache, &[&args[..], &few].concat());
    done(&made);
    let told = message(&made).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(told.matches("MB on gpu0").count(), 3, "{told}");
    assert!(picture.exists());
}
