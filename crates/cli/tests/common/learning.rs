//! Trainings from the command.

use super::{outsize, path, report};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Questions and answers that are always alike.
pub fn examples(dir: &TempDir, count: usize) -> PathBuf {
    let file = dir.path().join(format!("{count}.jsonl"));
    let line = |n: usize| {
        let (a, b) = (n * 7 % 10, n * 3 % 10);
        format!("{{\"prompt\": \"What is {a} and {b}? \", \"completion\": \"It is {}.\"}}\n", a + b)
    };
    std::fs::write(&file, (0..count).map(line).collect::<String>()).unwrap();
    file
}

pub fn finetune(model: &Path, data: &Path, output: &Path, more: &[&str]) -> Value {
    let arguments = ["finetune", path(model), path(data), "--output", path(output), "--json"];
    report(&outsize(&[&arguments[..], more].concat()))
}
