//! Running the binary, and models for it.

// Each test program uses some of these.
#![allow(dead_code)]

pub mod learning;
pub mod scripted;
pub mod serving;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

pub fn outsize(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outsize")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// The command on its way, with its output caught and a cache of its own.
pub fn start(cache: &Path, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_outsize"))
        .args(args)
        .env("OUTSIZE_CACHE", cache)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Whether weights in bf16 are multiplied in tiles (AMX): to other bits than the same ones in f32.
pub fn in_tiles() -> bool {
    outsize::kernels::Isa::detected() == outsize::kernels::Isa::AmxBf16
}

/// So many megabytes, and what threads keep for tiles where there are such.
pub fn with_tiles(count: u64) -> u64 {
    count + if in_tiles() { 4 } else { 0 }
}

/// A budget of so much.
pub fn megabytes(count: u64) -> String {
    format!("cpu={}MB", with_tiles(count))
}

/// The only tensor of a file of logits.
pub fn read_logits(file: &Path) -> Vec<f32> {
    let checkpoint = outsize::checkpoint::Checkpoint::open(file).unwrap();
    let bytes = checkpoint.read(&checkpoint.tensors()[0]).unwrap();
    bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

/// Logits of the same weights stored in two ways: the same bits, but for tiles.
#[track_caller]
pub fn assert_alike(found: &[f32], wanted: &[f32], name: &str) {
    match in_tiles() {
        true => assert_close(found, wanted, name),
        false => assert_same_bits(found, wanted, name),
    }
}

#[track_caller]
pub fn assert_same_bits(found: &[f32], wanted: &[f32], name: &str) {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(bits(found) == bits(wanted), "{name}");
}

/// Logits within 1e-5 of the largest.
#[track_caller]
pub fn assert_close(found: &[f32], wanted: &[f32], name: &str) {
    assert_eq!(found.len(), wanted.len(), "{name}");
    let largest = wanted.iter().fold(0f32, |most, value| most.max(value.abs()));
    // What is not a number is not within.
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() <= 1e-5 * largest, "{name}: {found} and {wanted}");
    }
}

/// What was said on standard error.
pub fn message(output: &Output) -> String {
    text(&output.stderr)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub fn done(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// The message of a command that failed with `status`. No panic ever reaches a user.
#[track_caller]
pub fn failed(output: &Output, status: i32) -> String {
    let message = message(output);
    assert_eq!(output.status.code(), Some(status), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    message
}

/// A folder on the disk that holds the build, not in memory.
pub fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A model of some 65 MB in bf16, streamable in about two thirds of that.
pub const CONFIG: &str = r#"{
    "model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 3000, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "tie_word_embeddings": false, "eos_token_id": 2
}"#;

pub fn model(dir: &TempDir) -> PathBuf {
    model_of(dir, CONFIG)
}

/// One of another configuration.
pub fn model_of(dir: &TempDir, text: &str) -> PathBuf {
    let config = dir.path().join("wide.json");
    std::fs::write(&config, text).unwrap();
    let out = dir.path().join("model");
    done(&outsize(&[
        "synth",
        path(&config),
        path(&out),
        "--max-shard-size",
        "20MB",
        "--seed",
        "5",
    ]));
    out
}

pub fn run(model: &Path, more: &[&str]) -> Output {
    let mut args = vec!["run", path(model), "--ids", "5,6,7,8", "--json"];
    args.extend(more);
    outsize(&args)
}

pub fn report(output: &Output) -> Value {
    serde_json::from_str(&done(output)).unwrap()
}

/// A model of a few hundred kilobytes with a tokenizer and a context of 64 tokens.
pub fn tiny(dir: &TempDir) -> PathBuf {
    tiny_of(dir, "tiny", 600)
}

/// The same with another vocabulary.
pub fn tiny_of(dir: &TempDir, name: &str, vocab_size: usize) -> PathBuf {
    let config = dir.path().join(format!("{name}.json"));
    let text = format!(
        r#"{{
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": {vocab_size}, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 64, "tie_word_embeddings": false, "eos_token_id": null
        }}"#
    );
    std::fs::write(&config, text).unwrap();
    let out = dir.path().join(name);
    done(&outsize(&["synth", path(&config), path(&out)]));
    out
}
