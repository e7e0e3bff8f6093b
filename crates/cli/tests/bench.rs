//! `outsize bench`: a small model beside the limits of the machine. What figures come to is not
//! tested, only that they are there.

mod common;

use common::{folder, message, path, start};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// As little as can be measured with.
const LITTLE: [&str; 4] = ["--size", "17MB", "--rounds", "1"];

fn bench(cache: &Path, args: &[&str]) -> Output {
    let args = [&["bench"], &LITTLE[..], args].concat();
    start(cache, &args).wait_with_output().unwrap()
}

/// A model of some 160 MB whose head and table are a small part of it.
fn model(dir: &TempDir) -> PathBuf {
    let config = dir.path().join("config.json");
    let json = r#"{
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 5,
        "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 1000, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 100000, "tie_word_embeddings": false
    }"#;
    std::fs::write(&config, json).unwrap();
    let out = dir.path().join("model");
    let made = start(dir.path(), &["synth", path(&config), path(&out), "--max-shard-size", "50MB"]);
    assert!(made.wait_with_output().unwrap().status.success());
    out
}

#[test]
fn the_machine_alone() {
    let dir = folder();
    let output = bench(dir.path(), &["--json"]);
    assert!(output.status.success(), "{}", message(&output));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["version"], 1);
    assert_eq!(results["limits"].as_array().unwrap().len(), 1);
    assert_eq!(results["products"].as_array().unwrap().len(), 1);
    for name in [
        "disk_bytes_per_second",
        "disk_latency_seconds",
        "memory_bytes_per_second",
        "copy_bytes_per_second",
        "fresh_bytes_per_second",
        "f32_flops",
        "bf16_flops",
    ] {
        let value = results["limits"][0][name].as_f64();
        assert!(value.is_some_and(|value| value > 0.0), "{name}: {results}");
    }
    assert!(results["model"].is_null() && results["budgets"].as_array().unwrap().is_empty());
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "nothing stays");
}

#[test]
fn a_model_in_two_budgets() {
    let dir = folder();
    let model = model(&dir);
    let few = ["--prompt-tokens", "8", "--new-tokens", "3"];
    let budgets = ["--max-memory", "cpu=110MB", "--max-memory", "cpu=2GB"];
    let args = [&[path(&model), "--json"], &few[..], &budgets[..]].concat();
    let output = bench(dir.path(), &args);
    assert!(output.status.success(), "{}", message(&output));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let weights = results["model"]["weight_bytes"].as_u64().unwrap();
    let table = 1000 * 1024 * 2;
    // All matrices but the table; the norms are no matrices.
    assert_eq!(results["model"]["product_bytes"], weights - table - 11 * 1024 * 2);
    assert_eq!(results["model"]["head_values"], 1000 * 1024);
    assert_eq!(results["model"]["files"], 4);
    // Two runs, and a look before and after each.
    assert_eq!(results["limits"].as_array().unwrap().len(), 3);
    for (budget, streams) in results["budgets"].as_array().unwrap().iter().zip([true, false]) {
        assert!(budget["error"].is_null(), "{budget}");
        let run = &budget["runs"][0];
        let peak = run["report"]["peak_rss_bytes"].as_u64().unwrap();
        assert!(peak <= budget["budget_bytes"].as_u64().unwrap(), "{budget}");
        assert_eq!(run["report"]["prompt_again"].as_array().unwrap().len(), 2);
        let phases = budget["phases"].as_array().unwrap();
        let names: Vec<_> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["opening", "first pass", "prompt again", "token"]);
        for phase in phases {
            assert!(phase["seconds"]["median"].as_f64().unwrap() > 0.0);
            let shares = phase["bounds"].as_array().unwrap().iter();
            let shares: Vec<_> = shares.map(|b| b["share"]["median"].as_f64().unwrap()).collect();
            assert!(!shares.is_empty() && shares.is_sorted_by(|a, b| a >= b), "{phase}");
        }
        let bounds = phases[3]["bounds"].as_array().unwrap();
        let disk = bounds.iter().any(|bound| bound["limit_of"] == "disk");
        assert_eq!(disk, streams, "{budget}");
    }
    let notes = results["notes"].to_string();
    assert!(!notes.contains("SAME TOKENS") && !notes.contains("NOT KEPT"), "{notes}");
}

#[test]
fn a_budget_that_is_too_small_is_said_in_its_place() {
    let dir = folder();
    let model = model(&dir);
    let few = [path(&model), "--prompt-tokens", "8", "--new-tokens", "3", "--compute", "bf16"];
    let began = std::time::Instant::now();
    let output = bench(dir.path(), &[&few[..], &["--max-memory", "cpu=1MB"]].concat());
    // Before anything is measured, which takes longer.
    assert!(began.elapsed() < std::time::Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        message(&output).contains("error: ") && message(&output).contains("MB"),
        "{}",
        message(&output)
    );
    let budgets = ["--max-memory", "cpu=1MB", "--max-memory", "cpu=2GB"];
    let output = bench(dir.path(), &[&few[..], &budgets].concat());
    assert!(output.status.success(), "{}", message(&output));
    let table = String::from_utf8(output.stdout).unwrap();
    for part in
        ["cpu=1MB: ", "cpu=2GB: peak ", "nothing streamed", "token", "memory read", "bf16", "share"]
    {
        assert!(table.contains(part), "{part}: {table}");
    }
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn what_makes_no_sense_is_said() {
    let dir = folder();
    let model = model(&dir);
    let place = path(&model);
    let missing = dir.path().join("missing");
    for (args, named) in [
        (vec!["--max-memory", "cpu=1GB"], "--max-memory"),
        (vec![place, "--max-memory", "1GB"], "--max-memory"),
        (vec![place, "--rounds", "0"], "--rounds"),
        (vec![place, "--new-tokens", "1"], "--new-tokens"),
        (vec![place, "--prompt-tokens", "0"], "--prompt-tokens"),
        (vec![place, "--prompt-tokens", "60000"], "--prompt-tokens"),
        (vec![place, "--compute", "f16"], "--compute"),
        (vec![path(&missing)], "missing"),
        (vec!["--calibrate", "--max-memory", "cpu=1GB"], "--max-memory"),
    ] {
        let output =
            start(dir.path(), &[&["bench"], &args[..]].concat()).wait_with_output().unwrap();
        let said = message(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(named) && output.stdout.is_empty(), "{args:?}: {said}");
    }
    let output = start(dir.path(), &["run", place, "--ids", "1", "--prompt-again", "2"]);
    assert_eq!(output.wait_with_output().unwrap().status.code(), Some(2));
}

/// The processes that a process has started.
#[cfg(target_os = "linux")]
fn children(of: u32) -> Vec<u32> {
    let file = format!("/proc/{of}/task/{of}/children");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_ascii_whitespace().map(|id| id.parse().unwrap()).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupt_ends_the_run_of_the_model_too() {
    let dir = folder();
    let model = model(&dir);
    let long = ["--prompt-tokens", "1", "--new-tokens", "90000", "--max-memory", "cpu=2GB"];
    let args = [&["bench", path(&model)], &LITTLE[..], &long].concat();
    let mut parent = start(dir.path(), &args);
    let child = loop {
        assert_eq!(parent.try_wait().unwrap(), None, "it ended by itself");
        match children(parent.id())[..] {
            [child] => break child,
            _ => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    };
    // Only the parent hears of it, as from another program.
    let sent = Command::new("kill").args(["-INT", &parent.id().to_string()]).status();
    assert!(sent.unwrap().success());
    let output = parent.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", message(&output));
    assert!(message(&output).contains("interrupted"), "{}", message(&output));
    assert!(!Path::new(&format!("/proc/{child}")).exists());
}
