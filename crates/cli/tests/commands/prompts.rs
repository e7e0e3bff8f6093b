//! `outsize run --prompts`: results as `outsize run` gives them one by one, kept over a kill.

use crate::common::{done, failed, folder, message, model, outsize, path, report, start};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn write(file: &Path, prompts: &[Value]) {
    let lines: Vec<String> = prompts.iter().map(Value::to_string).collect();
    std::fs::write(file, lines.join("\n")).unwrap();
}

#[test]
fn results_are_those_of_single_runs_in_any_batch_and_budget() {
    let dir = folder();
    let model = model(&dir);
    let (prompts, output) = (dir.path().join("prompts.jsonl"), dir.path().join("out.jsonl"));
    let given = [
        json!({"prompt": "Once upon a time", "id": "a"}),
        json!({"prompt": "x", "max_new_tokens": 3}),
        json!({"ids": [5, 6, 7, 8, 9, 10, 11], "id": 7, "max_new_tokens": 12}),
        json!({"prompt": "", "id": null}),
        json!({"prompt": "two words", "max_new_tokens": 1}),
        json!({"prompt": "far too long ".repeat(200)}),
        json!({"prompt": "the last of them"}),
    ];
    write(&prompts, &given);
    let sampling = ["--max-new-tokens", "9", "--temperature", "0.9", "--seed", "4", "--ignore-eos"];
    let single = |number: usize| {
        let tokens = given[number]["max_new_tokens"].as_u64().unwrap_or(9).to_string();
        let ids = given[number]["ids"]
            .as_array()
            .map(|ids| ids.iter().map(Value::to_string).collect::<Vec<_>>().join(","));
        let input = match &ids {
            Some(ids) => ["--ids", ids],
            None => ["--prompt", given[number]["prompt"].as_str().unwrap()],
        };
        let arguments = [&["run", path(&model), "--json"][..], &input, &sampling[2..]].concat();
        report(&outsize(&[&arguments[..], &["--max-new-tokens", &tokens]].concat()))
    };
    let expected: Vec<Value> = [0, 1, 2, 4, 6].map(single).to_vec();
    for (batch, budget) in [("1", "cpu=1GB"), ("3", "cpu=110MB"), ("64", "cpu=1GB")] {
        let _ = std::fs::remove_file(&output);
        let many = ["run", path(&model), "--prompts", path(&prompts), "--output", path(&output)];
        let many = [&many[..], &["--batch", batch, "--max-memory", budget], &sampling].concat();
        let ran = outsize(&[&many[..], &["--json", "--context", "120"]].concat());
        assert!(failed(&ran, 1).contains("2 prompts failed"), "{}", message(&ran));
        let ran: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(
            (&ran["prompts"], &ran["results"], &ran["failed"]),
            (&json!(7), &json!(7), &json!(2))
        );
        let tokens: usize =
            expected.iter().map(|one| one["tokens"].as_array().unwrap().len()).sum();
        assert_eq!(ran["tokens"], json!(tokens));
        assert!(ran["peak_rss_bytes"].as_u64() <= ran["placement"]["budget"]["cpu"].as_u64());
        let mut found = lines(&output);
        found.sort_by_key(|line| line["index"].as_u64());
        assert_eq!(found.len(), 7);
        for (number, one) in [0, 1, 2, 4, 6].into_iter().zip(&expected) {
            for key in ["text", "tokens", "finish", "prompt_tokens"] {
                assert_eq!(found[number][key], one[key], "prompt {number}, {key}, batch {batch}");
            }
        }
        assert_eq!((&found[0]["id"], &found[2]["id"]), (&json!("a"), &json!(7)));
        for (number, says) in [(3, "no tokens"), (5, "the context holds 120")] {
            let error = found[number]["error"].as_str().unwrap();
            assert!(error.contains(says), "{error}");
        }
    }
    // All are there: nothing is left to be done.
    let again = ["run", path(&model), "--prompts", path(&prompts), "--output", path(&output)];
    let ran = outsize(&again);
    assert!(failed(&ran, 1).contains("2 prompts failed"));
    assert!(message(&ran).contains("the results of all 7 prompts"), "{}", message(&ran));
    assert_eq!(lines(&output).len(), 7);
}

#[test]
fn lines_of_ids_need_no_tokenizer() {
    let dir = folder();
    let model = model(&dir);
    let (prompts, output) = (dir.path().join("prompts.jsonl"), dir.path().join("out.jsonl"));
    std::fs::remove_file(model.join("tokenizer.json")).unwrap();
    let many = ["run", path(&model), "--prompts", path(&prompts), "--output", path(&output)];
    let run = |more: &[&str]| outsize(&[&many[..], more].concat());
    write(&prompts, &[json!({"ids": [5, 6, 7]}), json!({"ids": [8]})]);
    done(&run(&["--max-new-tokens", "5", "--ignore-eos"]));
    for (line, ids) in lines(&output).iter().zip(["5,6,7", "8"]) {
        let single = ["run", path(&model), "--ids", ids, "--max-new-tokens", "5", "--ignore-eos"];
        let single = report(&outsize(&[&single[..], &["--json"]].concat()));
        assert_eq!((&line["text"], &line["tokens"]), (&single["text"], &single["tokens"]));
        let tokens = line["tokens"].as_array().unwrap();
        let numbers: Vec<String> = tokens.iter().map(Value::to_string).collect();
        assert_eq!((line["text"].as_str().unwrap(), tokens.len()), (&*numbers.join(","), 5));
    }
    std::fs::remove_file(&output).unwrap();
    assert!(failed(&run(&["--stop", "x"]), 1).contains("no tokenizer.json"));
    write(&prompts, &[json!({"ids": [5]}), json!({"prompt": "a"})]);
    let message = failed(&run(&[]), 1);
    assert!(message.contains("prompt 1") && message.contains("no tokenizer.json"), "{message}");
    assert!(!output.exists());
}

#[test]
fn a_kill_loses_no_result_that_was_written() {
    let dir = folder();
    let model = model(&dir);
    let (prompts, output) = (dir.path().join("prompts.jsonl"), dir.path().join("out.jsonl"));
    let given: Vec<Value> = (0..60).map(|i| json!({"prompt": format!("number {i}")})).collect();
    write(&prompts, &given);
    let many = ["run", path(&model), "--prompts", path(&prompts), "--output", path(&output)];
    let many =
        [&many[..], &["--batch", "4", "--max-new-tokens", "12", "--ignore-eos", "--json"]].concat();
    let mut child = start(dir.path(), &many);
    let began = Instant::now();
    while !output.exists() || std::fs::read_to_string(&output).unwrap().lines().count() < 5 {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut text = std::fs::read_to_string(&output).unwrap();
    let kept = text.lines().count();
    assert!(text.ends_with('\n'));
    // As if it had been killed within a line.
    text.push_str("{\"index\":59,\"text\":\"hal");
    std::fs::write(&output, &text).unwrap();
    let ran = report(&outsize(&many));
    assert_eq!(ran["skipped"].as_u64().unwrap() as usize, kept);
    assert_eq!(ran["results"].as_u64().unwrap() as usize, 60 - kept);
    let mut indices: Vec<u64> =
        lines(&output).iter().map(|line| line["index"].as_u64().unwrap()).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..60).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_done_is_said_before_any_work() {
    let dir = folder();
    let model = model(&dir);
    let (prompts, output) = (dir.path().join("prompts.jsonl"), dir.path().join("out.jsonl"));
    let run = |more: &[&str]| {
        let many = ["run", path(&model), "--prompts", path(&prompts)];
        outsize(&[&many[..], more].concat())
    };
    let to = ["--output", path(&output)];
    let message = failed(&run(&to), 1);
    assert!(message.contains("cannot read") && message.contains("prompts.jsonl"), "{message}");
    write(&prompts, &[json!({"prompt": "a"}), json!({"text": "b"})]);
    let message = failed(&run(&to), 1);
    assert!(message.contains("prompts.jsonl, line 2"), "{message}");
    write(&prompts, &[json!({"prompt": "a"}), json!({"ids": [1, 1_000_000]})]);
    let message = failed(&run(&to), 1);
    assert!(message.contains("prompt 1") && message.contains("not a token"), "{message}");
    std::fs::write(&prompts, "\n").unwrap();
    assert!(failed(&run(&to), 2).contains("no prompts"));
    write(&prompts, &[json!({"prompt": "a"})]);
    assert!(failed(&run(&[]), 2).contains("--output"));
    assert!(failed(&run(&["--output", path(&prompts)]), 2).contains("file of the prompts"));
    assert!(failed(&run(&["--output", "/dev/null"]), 2).contains("not a regular file"));
    for alone in [&to[..], &["--batch", "4"]] {
        let one = [&["run", path(&model), "--prompt", "a"], alone].concat();
        assert!(failed(&outsize(&one), 2).contains("--prompts"));
    }
    assert!(
        failed(&run(&[&to[..], &["--when-full", "slide"]].concat()), 2).contains("--when-full")
    );
    let message = failed(&run(&[&to[..], &["--max-memory", "cpu=40MB"]].concat()), 1);
    assert!(message.contains("--max-memory"), "{message}");
    std::fs::write(&output, "a text of somebody's\n").unwrap();
    let message = failed(&run(&to), 1);
    assert!(message.contains("out.jsonl, line 1"), "{message}");
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "a text of somebody's\n");
}
