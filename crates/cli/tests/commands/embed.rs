//! `outsize embed`: vectors as sentence-transformers makes them, shown, or written to a file that
//! goes on after a kill.

use crate::common::{done, failed, folder, message, model, outsize, path, report};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../generate/tests/fixtures/embeddings/qwen3-last");

/// What is expected of its texts: without a prompt, and as queries.
fn expected() -> (Vec<String>, BTreeMap<String, Vec<Vec<f32>>>) {
    let text = std::fs::read_to_string(Path::new(MODEL).join("expected.json")).unwrap();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    let part = |value: &mut Value, key: &str| value[key].take();
    let (texts, vectors) = (part(&mut value, "texts"), part(&mut value, "vectors"));
    (serde_json::from_value(texts).unwrap(), serde_json::from_value(vectors).unwrap())
}

fn assert_near(found: &Value, expected: &[f32]) {
    let found: Vec<f32> = serde_json::from_value(found.clone()).unwrap();
    assert_eq!(found.len(), expected.len());
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-5, "{off}");
}

#[test]
fn texts_of_the_command_line_are_compared() {
    let (texts, vectors) = expected();
    let given: Vec<&str> = texts.iter().flat_map(|text| ["--text", text]).collect();
    let found = report(&outsize(&[&["embed", MODEL, "--json"], &given[..]].concat()));
    assert_eq!((&found["texts"], &found["dimensions"]), (&json!(texts.len()), &json!(32)));
    for (index, expected) in vectors[""].iter().enumerate() {
        assert_near(&found["embeddings"][index], expected);
    }
    let shown = done(&outsize(&[&["embed", MODEL], &given[..]].concat()));
    assert_eq!(shown.lines().count(), texts.len() + 1, "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(shown.contains("1.00") && shown.contains("gravity"), "{shown}");
    let one = done(&outsize(&["embed", MODEL, "--text", "gravity", "--dimensions", "4"]));
    assert_eq!(one.split(", ").count(), 4, "{one}");

    // With a query the texts are sorted: of equal ones nothing is nearer than itself.
    let query = ["--query", "gravity"];
    let found = report(&outsize(&[&["embed", MODEL, "--json"][..], &query, &given[..]].concat()));
    assert_near(&found["query"], &vectors["query"][1]);
    assert_near(&found["embeddings"][0], &vectors[""][0]);
    let shown = done(&outsize(&[&["embed", MODEL][..], &query, &given[..]].concat()));
    let similarity =
        |line: &str| -> f64 { line.split_whitespace().find_map(|word| word.parse().ok()).unwrap() };
    let similarities: Vec<f64> = shown.lines().map(similarity).collect();
    assert!(similarities.is_sorted_by(|one, other| one >= other), "{shown}");
}

#[test]
fn vectors_of_a_file_are_written_once_each() {
    let dir = folder();
    let [texts, output] = ["texts.jsonl", "vectors.jsonl"].map(|name| dir.path().join(name));
    let (given, vectors) = expected();
    let mut lines: Vec<String> =
        given.iter().map(|text| json!({"text": text, "id": text.len()}).to_string()).collect();
    std::fs::write(&texts, lines[..3].join("\n")).unwrap();
    let command = |more: &[&str]| {
        let files = ["embed", MODEL, "--texts", path(&texts), "--output", path(&output)];
        outsize(&[&files[..], more].concat())
    };
    let summary = report(&command(&["--json", "--batch", "2"]));
    assert_eq!((&summary["texts"], summary.get("embeddings")), (&json!(3), None));
    // As if it had been killed in the middle of a line.
    let whole = std::fs::read_to_string(&output).unwrap();
    std::fs::write(&output, format!("{whole}{{\"index\":3,\"embed")).unwrap();
    lines.push(json!({"ids": [1, 2]}).to_string());
    std::fs::write(&texts, lines.join("\n")).unwrap();
    let said = message(&command(&[]));
    assert!(said.contains("3 texts in 32 dimensions"), "{said}");
    let written = std::fs::read_to_string(&output).unwrap();
    assert!(written.starts_with(&whole));
    let mut found: Vec<Value> =
        written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    found.sort_by_key(|line| line["index"].as_u64());
    assert_eq!(found.len(), 6);
    for ((line, text), expected) in found.iter().zip(&given).zip(&vectors[""]) {
        assert_eq!(line["id"], text.len());
        assert_near(&line["embedding"], expected);
    }
    assert_eq!(found[5]["tokens"], 2);
    let said = message(&command(&[]));
    assert!(said.contains("has the vectors of all 6 texts"), "{said}");

    std::fs::write(&texts, "{\"text\": \"a\"}\n{\"ids\": [700]}\n").unwrap();
    std::fs::remove_file(&output).unwrap();
    let said = failed(&command(&[]), 1);
    assert!(said.contains("texts.jsonl, text 1") && said.contains("700"), "{said}");
    assert!(!output.exists());
    let same = ["embed", MODEL, "--texts", path(&texts), "--output", path(&texts)];
    assert!(failed(&outsize(&same), 2).contains("it is the file of the texts"));
}

#[test]
fn a_model_with_a_head_is_embedded_within_the_budget() {
    let dir = folder();
    let model = model(&dir);
    let texts = ["Once upon a time", "there was a model", "bigger than memory, by far"];
    let given: Vec<&str> = texts.iter().flat_map(|text| ["--text", text]).collect();
    let vectors = |more: &[&str]| {
        report(&outsize(&[&["embed", path(&model), "--json"], &given[..], more].concat()))
    };
    let resident = vectors(&[]);
    // Weights without the head, in bf16.
    let all = 3000 * 768 + 4 * (768 * 768 * 2 + 768 * 256 * 2 + 3 * 768 * 2048);
    let bytes = resident["placement"]["resident_bytes"].as_u64().unwrap();
    assert!((2 * all..2 * all + 100_000).contains(&bytes), "{bytes} of {}", 2 * all);
    let refused = [&["embed", path(&model), "--max-memory", "cpu=1MB"], &given[..]].concat();
    let refused = failed(&outsize(&refused), 1);
    let (_, least) = refused.split_once("at least cpu=").expect(&refused);
    let least: u64 = least.split(' ').next().unwrap().parse().unwrap();
    for (budget, batch) in [(least, "8"), (least + 15_000_000, "1")] {
        let most = format!("cpu={budget}");
        let found = vectors(&["--max-memory", &most, "--batch", batch]);
        assert_eq!(found["embeddings"], resident["embeddings"]);
        let peak = found["peak_rss_bytes"].as_u64().unwrap();
        assert!(peak <= budget, "{peak} of {budget}");
        assert!(found["bytes_read"].as_u64().unwrap() > 0);
    }
}

#[test]
fn what_is_wrong_is_said() {
    let run = |more: &[&str], status| failed(&outsize(&[&["embed", MODEL], more].concat()), status);
    assert!(run(&[], 2).contains("--text"));
    assert!(run(&["--texts", "x"], 2).contains("--output"));
    let said = run(&["--text", "a", "--prompt-name", "passage"], 1);
    assert!(said.contains("document, query") && said.contains("(--prompt-name)"), "{said}");
    let said = run(&["--text", "a", "--dimensions", "40"], 1);
    assert!(said.contains("expected 1 to 32"), "{said}");
    let said = run(&["--text", "a", "--context", "1"], 1);
    assert!(said.contains("special ones around it") && said.contains("(--context)"), "{said}");
    assert!(run(&["--text", "a", "--context", "9000"], 2).contains("9000"));
    let t5 = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/fixtures/t5");
    let said = failed(&outsize(&["embed", t5, "--text", "a"]), 1);
    assert!(said.contains("an encoder reads"), "{said}");
    // A model without a head does not generate, and is planned without one.
    for model in [MODEL, &MODEL.replace("qwen3-last", "mistral-mean")] {
        let said = failed(&outsize(&["run", model, "--prompt", "a"]), 1);
        assert!(said.contains("outsize embed"), "{said}");
        let said = done(&outsize(&["plan", model, "--max-memory", "cpu=100MB"]));
        assert!(said.contains("note: it has no head"), "{said}");
    }
}
