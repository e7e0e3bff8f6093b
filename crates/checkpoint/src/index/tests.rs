use proptest::prelude::*;

use super::*;

fn fault(json: &str) -> String {
    Index::parse(json.as_bytes()).unwrap_err().to_string()
}

#[test]
fn the_text_is_that_of_transformers() {
    let map = [
        ("z", "model-00002-of-00002.safetensors"),
        ("a.é\u{7f}🦀\n", "model-00001-of-00002.safetensors"),
    ];
    let text = encode(12, Some(6), map.into_iter());
    // Printed by Python: json.dumps(index, indent=2, sort_keys=True) + "\n".
    let expected = r#"{
  "metadata": {
    "total_parameters": 6,
    "total_size": 12
  },
  "weight_map": {
    "a.\u00e9\u007f\ud83e\udd80\n": "model-00001-of-00002.safetensors",
    "z": "model-00002-of-00002.safetensors"
  }
}
"#;
    assert_eq!(text, expected);
    let map = [("z", "2"), ("a.é\u{200b}🦀\"", "1")];
    let text = encode(12, None, map.into_iter());
    assert!(text.is_ascii());
    let back = Index::parse(text.as_bytes()).unwrap();
    let tensors: Vec<_> = back.tensors().collect();
    assert_eq!(tensors, [map[1], map[0]]);
    assert_eq!(back.shards(), ["1", "2"]);
    assert!(!encode(12, None, map.into_iter()).contains("total_parameters"));
}

#[test]
fn shards_stay_inside_the_folder() {
    for file in [
        "",
        "/etc/passwd",
        "..",
        "../x",
        "a/../../x",
        ".",
        "a\\..\\x",
        "C:x",
        "\\\\host\\x",
        "a//b",
        "a/./b",
        "./a",
        "a/",
    ] {
        let json = serde_json::json!({"weight_map": {"w": file}}).to_string();
        let message = fault(&json);
        assert!(message.contains("tensor \"w\" is said to be in"), "{file:?}: {message}");
        assert!(
            message.contains("not the name of a file inside the folder"),
            "{file:?}: {message}"
        );
    }
    for file in ["a.safetensors", "sub/a.safetensors", "..a", "a b"] {
        let json = serde_json::json!({"weight_map": {"w": file}}).to_string();
        assert_eq!(Index::parse(json.as_bytes()).unwrap().shards(), [file]);
    }
}

#[test]
fn each_fault_is_named() {
    assert!(fault(r#"{"weight_map":{"a":"x","a":"y"}}"#).contains(r#""a" is defined twice"#));
    assert!(fault(r#"{"weight_map":{},"weight_map":{}}"#).contains("duplicate field `weight_map`"));
    assert!(fault(r#"{"weight_map":{"a":3}}"#).contains(r#""a": invalid type: integer `3`"#));
    assert!(fault("{}").contains("missing field `weight_map`"));
    assert!(fault("[]").contains("the index is not valid"));
    assert!(fault("").contains("the index is not valid"));
    assert_eq!(fault(r#"{"weight_map":{}}"#), "the index names no tensors");
    assert!(fault("version https://git-lfs.github.com/spec/v1\n").contains("git lfs pull"));
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused(json in "\\PC*") {
        let _ = Index::parse(json.as_bytes());
    }

    #[test]
    fn accepted_paths_never_leave(file in "[./a\\\\:]{0,8}") {
        let json = serde_json::json!({"weight_map": {"w": file}}).to_string();
        if Index::parse(json.as_bytes()).is_ok() {
            let joined = Path::new("/folder").join(&file);
            prop_assert!(joined.starts_with("/folder"));
            prop_assert!(!file.split('/').any(|part| part == ".."));
        }
    }
}
