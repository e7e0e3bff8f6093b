//! A checkpoint whose small files are damaged or hostile: one line that names the file, and nothing
//! else.

use crate::common::{done, folder, outsize, path, text, tiny};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

fn run(model: &Path, more: &[&str]) -> Output {
    let mut args = vec!["run", path(model), "--prompt", "the cat", "--json"];
    args.extend(["--max-new-tokens", "2"]);
    args.extend(more);
    outsize(&args)
}

/// The one line on standard error of a run that failed.
#[track_caller]
fn refusal(output: &Output) -> String {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(output.stdout.is_empty());
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("error: "), "{message}");
    assert!(!message.contains("panicked"), "{message}");
    // A hostile value is not repeated at length.
    assert!(message.len() < 600, "{message}");
    message
}

fn read(model: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(model.join(name)).unwrap()).unwrap()
}

#[test]
fn files_that_are_no_json_are_named() {
    let dir = folder();
    let model = tiny(&dir);
    fs::write(model.join("generation_config.json"), "{\"top_k\": 5}").unwrap();
    done(&run(&model, &[]));
    for name in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    {
        let file = model.join(name);
        let whole = fs::read(&file).unwrap();
        let mut invalid = whole.clone();
        invalid.insert(whole.len() / 2, 0xFF);
        for bytes in [
            &b""[..],
            b"hello",
            b"[]",
            b"3",
            b"null",
            b"\"text\"",
            &whole[..whole.len() / 2],
            &whole[..whole.len() - 2],
            &invalid,
            &[&whole[..], b"}"].concat(),
            &[0; 4096],
            "[".repeat(100_000).as_bytes(),
            "{\"a\":".repeat(100_000).as_bytes(),
        ] {
            fs::write(&file, bytes).unwrap();
            let message = refusal(&run(&model, &[]));
            assert!(message.contains(&*file.to_string_lossy()), "{message}");
        }
        // A terabyte, of which nothing is read; a folder.
        File::create(&file).unwrap().set_len(1 << 40).unwrap();
        let began = Instant::now();
        let message = refusal(&run(&model, &[]));
        assert!(message.contains(name) && message.contains("larger than"), "{message}");
        assert!(began.elapsed() < Duration::from_secs(5));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        let message = refusal(&run(&model, &[]));
        assert!(message.contains(name), "{message}");
        fs::remove_dir(&file).unwrap();
        #[cfg(unix)]
        {
            // A pipe that nobody writes to, and a link to nothing.
            let made = std::process::Command::new("mkfifo").arg(&file).status();
            assert!(made.unwrap().success());
            let message = refusal(&run(&model, &[]));
            assert!(message.contains(name) && message.contains("regular file"), "{message}");
            fs::remove_file(&file).unwrap();
        }
        let missing = run(&model, &[]);
        match name {
            "config.json" | "tokenizer.json" => {
                let message = refusal(&missing);
                assert!(message.contains(name), "{message}");
            }
            _ => {
                done(&missing);
            }
        }
        fs::write(&file, whole).unwrap();
    }
    done(&run(&model, &[]));
}

#[test]
fn configurations_that_make_no_sense_are_named_by_field() {
    let dir = folder();
    let model = tiny(&dir);
    let config = read(&model, "config.json");
    for (field, value) in [
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!("4")),
        ("num_attention_heads", json!(5)),
        ("num_attention_heads", json!(-4)),
        ("num_attention_heads", json!(4.5)),
        ("num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(0)),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(null)),
        ("hidden_size", json!(63)),
        ("hidden_size", json!(1e300)),
        ("hidden_size", json!(u64::MAX)),
        ("num_hidden_layers", json!(0)),
        ("num_hidden_layers", json!([2])),
        ("num_hidden_layers", json!(u64::MAX)),
        ("vocab_size", json!(0)),
        ("vocab_size", json!(u64::MAX)),
        ("vocab_size", json!("a".repeat(100_000))),
        ("intermediate_size", json!({})),
        ("max_position_embeddings", json!(0)),
        ("rms_norm_eps", json!("small")),
        ("rms_norm_eps", json!(-1.0)),
        ("tie_word_embeddings", json!(1)),
        ("model_type", json!("rwkv")),
        ("model_type", json!(7)),
        ("eos_token_id", json!("</s>")),
    ] {
        let mut broken = config.clone();
        broken[field] = value.clone();
        fs::write(model.join("config.json"), broken.to_string()).unwrap();
        let message = refusal(&run(&model, &[]));
        assert!(message.contains("config.json"), "{field} {value}: {message}");
        assert_eq!(message.matches("config.json").count(), 1, "{message}");
        let named = match field {
            "model_type" if value == json!("rwkv") => "rwkv",
            field => field,
        };
        assert!(message.contains(named), "{field} {value}: {message}");
    }
    // Fields that are there, and a checkpoint that is not of that shape.
    let mut other = config.clone();
    other["intermediate_size"] = json!(128);
    fs::write(model.join("config.json"), other.to_string()).unwrap();
    let output = run(&model, &[]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.starts_with("error: ") && message.contains("mlp"), "{message}");
    fs::write(model.join("config.json"), config.to_string()).unwrap();

    let file = model.join("generation_config.json");
    for (field, value) in [
        ("temperature", "\"hot\""),
        ("temperature", "-1"),
        ("temperature", "NaN"),
        ("temperature", "1e999"),
        ("top_p", "Infinity"),
        ("top_p", "-Infinity"),
        ("top_p", "2"),
        ("top_k", "-3"),
        ("top_k", "1e30"),
        ("min_p", "[0.1]"),
        ("repetition_penalty", "0"),
        ("max_new_tokens", "-1"),
        ("max_length", "\"long\""),
        ("stop_strings", "[[]]"),
        ("stop_strings", "[\"\"]"),
        ("eos_token_id", "[[[[[2]]]]]"),
        ("do_sample", "\"yes\""),
        ("num_beams", "4"),
    ] {
        fs::write(&file, format!("{{\"bos_token_id\": 1,\n  \"{field}\": {value}}}")).unwrap();
        let message = refusal(&run(&model, &[]));
        assert!(
            message.contains("generation_config.json") && message.contains(field),
            "{field} {value}: {message}"
        );
        done(&run(&model, &["--generation-config", "none"]));
    }
    fs::remove_file(&file).unwrap();

    for (field, value) in [
        ("add_bos_token", json!("yes")),
        ("add_eos_token", json!([true])),
        ("bos_token", json!({"content": 3})),
        ("bos_token", json!("<unheard>")),
    ] {
        let mut broken = read(&model, "tokenizer_config.json");
        if field == "bos_token" {
            broken["add_bos_token"] = json!(true);
        }
        broken[field] = value.clone();
        let whole = fs::read(model.join("tokenizer_config.json")).unwrap();
        fs::write(model.join("tokenizer_config.json"), broken.to_string()).unwrap();
        let message = refusal(&run(&model, &[]));
        assert!(
            message.contains("tokenizer_config.json") && message.contains(field),
            "{field} {value}: {message}"
        );
        fs::write(model.join("tokenizer_config.json"), whole).unwrap();
    }
}

/// The tokenizers library panics on several of these, each with a message of its own.
#[test]
fn tokenizers_that_make_no_sense_are_named() {
    let dir = folder();
    let model = tiny(&dir);
    let whole = read(&model, "tokenizer.json");
    let nested = |kind: &str, key: &str, leaf: Value| {
        (0..60).fold(leaf, |inner, _| json!({"type": kind, key: [inner]}))
    };
    let byte_level = || json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    let at_opening = [
        ("model", json!(3)),
        ("model", json!({"type": "BPE", "vocab": {}, "merges": [["a", "b"]]})),
        ("model", json!({"type": "BPE", "vocab": {"a": -1}, "merges": []})),
        ("model", json!({"type": "BPE", "vocab": {"a": 5_000_000_000u64}, "merges": []})),
        ("model", json!({"type": "Unigram", "unk_id": 7, "vocab": []})),
        ("model", json!({"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]})),
        ("model", json!({"type": "Mystery", "vocab": {}})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "/////wAA"})),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "****"})),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "(("}, "content": ""})),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "[z-a]"}, "behavior": "Isolated", "invert": false}),
        ),
        ("pre_tokenizer", json!("ByteLevel")),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}],
            "pair": [], "special_tokens": {}}),
        ),
        ("decoder", json!({"type": "Strip", "content": "ab", "start": 0, "stop": 0})),
        ("added_tokens", json!({"id": 1})),
        ("added_tokens", json!([{"id": 1}])),
        ("truncation", json!(true)),
        // Four times as long with every step.
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers":
            vec![json!({"type": "Replace", "pattern": {"String": "t"}, "content": "tttt"}); 40]}),
        ),
    ];
    for (part, value) in at_opening {
        let mut broken = whole.clone();
        broken[part] = value.clone();
        fs::write(model.join("tokenizer.json"), broken.to_string()).unwrap();
        let message = refusal(&run(&model, &[]));
        assert!(message.contains("tokenizer.json"), "{part} {value}: {message}");
    }
    // Valid, and deep.
    for (part, value) in [
        ("normalizer", nested("Sequence", "normalizers", json!({"type": "NFC"}))),
        ("pre_tokenizer", nested("Sequence", "pretokenizers", byte_level())),
        ("decoder", nested("Sequence", "decoders", byte_level())),
        ("post_processor", nested("Sequence", "processors", byte_level())),
    ] {
        let mut deep = whole.clone();
        deep[part] = value;
        fs::write(model.join("tokenizer.json"), deep.to_string()).unwrap();
        let began = Instant::now();
        let output = run(&model, &[]);
        assert!(began.elapsed() < Duration::from_secs(10), "{part}");
        if !output.status.success() {
            let message = refusal(&output);
            assert!(message.contains("tokenizer.json"), "{part}: {message}");
        }
    }
    // What shows only in use: a decoder that strips more than there is, and a vocabulary without a
    // token for the prompt.
    let mut broken = whole.clone();
    broken["decoder"] = json!({"type": "Sequence", "decoders": [byte_level(),
        {"type": "Strip", "content": "b", "start": 9, "stop": 9}]});
    fs::write(model.join("tokenizer.json"), broken.to_string()).unwrap();
    let output = run(&model, &[]);
    assert!(!text(&output.stderr).contains("panicked"), "{}", text(&output.stderr));
    let mut broken = whole.clone();
    broken["model"] = json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"a": 0}});
    fs::write(model.join("tokenizer.json"), broken.to_string()).unwrap();
    let message = refusal(&run(&model, &[]));
    assert!(message.contains("encode"), "{message}");
}

#[test]
fn ids_need_no_tokenizer() {
    let dir = folder();
    let model = tiny(&dir);
    for broken in ["", "{", "{\"model\": 3}"] {
        fs::write(model.join("tokenizer.json"), broken).unwrap();
        let output =
            outsize(&["run", path(&model), "--ids", "5,6", "--max-new-tokens", "3", "--json"]);
        let report: Value = serde_json::from_str(&done(&output)).unwrap();
        let numbers: Vec<String> =
            report["tokens"].as_array().unwrap().iter().map(Value::to_string).collect();
        assert_eq!(report["text"], numbers.join(","));
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    }
}
