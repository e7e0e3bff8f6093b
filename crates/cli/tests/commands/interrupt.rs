//! Ctrl-C: the work ends in order, wherever it is.
#![cfg(unix)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Far more than ending in order takes, far less than the work that is interrupted.
const SOON: Duration = Duration::from_secs(20);

fn outsize(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_outsize"))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A model of some 130 MB in bf16 whose passes over a long prompt take long.
fn model(dir: &TempDir) -> PathBuf {
    let config = dir.path().join("wide.json");
    let text = r#"{
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 1000, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 100000, "tie_word_embeddings": false, "eos_token_id": 2
    }"#;
    std::fs::write(&config, text).unwrap();
    let out = dir.path().join("model");
    let made = outsize(&["synth", path(&config), path(&out)]).wait_with_output();
    assert!(made.unwrap().status.success());
    out
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

/// What the interrupted command said, which must not take long.
fn ended(child: Child) -> Output {
    let began = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let message = String::from_utf8_lossy(&output.stderr);
    // As shells count it.
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("interrupted"), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    output
}

fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[test]
fn while_tokens_come_what_was_said_stays() {
    let dir = folder();
    let model = model(&dir);
    let mut child = outsize(&[
        "run",
        path(&model),
        "--prompt",
        "Once",
        "--ignore-eos",
        "--max-new-tokens",
        "50000",
    ]);
    let mut first = [0; 16];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    interrupt(&child);
    let output = ended(child);
    // The text ends with a line's end, so that a prompt of the shell's begins on its own line.
    assert!(output.stdout.ends_with(b"\n"));
}

#[test]
fn in_the_middle_of_a_pass() {
    let dir = folder();
    let model = model(&dir);
    let ids = vec!["7"; 12_000].join(",");
    for budget in ["cpu=1GB", "cpu=220MB"] {
        let child = outsize(&[
            "run",
            path(&model),
            "--ids",
            &ids,
            "--max-new-tokens",
            "1",
            "--max-memory",
            budget,
        ]);
        std::thread::sleep(Duration::from_secs(2));
        interrupt(&child);
        assert!(ended(child).stdout.is_empty());
    }
    // Nothing half-written stays either.
    let out = dir.path().join("logits.safetensors");
    let child = outsize(&["logits", path(&model), "--ids", &ids, "--output", path(&out)]);
    std::thread::sleep(Duration::from_secs(2));
    interrupt(&child);
    ended(child);
    let left: Vec<_> = dir.path().read_dir().unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}"); // the model and its configuration
}
