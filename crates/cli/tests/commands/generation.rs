//! What decides the text: flags, the checkpoint's files, the seed; and nothing else.

use crate::common::{done, failed, folder, model, outsize, path, report, text, tiny, tiny_of};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `outsize run MODEL --ids 5,6,7,8 --json` and more.
fn run(model: &Path, more: &[&str]) -> Output {
    let mut args = vec!["run", path(model), "--ids", "5,6,7,8", "--json"];
    args.extend(more);
    outsize(&args)
}

fn prompted(model: &Path, prompt: &str, more: &[&str]) -> Output {
    let mut args = vec!["run", path(model), "--prompt", prompt, "--json"];
    args.extend(more);
    outsize(&args)
}

fn tokens(report: &Value) -> Vec<u64> {
    let tokens = report["tokens"].as_array().unwrap();
    tokens.iter().map(|token| token.as_u64().unwrap()).collect()
}

fn write(model: &Path, name: &str, value: &Value) {
    std::fs::write(model.join(name), value.to_string()).unwrap();
}

#[test]
fn threads_and_budgets_change_nothing() {
    let dir = folder();
    let model = model(&dir);
    let asked = |threads: &str, budget: Option<&str>| {
        let command = |args: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_outsize"));
            command.args(args).env("RAYON_NUM_THREADS", threads);
            if let Some(budget) = budget {
                command.args(["--max-memory", budget]);
            }
            command.stdin(Stdio::null()).output().unwrap()
        };
        let run = command(&[
            "run",
            path(&model),
            "--prompt",
            "Hello, wörld",
            "--json",
            "--temperature",
            "1.2",
            "--top-p",
            "0.95",
            "--repetition-penalty",
            "1.1",
            "--seed",
            "11",
            "--max-new-tokens",
            "12",
            "--eos",
            "none",
        ]);
        let run = report(&run);
        let out = dir.path().join("logits.safetensors");
        done(&command(&[
            "logits",
            path(&model),
            "--ids",
            "1,2,3,4,5,6,7",
            "--force",
            "--output",
            path(&out),
        ]));
        let streamed = run["placement"]["streamed_bytes"].as_u64().unwrap();
        assert_eq!(streamed > 0, budget.is_some());
        (run["text"].clone(), tokens(&run), std::fs::read(out).unwrap())
    };
    let expected = asked("2", None);
    for (threads, budget) in [
        ("1", None),
        ("3", None),
        ("8", None),
        ("1", Some("cpu=75MB")),
        ("3", Some("cpu=85MB")),
        ("8", Some("cpu=75MB")),
    ] {
        let found = asked(threads, budget);
        assert_eq!((&found.0, &found.1), (&expected.0, &expected.1), "{threads} {budget:?}");
        assert!(found.2 == expected.2, "logits differ: {threads} {budget:?}");
    }
}

#[test]
fn a_stop_string_ends_the_text_and_is_not_printed() {
    let dir = folder();
    let model = tiny(&dir);
    let whole = report(&run(&model, &["--max-new-tokens", "20"]));
    let whole_text = whole["text"].as_str().unwrap();
    // From the middle of one token to the middle of a later one.
    let middle: String = whole_text.chars().skip(9).take(7).collect();
    let cut = &whole_text[..whole_text.find(&middle).unwrap()];
    let more = ["--max-new-tokens", "20", "--stop", "never", "--stop", &middle];
    let stopped = report(&run(&model, &more));
    assert_eq!(stopped["text"], cut);
    assert_eq!(stopped["finish"], "stop_string");
    assert_eq!(stopped["stop_string"], Value::from(middle.clone()));
    assert!(tokens(&whole).starts_with(&tokens(&stopped)));
    assert!(tokens(&stopped).len() < 20);
    let printed = outsize(&[
        "run",
        path(&model),
        "--ids",
        "5,6,7,8",
        "--max-new-tokens",
        "20",
        "--stop",
        &middle,
    ]);
    assert_eq!(done(&printed), format!("{cut}\n"));
    // The checkpoint's own, unless there are flags.
    write(&model, "generation_config.json", &json!({"stop_strings": middle}));
    assert_eq!(report(&run(&model, &["--max-new-tokens", "20"]))["text"], cut);
    let flag = report(&run(&model, &["--max-new-tokens", "20", "--stop", "never"]));
    assert_eq!((&flag["text"], &flag["finish"]), (&whole["text"], &json!("length")));
    assert_eq!(flag["stop_string"], Value::Null);
    // Text is needed to find text.
    std::fs::remove_file(model.join("tokenizer.json")).unwrap();
    assert!(failed(&run(&model, &[]), 1).contains("no tokenizer.json"));
    report(&run(&model, &["--generation-config", "none"]));
    let message = failed(&run(&model, &["--generation-config", "none", "--stop", ""]), 1);
    assert!(message.contains("--stop"), "{message}");
}

#[test]
fn the_tokens_that_end_a_text_come_from_flags_first() {
    let dir = folder();
    let model = tiny(&dir);
    let whole = report(&run(&model, &["--max-new-tokens", "12"]));
    let all = tokens(&whole);
    let eos = all[4];
    let first = all.iter().position(|token| *token == eos).unwrap();
    let ended = |more: &[&str]| {
        let mut args = vec!["--max-new-tokens", "12"];
        args.extend(more);
        let report = report(&run(&model, &args));
        let ended = report["finish"] == "eos";
        assert_eq!(tokens(&report), if ended { &all[..=first] } else { &all[..] });
        ended
    };
    let id = eos.to_string();
    assert!(ended(&["--eos", &id]));
    assert!(ended(&["--eos", &format!("0, {id}")]));
    let tokenizer: Value =
        serde_json::from_slice(&std::fs::read(model.join("tokenizer.json")).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let (spelled, _) = vocab.iter().find(|(_, id)| id.as_u64() == Some(eos)).unwrap();
    assert!(ended(&["--eos", &format!("</s>,{spelled}")]));
    assert!(!ended(&["--eos", "none"]));

    let mut config: Value =
        serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap();
    config["eos_token_id"] = json!(eos);
    write(&model, "config.json", &config);
    assert!(ended(&[]));
    assert!(!ended(&["--ignore-eos"]));
    assert!(!ended(&["--eos", "none"]));
    assert!(!ended(&["--eos", "0"]));
    // generation_config.json comes before config.json.
    write(&model, "generation_config.json", &json!({"eos_token_id": [0, 1]}));
    assert!(!ended(&[]));
    assert!(ended(&["--generation-config", "none"]));

    for (given, part) in [("600", "600"), ("2,<eos>", "\"<eos>\""), ("", "\"\""), ("-1", "\"-1\"")]
    {
        let message = failed(&run(&model, &["--eos", given]), 2);
        assert!(message.contains("--eos") && message.contains(part), "{message}");
    }
    assert_eq!(run(&model, &["--eos", "2", "--ignore-eos"]).status.code(), Some(2));
}

#[test]
fn generation_config_is_what_flags_leave_open() {
    let dir = folder();
    let model = tiny(&dir);
    let sampled = [
        "--temperature",
        "0.9",
        "--top-k",
        "40",
        "--top-p",
        "0.95",
        "--min-p",
        "0.01",
        "--repetition-penalty",
        "1.3",
        "--max-new-tokens",
        "14",
        "--seed",
        "4",
    ];
    let expected = tokens(&report(&run(&model, &sampled)));
    let greedy = tokens(&report(&run(&model, &["--max-new-tokens", "14"])));
    assert_ne!(expected, greedy);
    assert_eq!(
        report(&run(&model, &[]))["tokens"].as_array().unwrap().len(),
        60,
        "the context holds 64"
    );

    let file = json!({"do_sample": true, "temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.01,
        "repetition_penalty": 1.3, "max_new_tokens": 14, "bos_token_id": 1, "transformers_version": "5.0.0"});
    write(&model, "generation_config.json", &file);
    assert_eq!(tokens(&report(&run(&model, &["--seed", "4"]))), expected);
    let off = ["--temperature", "0", "--repetition-penalty", "1"];
    assert_eq!(tokens(&report(&run(&model, &off))), greedy);
    assert_eq!(
        tokens(&report(&run(&model, &["--generation-config", "none", "--max-new-tokens", "14"]))),
        greedy
    );
    let cold =
        ["--seed", "4", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--temperature", "3"];
    assert_ne!(tokens(&report(&run(&model, &cold))), expected);
    // Every option by itself does something.
    for (flag, value) in
        [("--top-k", "2"), ("--top-p", "0.1"), ("--min-p", "0.9"), ("--repetition-penalty", "5")]
    {
        let warm = ["--generation-config", "none", "--temperature", "3", "--max-new-tokens", "14"];
        let plain = tokens(&report(&run(&model, &warm)));
        let with = tokens(&report(&run(&model, &[&warm[..], &[flag, value]].concat())));
        assert_ne!(plain, with, "{flag}");
    }

    // Another file; the length counts the prompt of 4 there.
    let other = dir.path().join("other.json");
    std::fs::write(&other, r#"{"max_length": 10}"#).unwrap();
    let short = report(&run(&model, &["--generation-config", path(&other)]));
    assert_eq!((tokens(&short), &short["finish"]), (greedy[..6].to_vec(), &json!("length")));
    std::fs::write(&other, r#"{"max_length": 4}"#).unwrap();
    let message = failed(&run(&model, &["--generation-config", path(&other)]), 1);
    assert!(message.contains("other.json") && message.contains("--max-new-tokens"), "{message}");
    std::fs::write(&other, r#"{"num_beams": 4}"#).unwrap();
    let message = failed(&run(&model, &["--generation-config", path(&other)]), 1);
    for part in ["other.json", "num_beams is 4", "--generation-config none"] {
        assert!(message.contains(part), "{message}");
    }
    let missing = dir.path().join("missing.json");
    let message = failed(&run(&model, &["--generation-config", path(&missing)]), 1);
    assert!(message.contains("missing.json"), "{message}");
}

#[test]
fn the_type_of_the_cache_is_counted_in_the_budget() {
    let dir = folder();
    let model = tiny(&dir);
    let mut caches = Vec::new();
    for kv_dtype in ["f32", "bf16", "f16"] {
        let report = report(&run(&model, &["--kv-dtype", kv_dtype, "--context", "40"]));
        assert_eq!((&report["kv_dtype"], &report["context"]), (&json!(kv_dtype), &json!(40)));
        caches.push(report["placement"]["needs"]["kv_cache"].as_u64().unwrap());
    }
    // Keys and values of 2 layers, 2 heads of 16, 40 tokens.
    assert_eq!(caches, [20_480, 10_240, 10_240]);
    assert_eq!(run(&model, &["--kv-dtype", "int4"]).status.code(), Some(2));
}

#[test]
fn a_full_context_ends_the_text_or_slides() {
    let dir = folder();
    let model = tiny(&dir);
    let full = report(&run(&model, &["--max-new-tokens", "100"]));
    assert_eq!((full["finish"].as_str(), tokens(&full).len()), (Some("context"), 60));
    let message = failed(&run(&model, &["--context", "4"]), 1);
    for part in ["4 tokens", "holds 4", "--context", "--when-full slide"] {
        assert!(message.contains(part), "{message}");
    }
    let slid = report(&run(&model, &["--max-new-tokens", "100", "--when-full", "slide"]));
    assert_eq!((slid["finish"].as_str(), tokens(&slid).len()), (Some("length"), 100));
    assert_eq!(tokens(&slid)[..60], tokens(&full)[..]);
    // A prompt longer than the context, too.
    let slid =
        report(&run(&model, &["--max-new-tokens", "10", "--when-full", "slide", "--context", "3"]));
    assert_eq!(tokens(&slid).len(), 10);
}

#[test]
fn special_tokens_are_as_the_tokenizer_says() {
    let dir = folder();
    let model = tiny(&dir);
    let count = |prompt: &str, more: &[&str]| {
        let mut args = vec!["--max-new-tokens", "1"];
        args.extend(more);
        report(&prompted(&model, prompt, &args))["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(count("abc", &[]), 3);
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(model.join("tokenizer_config.json")).unwrap())
            .unwrap();
    config["add_bos_token"] = json!(true);
    write(&model, "tokenizer_config.json", &config);
    assert_eq!(count("abc", &[]), 4);
    assert_eq!(count("abc", &["--no-special-tokens"]), 3);
    // Spelled out it is one too, and does not replace the other.
    assert_eq!(count("<s>abc", &["--no-special-tokens"]), 4);
    assert_eq!(count("<s>abc", &[]), 5);

    // Added tokens: one that is special, one that is not. The model says them.
    let said = tokens(&report(&run(&model, &["--max-new-tokens", "2"])));
    let tokenizer = model.join("tokenizer.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&tokenizer).unwrap()).unwrap();
    for (id, content, special) in [(said[0], "<think>", true), (said[1], "<tool>", false)] {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        vocab.retain(|_, token| token.as_u64() != Some(id));
        vocab.insert(content.to_owned(), json!(id));
        json["added_tokens"]
            .as_array_mut()
            .unwrap()
            .push(json!({"id": id, "content": content, "special": special,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}));
    }
    write(&model, "tokenizer.json", &json);
    let shown = |more: &[&str]| {
        let mut args = vec!["--max-new-tokens", "2"];
        args.extend(more);
        report(&run(&model, &args))["text"].clone()
    };
    assert_eq!(shown(&[]), "<tool>");
    assert_eq!(shown(&["--show-special-tokens"]), "<think><tool>");
}

#[test]
fn a_tokenizer_of_another_model_is_found_out() {
    let dir = folder();
    let (small, large) = (tiny(&dir), tiny_of(&dir, "large", 3000));
    std::fs::copy(large.join("tokenizer.json"), small.join("tokenizer.json")).unwrap();
    done(&prompted(&small, "abc", &["--max-new-tokens", "1"]));
    // A word that the larger vocabulary alone has.
    let word = report(&run(&large, &["--max-new-tokens", "30"]));
    let id = tokens(&word).into_iter().find(|token| *token >= 600).unwrap();
    let json: Value =
        serde_json::from_slice(&std::fs::read(large.join("tokenizer.json")).unwrap()).unwrap();
    let vocab = json["model"]["vocab"].as_object().unwrap();
    let (token, _) = vocab.iter().find(|(_, value)| value.as_u64() == Some(id)).unwrap();
    let message = failed(&prompted(&small, &token.replace('Ġ', " "), &[]), 1);
    for part in [&id.to_string(), "600", "tokenizer.json", "config.json"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn fields_that_nobody_knows_are_mentioned_in_one_line() {
    let dir = folder();
    let model = tiny(&dir);
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(model.join("config.json")).unwrap()).unwrap();
    config["galaxy_norm"] = json!(true);
    config["use_cache"] = json!(true);
    write(&model, "config.json", &config);
    let output = run(&model, &[]);
    done(&output);
    let note = text(&output.stderr);
    assert_eq!(note.lines().count(), 1, "{note}");
    assert!(note.starts_with("note: config.json") && note.contains("galaxy_norm"), "{note}");
    assert!(!note.contains("use_cache"), "{note}");
}

#[test]
fn help_is_in_sections() {
    let help = done(&outsize(&["run", "--help"]));
    for part in ["Sampling", "Stopping", "--min-p", "--stop <TEXT>", "--kv-dtype"] {
        assert!(help.contains(part), "{part}: {help}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    assert!(text(&outsize(&["run", "--help"]).stderr).is_empty());
    let help = done(&outsize(&["--help"]));
    assert!(help.lines().count() <= 24, "a screen: {help}");
}

#[test]
fn a_budget_above_what_there_is_is_noted() {
    let dir = folder();
    let model = tiny(&dir);
    let run = run(&model, &["--max-new-tokens", "1", "--max-memory", "cpu=100TB"]);
    let plan = outsize(&["plan", path(&model), "--max-memory", "cpu=100TB"]);
    for output in [run, plan] {
        done(&output);
        let message = text(&output.stderr);
        assert!(message.contains("note: --max-memory cpu=100 TB is more than"), "{message}");
    }
    let enough = outsize(&["plan", path(&model), "--max-memory", "cpu=100MB"]);
    assert_eq!(text(&enough.stderr), "");
}

#[test]
fn dynamic_positions_go_on_beyond_the_trained_context() {
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures/dynamic-rope");
    let expected = std::fs::read(fixture.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let ids: Vec<String> =
        expected["ids"].as_array().unwrap().iter().map(ToString::to_string).collect();
    let output = outsize(&[
        "run",
        path(&fixture),
        "--ids",
        &ids.join(","),
        "--max-new-tokens",
        "16",
        "--ignore-eos",
        "--json",
    ]);
    assert_eq!(report(&output)["tokens"], expected["greedy"]);
}

#[test]
fn predictions_are_for_the_answer_that_there_is_room_for() {
    let dir = folder();
    let model = tiny(&dir);
    let predicted = |most: &str| {
        let report = report(&run(&model, &["--max-new-tokens", most, "--ignore-eos"]));
        report["prediction"]["decode"]["seconds"].as_f64().unwrap()
    };
    let room = predicted("60");
    assert_eq!(predicted("1000000"), room);
    assert_eq!(predicted("18446744073709551615"), room);
}

#[test]
fn a_prompt_that_is_too_long_gets_advice_that_helps() {
    let dir = folder();
    let model = tiny(&dir);
    let ids = vec!["5"; 200].join(",");
    let told = |more: &[&str]| {
        let arguments = ["run", path(&model), "--ids", &ids, "--max-new-tokens", "1"];
        text(&outsize(&[&arguments[..], more].concat()).stderr)
    };
    let message = told(&[]);
    assert!(message.contains("64 at most") && !message.contains("raise"), "{message}");
    let message = text(&run(&model, &["--context", "3"]).stderr);
    assert!(message.contains("raise the context above 4"), "{message}");
    assert!(!message.contains("are run"), "{message}");
    // Two layers, each of which sees 7 tokens back.
    let message = told(&["--when-full", "slide", "--context", "8"]);
    assert!(message.contains("200 tokens") && message.contains("the last 15 are run"), "{message}");
}

#[test]
fn a_file_of_weights_is_a_model_too() {
    let dir = folder();
    let model = tiny(&dir);
    let file = model.join("model.safetensors");
    let of = |place: &Path| {
        let arguments = ["run", path(place), "--prompt", "a b", "--max-new-tokens", "4", "--json"];
        report(&outsize(&arguments))["tokens"].clone()
    };
    assert_eq!(of(&file), of(&model));
}
