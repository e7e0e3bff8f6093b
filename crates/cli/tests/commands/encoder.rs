//! The command with an encoder-decoder: the prompt goes to the encoder, the answer begins with the
//! decoder's own token.

use crate::common::{done, failed, folder, outsize, path, report};
use outsize::checkpoint::Checkpoint;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures").join(name)
}

fn ids(expected: &Value, key: &str) -> String {
    let ids: Vec<String> = expected[key].as_array().unwrap().iter().map(Value::to_string).collect();
    ids.join(",")
}

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn logits(file: &Path) -> Vec<f32> {
    let file = Checkpoint::open(file).unwrap();
    let bytes = file.read(file.get("logits").unwrap()).unwrap();
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn tokens_and_logits_are_those_of_transformers() {
    let dir = folder();
    for name in ["t5", "t5-published"] {
        let (expected, model) = (expected(name), fixture(name));
        let prompt = ids(&expected, "ids");
        let arguments = ["run", path(&model), "--ids", &prompt, "--ignore-eos", "--json"];
        let ran = report(&outsize(&[&arguments[..], &["--max-new-tokens", "16"]].concat()));
        assert_eq!(ran["tokens"], expected["greedy"], "{name}");
        assert_eq!(ran["prompt_tokens"], 24);
        // The answer's alone: 16 tokens, and what the decoder begins with.
        assert_eq!(ran["context"], 17);

        let output = dir.path().join(format!("{name}.safetensors"));
        let decoder_ids = ids(&expected, "decoder_ids");
        let arguments = ["logits", path(&model), "--ids", &prompt, "--output", path(&output)];
        done(&outsize(&[&arguments[..], &["--decoder-ids", &decoder_ids]].concat()));
        let (found, reference) = (logits(&output), logits(&model.join("expected.safetensors")));
        let largest = reference.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let worst = found.iter().zip(&reference).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
        assert_eq!(found.len(), reference.len());
        assert!(worst <= 1e-4 * largest, "{name}: {worst} of {largest}");
        // Without them, those of what the decoder begins with.
        done(&outsize(&[&arguments[..], &["--force"]].concat()));
        assert_eq!(logits(&output).len(), reference.len() / 24);
    }
}

#[test]
fn what_does_not_fit_the_model_is_said() {
    let dir = folder();
    let output = dir.path().join("logits.safetensors");
    let decoder = fixture("gpt2");
    let arguments = ["logits", path(&decoder), "--ids", "5", "--output", path(&output)];
    let message = failed(&outsize(&[&arguments[..], &["--decoder-ids", "0"]].concat()), 2);
    assert!(message.contains("--decoder-ids: this model has no encoder"), "{message}");

    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("t5").join(file), model.join(file)).unwrap();
    }
    for (start, status) in [(0, 0), (3, 1)] {
        let text = json!({ "decoder_start_token_id": start, "eos_token_id": 1 }).to_string();
        std::fs::write(model.join("generation_config.json"), text).unwrap();
        let ran = outsize(&["run", path(&model), "--ids", "5,6", "--max-new-tokens", "2"]);
        assert_eq!(ran.status.code(), Some(status));
        if status == 1 {
            let message = failed(&ran, 1);
            assert!(message.contains("decoder_start_token_id is 3, but 0"), "{message}");
        }
    }
}

#[test]
fn a_plan_has_the_prompt_beside_the_answer() {
    let plan = |more: &[&str]| {
        let arguments = ["plan", "t0pp", "--json", "--max-memory", "cpu=14GB"];
        report(&outsize(&[&arguments[..], more].concat()))
    };
    let kv = |plan: &Value| -> u64 {
        plan["blocks"].as_array().unwrap().iter().map(|b| b["kv_bytes"].as_u64().unwrap()).sum()
    };
    // A prompt may be longer than the context, which is the answer's.
    let (short, long) = (
        plan(&["--context", "100", "--prompt-tokens", "1"]),
        plan(&["--context", "100", "--prompt-tokens", "401"]),
    );
    let position = 24 * 2 * 64 * 64 * 4;
    assert_eq!((kv(&short), kv(&long)), (101 * position, 501 * position));
    assert_eq!(long["workload"]["prompt"], 401);
    // All that a token needs is in memory, and the encoder is not.
    let plan = plan(&[]);
    assert_eq!(plan["prediction"]["decode"]["disk_bytes"], 0);
    assert!(plan["prediction"]["prefill"]["disk_bytes"].as_u64().unwrap() > 8_000_000_000);
}
