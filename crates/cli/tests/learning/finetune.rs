//! Adapters that learn, from the command: a model in little memory, an adapter that other commands
//! take, and an interrupted training that goes on.

use crate::common::learning::{examples, finetune};
use crate::common::{done, failed, folder, message, model, outsize, path, start};
use outsize::checkpoint::Checkpoint;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const SETTINGS: [&str; 10] = [
    "--rank",
    "4",
    "--learning-rate",
    "2e-3",
    "--context",
    "64",
    "--batch",
    "2",
    "--accumulate",
    "2",
];

fn read(folder: &Path) -> [Vec<u8>; 2] {
    ["adapter_model.safetensors", "adapter_config.json"]
        .map(|name| std::fs::read(folder.join(name)).unwrap())
}

#[test]
fn an_adapter_learns_in_little_memory_and_is_the_same_in_much() {
    let dir = folder();
    let model = model(&dir);
    let (data, eval) = (examples(&dir, 24), examples(&dir, 5));
    let [much, little] = ["much", "little"].map(|name| dir.path().join(name));
    let settings = [&SETTINGS[..], &["--eval", path(&eval), "--epochs", "2"]].concat();
    let memory = |memory| [&settings[..], &["--max-memory", memory]].concat();
    let resident = finetune(&model, &data, &much, &memory("cpu=2GB"));
    assert_eq!(resident["steps"], 12);
    let loss = |report: &Value, key: &str| report[key].as_f64().unwrap();
    assert!(loss(&resident, "eval_loss") < 0.7 * loss(&resident, "eval_loss_before"), "{resident}");

    // The least that does, as a refusal says it.
    let refused = ["finetune", path(&model), path(&data), "--output", path(&little)];
    let refused = outsize(&[&refused[..], &settings, &["--max-memory", "cpu=1MB"]].concat());
    let said = failed(&refused, 1);
    let least = said.split("at least cpu=").nth(1).unwrap().split(' ').next().unwrap();
    let budget: u64 = least.parse().unwrap();
    let streamed = finetune(&model, &data, &little, &memory(&format!("cpu={least}")));
    let peak = streamed["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak <= budget, "{peak} of {budget}");
    assert!(streamed["bytes_read"].as_u64() > resident["bytes_read"].as_u64().map(|it| 10 * it));
    assert_eq!(read(&much), read(&little));
    assert!(!dir.path().join("little.states").exists());

    let text = |adapter: &[&str]| {
        let run = ["run", path(&model), "--prompt", "What is 3 and 4? ", "--max-new-tokens", "8"];
        done(&outsize(&[&run[..], adapter].concat()))
    };
    let adapted = text(&["--adapter", path(&little)]);
    assert_ne!(text(&[]), adapted);
}

#[test]
fn experts_and_what_chooses_them_learn_in_little_memory_too() {
    let dir = folder();
    // Of a Qwen3-MoE, beside what sees.
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    let model = fixtures.join("vision-internvl-experts");
    let data = examples(&dir, 12);
    let [much, little, on] = ["much", "little", "on"].map(|name| dir.path().join(name));
    let modules = ["--target-modules", "gate,gate_proj,up_proj,down_proj"];
    let settings = [&SETTINGS[..], &modules].concat();
    finetune(&model, &data, &much, &[&settings[..], &["--max-memory", "cpu=2GB"]].concat());
    let refused = ["finetune", path(&model), path(&data), "--output", path(&little)];
    let refused = outsize(&[&refused[..], &settings, &["--max-memory", "cpu=1MB"]].concat());
    let said = failed(&refused, 1);
    let least = said.split("at least cpu=").nth(1).unwrap().split(' ').next().unwrap();
    let budget = format!("cpu={least}");
    let report =
        finetune(&model, &data, &little, &[&settings[..], &["--max-memory", &budget]].concat());
    let peak = report["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak <= least.parse().unwrap(), "{peak} of {least}");
    assert_eq!(read(&much), read(&little));
    let file = Checkpoint::open(much.join("adapter_model.safetensors")).unwrap();
    // Of three layers those of four experts, and a router; both matrices of each.
    assert_eq!(file.tensors().len(), 2 * 3 * (4 * 3 + 1));

    finetune(&model, &data, &on, &[&SETTINGS[2..], &["--adapter", path(&much)]].concat());
    assert_ne!(read(&much)[0], read(&on)[0]);
    let other = fixtures.join("vision-llama4");
    let none = dir.path().join("none");
    let refused = ["finetune", path(&other), path(&data), "--output", path(&none)];
    let said = failed(&outsize(&[&refused[..], &modules].concat()), 1);
    assert!(said.contains("adapters of these are read, and not made"), "{said}");
}

#[test]
fn an_interrupted_training_goes_on_with_the_same_bits() {
    let dir = folder();
    let model = model(&dir);
    let data = examples(&dir, 40);
    let [whole, parts] = ["whole", "parts"].map(|name| dir.path().join(name));
    let settings = [&SETTINGS[..], &["--epochs", "2"]].concat();
    let arguments = ["finetune", path(&model), path(&data), "--output", path(&parts)];
    let arguments = [&arguments[..], &settings].concat();
    let mut child = start(dir.path(), &arguments);
    // Until a step is said to be made.
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("step 3 ") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut said, &mut line).unwrap() > 0, "no third step");
    }
    let interrupted = Instant::now();
    assert!(
        std::process::Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let rest = std::io::read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("the same command goes on from there"), "{rest}");
    assert!(interrupted.elapsed() < Duration::from_secs(60));
    assert!(!parts.exists());
    // Not with other settings.
    let other = outsize(&[&arguments[..], &["--weight-decay", "0.1"]].concat());
    let error = failed(&other, 1);
    assert!(error.contains("parts.states has the state of a training with other"), "{error}");

    let report = finetune(&model, &data, &parts, &settings);
    assert!(report["resumed"].as_u64().unwrap() >= 3, "{report}");
    assert_eq!(report["steps"], 20);
    assert!(!dir.path().join("parts.states").exists());
    finetune(&model, &data, &whole, &settings);
    assert_eq!(read(&whole), read(&parts));

    // And with what was learned before, in an empty folder that is there.
    let again = dir.path().join("again/");
    std::fs::create_dir(&again).unwrap();
    let beside = dir.path().join("again.states");
    std::fs::create_dir(&beside).unwrap();
    std::fs::write(beside.join("mine"), "keep").unwrap();
    let more = ["--adapter", path(&whole), "--context", "64", "--learning-rate", "1e-9"];
    let report = finetune(&model, &data, &again, &more);
    assert!(report["loss"].as_f64().unwrap() < 4.0, "{report}");
    assert!(again.join("adapter_model.safetensors").exists());
    let left: Vec<_> = beside.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine"]);
}

#[test]
fn conversations_are_learned_where_the_assistant_speaks() {
    let dir = folder();
    let model = model(&dir);
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let data = dir.path().join("chat.jsonl");
    let line = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Good day"}]}"#;
    std::fs::write(&data, format!("{line}\n\n{line}\n")).unwrap();
    let output = dir.path().join("adapter");
    let ran = outsize(&["finetune", path(&model), path(&data), "--output", path(&output)]);
    done(&ran);
    // Of bytes: "Good day" and the tag that ends it, twice.
    let said = message(&ran);
    let targets = said.split(" examples, ").nth(1).and_then(|rest| rest.split(' ').next());
    let targets: usize = targets.unwrap().parse().unwrap();
    assert!(targets >= 2 && targets <= 2 * "Good day</assistant>".len(), "{said}");
    assert!(said.contains("2 examples"), "{said}");
}

#[test]
fn what_cannot_be_learned_is_refused() {
    let dir = folder();
    let model = model(&dir);
    std::fs::remove_file(model.join("chat_template.jinja")).unwrap();
    let data = examples(&dir, 2);
    let output = dir.path().join("adapter");
    let said = |status, data: &Path, more: &[&str]| {
        let arguments = ["finetune", path(&model), path(data), "--output", path(&output)];
        let ran = outsize(&[&arguments[..], more].concat());
        assert!(!output.exists(), "a partial adapter");
        failed(&ran, status)
    };
    let error = said(1, &dir.path().join("none.jsonl"), &[]);
    assert!(error.contains("none.jsonl: No such file"), "{error}");
    let bad = dir.path().join("bad.jsonl");
    for (text, wanted) in [
        ("{\"text\": \"a b\"}\nhello\n", "bad.jsonl, line 2: expected one JSON object"),
        ("{\"instruction\": \"a\"}\n", "line 1: it is none of {\"text\""),
        ("{\"prompt\": \"a\", \"completion\": 3}\n", "line 1: it is none of"),
        ("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n", "has no chat template"),
        ("\n\n", "there are no examples"),
        ("{\"text\": \"\"}\n", "line 1: it has no token to learn"),
    ] {
        std::fs::write(&bad, text).unwrap();
        let error = said(1, &bad, &[]);
        assert!(error.contains(wanted), "{text}: {error}");
    }
    let error = said(1, &data, &["--target-modules", "embed_tokens"]);
    assert!(error.contains("is a table of embeddings"), "{error}");
    let error = said(1, &data, &["--target-modules", "lm_head"]);
    assert!(error.contains("`lm_head.weight` cannot learn"), "{error}");
    let error = said(1, &data, &["--rank", "1152921504606846976"]);
    assert!(error.contains("the rank is 1152921504606846976"), "{error}");
    let error = said(1, &data, &["--alpha", "nan"]);
    assert!(error.contains("alpha is NaN"), "{error}");
    let error = said(1, &data, &["--target-modules", "w1,w2"]);
    assert!(error.contains("has no such linear layer"), "{error}");
    let error = said(1, &data, &["--context", "4096"]);
    assert!(error.contains("context is 4096"), "{error}");
    let error = said(1, &data, &["--learning-rate=-1"]);
    assert!(error.contains("learning rate is -1"), "{error}");
    let error = said(1, &data, &["--max-memory", "gpu0=1GB,cpu=1GB"]);
    assert!(error.contains("models learn on processors"), "{error}");
    let error = said(2, &data, &["--adapter", "no-such-folder"]);
    assert!(error.contains("no-such-folder does not exist"), "{error}");
    std::fs::create_dir(&output).unwrap();
    std::fs::write(output.join("mine"), "keep").unwrap();
    let arguments = ["finetune", path(&model), path(&data), "--output", path(&output)];
    let error = failed(&outsize(&arguments), 1);
    assert!(error.contains("adapter"), "{error}");
    assert_eq!(std::fs::read_to_string(output.join("mine")).unwrap(), "keep");
}
