//! `outsize serve` with a model of embeddings.

use crate::common::serving::Server;
use serde_json::{Value, json};
use std::path::Path;
use std::thread;

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../generate/tests/fixtures/embeddings/qwen3-last");

const AT: &str = "/v1/embeddings";

#[test]
fn vectors_are_those_of_the_reference() {
    let model = Path::new(MODEL);
    let expected = std::fs::read_to_string(model.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let server = Server::start(model, &["--batch", "3", "--name", "it"]);
    let values = |value: &Value| -> Vec<f32> { serde_json::from_value(value.clone()).unwrap() };
    let near = |found: &[f32], expected: &Value| {
        let pairs = found.iter().zip(values(expected));
        assert!(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) < 1e-5);
    };
    for (prompt, vectors) in expected["vectors"].as_object().unwrap() {
        let mut request = json!({"model": "it", "input": expected["texts"], "user": "me"});
        if !prompt.is_empty() {
            request["prompt_name"] = json!(prompt);
        }
        let (status, answer) = server.post(AT, &request);
        assert_eq!(status, 200, "{answer}");
        assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("it")));
        let data = answer["data"].as_array().unwrap();
        assert_eq!(data.len(), vectors.as_array().unwrap().len());
        for (index, found) in data.iter().enumerate() {
            assert_eq!((&found["index"], &found["object"]), (&json!(index), &json!("embedding")));
            near(&values(&found["embedding"]), &vectors[index]);
        }
        let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        assert_eq!(answer["usage"]["total_tokens"], tokens);
        assert!(tokens > 100);
    }
    // One text, in bytes and in fewer dimensions.
    let request = json!({"input": "gravity", "encoding_format": "base64", "dimensions": 8});
    let (_, answer) = server.post(AT, &request);
    use base64::Engine;
    let text = answer["data"][0]["embedding"].as_str().unwrap();
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
    let found: Vec<f32> =
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let whole = values(&expected["vectors"][""][1]);
    let length = whole[..8].iter().map(|value| value * value).sum::<f32>().sqrt();
    near(&found, &json!(whole[..8].iter().map(|value| value / length).collect::<Vec<_>>()));
    // Tokens instead of text: those that the text has, a byte each, and the last one.
    let (status, answer) = server.post(AT, &json!({"input": [5, 6, 256]}));
    assert_eq!((status, &answer["usage"]["prompt_tokens"]), (200, &json!(3)));
    // Several clients at once.
    thread::scope(|scope| {
        for index in 0..6 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                let text = &expected["texts"][index % 5];
                let (_, answer) = server.post(AT, &json!({"input": text}));
                near(&values(&answer["data"][0]["embedding"]), &expected["vectors"][""][index % 5]);
            });
        }
    });
    let said = server.end();
    assert!(said.contains("5 texts of"), "{said}");
}

#[test]
fn what_is_wrong_is_said() {
    let server = Server::start(Path::new(MODEL), &["--api-key", "secret"]);
    let post = |at: &str, request: Value| {
        let (status, text) = server.text(at, &request, "secret");
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    assert_eq!(server.post(AT, &json!({"input": "a"})).0, 401);
    for (request, field) in [
        (json!({"input": []}), "input"),
        (json!({"input": {"a": 1}}), "input"),
        (json!({"input": [999_999]}), "input"),
        (json!({"input": vec!["a"; 2049]}), "input"),
        (json!({"input": "a", "dimensions": 33}), "dimensions"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "prompt_name": "passage"}), "prompt_name"),
        (json!({"input": "a", "model": "other"}), "model"),
    ] {
        let (status, answer) = post(AT, request.clone());
        assert!(matches!(status, 400 | 404), "{request}: {status}");
        assert_eq!(answer["error"]["param"], field, "{answer}");
    }
    assert_eq!(post(AT, json!({"input": "a", "encoding_format": "hex"})).0, 400);
    assert_eq!(post(AT, json!({})).0, 400);
    let (status, answer) = post("/v1/completions", json!({"prompt": "a"}));
    assert_eq!(status, 404);
    assert!(answer["error"]["message"].as_str().unwrap().contains("/v1/embeddings"), "{answer}");
    assert_eq!(post(AT, json!({"input": "a"})).0, 200);
    let said = server.end();
    assert!(said.contains("error: there is no prompt \"passage\""), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}
