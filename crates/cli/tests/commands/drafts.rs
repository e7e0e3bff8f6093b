//! Speculative decoding from the command: the same text, a line on the guesses, and clear refusals.

use crate::common::{failed, folder, message, model, outsize, path, report};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

fn run(model: &Path, more: &[&str]) -> Value {
    let arguments = ["run", path(model), "--prompt", "a b a b a b a", "--max-new-tokens", "40"];
    report(&outsize(&[&arguments[..], &["--ignore-eos", "--json"], more].concat()))
}

#[test]
fn the_text_is_the_same_and_the_report_says_how_many_guesses_were_right() {
    let dir = folder();
    let model = model(&dir);
    for sampling in [&["--temperature", "0"][..], &["--temperature", "0.7", "--seed", "5"]] {
        let plain = run(&model, sampling);
        assert!(plain.get("drafts").is_none());
        for drafts in [
            &["--prompt-lookup"][..],
            &["--draft-model", path(&model)],
            &["--draft-model", path(&model), "--draft-tokens", "3", "--max-memory", "cpu=300MB"],
        ] {
            let found = run(&model, &[sampling, drafts].concat());
            assert_eq!(found["tokens"], plain["tokens"], "{drafts:?}");
            let stats = |key: &str| found["drafts"][key].as_u64().unwrap();
            let made = stats("passes") + stats("accepted");
            // The first token is of the prompt's pass; the last is not run.
            assert!((38..=39).contains(&made), "{drafts:?}: {}", found["drafts"]);
            assert!(stats("accepted") <= stats("drafted"));
            assert!(found["prediction_error"].is_null(), "it is of passes over one token");
        }
    }
    // It guesses for itself, greedily.
    let found = run(&model, &["--draft-model", path(&model), "--draft-tokens", "3"]);
    assert_eq!(found["drafts"]["accepted"].as_u64().unwrap(), 29, "{}", found["drafts"]);

    let ran = outsize(&["run", path(&model), "--prompt", "a b a b", "--prompt-lookup"]);
    assert!(message(&ran).contains("guesses were right"), "{}", message(&ran));
    let mut chat = Command::new(env!("CARGO_BIN_EXE_outsize"));
    std::fs::write(
        model.join("chat_template.jinja"),
        "{% for m in messages %}{{ m.content }}.{% endfor %}",
    )
    .unwrap();
    chat.args(["chat", path(&model), "--max-new-tokens", "6", "--draft-model", path(&model)]);
    let pipes = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut chat = pipes.spawn().unwrap();
    chat.stdin.take().unwrap().write_all(b"Hello\n/stats\n").unwrap();
    let said = chat.wait_with_output().unwrap();
    assert!(message(&said).contains("guesses were right"), "{}", message(&said));
}

#[test]
fn what_cannot_be_is_refused() {
    let dir = folder();
    let model = model(&dir);
    let said = |status, more: &[&str]| {
        let ran = outsize(&[&["run", path(&model), "--prompt", "a"][..], more].concat());
        failed(&ran, status)
    };
    let error = said(2, &["--draft-tokens", "3"]);
    assert!(error.contains("--draft-tokens: give --draft-model or --prompt-lookup"), "{error}");
    let error = said(2, &["--prompt-lookup", "--draft-tokens", "0"]);
    assert!(error.contains("--draft-tokens"), "{error}");
    let error = said(2, &["--prompt-lookup", "--draft-model", "x"]);
    assert!(error.contains("cannot be used with"), "{error}");
    let error = said(2, &["--draft-model", "no-such-folder"]);
    assert!(error.contains("no-such-folder does not exist"), "{error}");
    let error = said(1, &["--draft-model", path(&model), "--max-memory", "cpu=1MB"]);
    assert!(error.contains("--max-memory"), "{error}");
    let prompts = dir.path().join("prompts.jsonl");
    std::fs::write(&prompts, "{\"prompt\": \"a\"}\n").unwrap();
    let many = ["run", path(&model), "--prompts", path(&prompts), "--output"];
    let output = dir.path().join("out.jsonl");
    let ran = outsize(&[&many[..], &[path(&output), "--prompt-lookup"]].concat());
    assert!(failed(&ran, 2).contains("for one prompt alone"), "{}", message(&ran));
    assert!(!output.exists());
}
