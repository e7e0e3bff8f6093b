//! Prompts become the ids of transformers' CLIPTokenizer; scripts/fixtures/clip_tokenizer.py
//! recorded them.

use std::fs;
use std::path::Path;

use crate::common::fixture;
use outsize_diffuse::PromptTokenizer;
use serde_json::Value;
use tempfile::TempDir;

fn copied(files: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        fs::copy(fixture("tokenizer").join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn message(folder: &Path) -> String {
    PromptTokenizer::open(folder).unwrap_err().to_string()
}

#[test]
fn prompts_become_the_ids_of_transformers() {
    let expected = fs::read(fixture("tokenizer/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    for (name, variant) in expected["variants"].as_object().unwrap() {
        let folder = match name.as_str() {
            "saved" => copied(&["tokenizer.json"]),
            _ => copied(&["vocab.json", "merges.txt"]),
        };
        for (file, text) in variant["files"].as_object().unwrap() {
            fs::write(folder.path().join(file), text.as_str().unwrap()).unwrap();
        }
        let tokenizer = PromptTokenizer::open(folder.path()).unwrap();
        assert_eq!(tokenizer.length(), 77);
        for (index, prompt) in expected["prompts"].as_array().unwrap().iter().enumerate() {
            let prompt = prompt.as_str().unwrap();
            let encoded = tokenizer.encode(prompt).unwrap();
            let ids: Vec<u64> = variant["ids"][index]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap())
                .collect();
            let found: Vec<u64> = encoded.ids.iter().map(|id| u64::from(*id)).collect();
            assert_eq!(found, ids, "{name}: {prompt:?}");
            let cut = variant["cut"][index].as_str().map(|cut| cut.trim().to_owned());
            assert_eq!(encoded.cut, cut, "{name}: {prompt:?}");
        }
    }
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let folder = copied(&["vocab.json"]);
    assert!(message(folder.path()).contains("merges.txt"));
    let folder = copied(&["vocab.json", "merges.txt"]);
    let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
    write("tokenizer_config.json", r#"{"pad_token": "<pad>"}"#);
    let error = message(folder.path());
    assert!(error.contains("tokenizer_config.json") && error.contains("\"<pad>\""), "{error}");
    write("tokenizer_config.json", r#"{"pad_token": 3}"#);
    assert!(message(folder.path()).contains("`pad_token` is 3"));
    write("tokenizer_config.json", "{}");
    write("merges.txt", "#version: 0.2\na b\na b c\n");
    assert!(message(folder.path()).contains("line 3 is not two tokens"));
    write("merges.txt", "a \u{1}\n");
    assert!(message(folder.path()).contains("vocab.json"));
    for text in ["", "[", "{\"a\": -1}", "{\"a\": 1, \"b\"", "[1]"] {
        write("vocab.json", text);
        assert!(message(folder.path()).contains("vocab.json"), "{text}");
    }
}
