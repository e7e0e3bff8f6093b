//! All weights of a model that learn, from the command: a model in little memory, a checkpoint that
//! other commands take, and an interrupted or killed training that goes on.

use crate::common::learning::{examples, finetune};
use crate::common::{done, failed, folder, message, model, model_of, outsize, path, start};
use outsize_checkpoint::Checkpoint;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Child;

const SETTINGS: [&str; 9] =
    ["--full", "--learning-rate", "2e-4", "--context", "64", "--batch", "2", "--accumulate", "2"];

/// A model whose state on the disk is small, and whose steps are no shorter than a signal takes.
const SMALL: &str = r#"{
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 3000, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "tie_word_embeddings": false, "eos_token_id": 2
}"#;

/// The bytes of all tensors, by name.
fn tensors(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let tensors = checkpoint.tensors().iter();
    let mut tensors: Vec<_> =
        tensors.map(|it| (it.name.clone(), checkpoint.read(it).unwrap())).collect();
    tensors.sort();
    tensors
}

fn states(output: &Path) -> PathBuf {
    output.with_extension("states")
}

#[test]
fn all_weights_learn_in_little_memory_and_are_the_same_in_much() {
    let dir = folder();
    let model = model(&dir);
    let (data, eval) = (examples(&dir, 16), examples(&dir, 5));
    let [much, little] = ["much", "little"].map(|name| dir.path().join(name));
    let settings = [&SETTINGS[..], &["--eval", path(&eval)]].concat();
    let memory = |memory| [&settings[..], &["--max-memory", memory]].concat();
    let resident = finetune(&model, &data, &much, &memory("cpu=2GB"));
    assert_eq!(resident["steps"], 4);
    let loss = |report: &Value, key: &str| report[key].as_f64().unwrap();
    assert!(loss(&resident, "eval_loss") < 0.7 * loss(&resident, "eval_loss_before"), "{resident}");

    // The least that does, as a refusal says it.
    let refused = ["finetune", path(&model), path(&data), "--output", path(&little)];
    let refused = outsize(&[&refused[..], &settings, &["--max-memory", "cpu=1MB"]].concat());
    let said = failed(&refused, 1);
    assert!(!states(&little).exists(), "something was written before it was refused");
    let least = said.split("at least cpu=").nth(1).unwrap().split(' ').next().unwrap();
    let budget: u64 = least.parse().unwrap();
    let streamed = finetune(&model, &data, &little, &memory(&format!("cpu={least}")));
    let peak = streamed["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak <= budget, "{peak} of {budget}");
    // Far less than what learns, with moments and gradients.
    let bytes = 16 * streamed["parameters"].as_u64().unwrap();
    assert!(budget < bytes / 3, "{budget} of {bytes}");
    assert!(streamed["bytes_read"].as_u64() > resident["bytes_read"].as_u64());
    assert_eq!(tensors(&much), tensors(&little));
    assert!(!states(&little).exists());

    // A checkpoint as the model's own.
    let (before, after) = (tensors(&model), tensors(&little));
    let shapes = |tensors: &[(String, Vec<u8>)]| -> Vec<(String, usize)> {
        tensors.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect()
    };
    assert_eq!(shapes(&before), shapes(&after));
    for (before, after) in before.iter().zip(&after) {
        // In bf16 a norm's 1 is still that after such small steps.
        assert!(before != after || before.0.contains("norm"), "{} has not learned", before.0);
    }
    for file in ["config.json", "tokenizer.json"] {
        assert_eq!(
            std::fs::read(model.join(file)).unwrap(),
            std::fs::read(little.join(file)).unwrap()
        );
    }
    let run = ["run", path(&little), "--prompt", "What is 3 and 4? ", "--max-new-tokens", "8"];
    done(&outsize(&run));
}

/// Sends a signal once a step is said to be made, and gives how the process ended and what it said.
fn ended(mut child: Child, after: &str, signal: &str) -> (Option<i32>, String) {
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with(after) {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut said, &mut line).unwrap() > 0, "no {after}");
    }
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args([signal, &id]).status().unwrap().success());
    let rest = std::io::read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), rest)
}

#[test]
fn an_interrupted_or_killed_training_goes_on_with_the_same_bits() {
    let dir = folder();
    let model = model_of(&dir, SMALL);
    let data = examples(&dir, 24);
    let [whole, parts] = ["whole", "parts"].map(|name| dir.path().join(name));
    let arguments = ["finetune", path(&model), path(&data), "--output", path(&parts)];
    let arguments = [&arguments[..], &SETTINGS].concat();
    let (status, said) = ended(start(dir.path(), &arguments), "step 2 ", "-INT");
    assert_eq!(status, Some(130), "{said}");
    assert!(said.contains("the same command goes on from there"), "{said}");
    assert!(!parts.exists());
    // Not with other settings, nor by two at once.
    let other = outsize(&[&arguments[..], &["--weight-decay", "0.1"]].concat());
    let error = failed(&other, 1);
    assert!(error.contains("parts.states has the state of a training with other"), "{error}");
    let locked = std::fs::File::open(states(&parts).join("lock")).unwrap();
    locked.try_lock().unwrap();
    let error = failed(&outsize(&arguments), 1);
    assert!(error.contains("another process learns in it"), "{error}");
    drop(locked);

    let (status, said) = ended(start(dir.path(), &arguments), "step 4 ", "-KILL");
    assert_eq!(status, None, "{said}");
    let report = finetune(&model, &data, &parts, &SETTINGS);
    assert!(report["resumed"].as_u64().unwrap() >= 4, "{report}");
    assert_eq!(report["steps"], 6);
    assert!(!states(&parts).exists());
    finetune(&model, &data, &whole, &SETTINGS);
    assert_eq!(tensors(&whole), tensors(&parts));
}

#[test]
fn what_cannot_learn_is_refused() {
    let dir = folder();
    let model = model(&dir);
    let data = examples(&dir, 2);
    let output = dir.path().join("output");
    let said = |status, more: &[&str]| {
        let arguments = ["finetune", path(&model), path(&data), "--output", path(&output)];
        failed(&outsize(&[&arguments[..], &["--full"], more].concat()), status)
    };
    for more in
        [["--rank", "4"], ["--alpha", "4"], ["--target-modules", "q_proj"], ["--adapter", "x"]]
    {
        let error = said(2, &more);
        assert!(error.contains("cannot be used with") && error.contains(more[0]), "{error}");
    }
    let error = said(1, &["--max-memory", "gpu0=1GB,cpu=1GB"]);
    assert!(error.contains("models learn on processors"), "{error}");
    let error = said(1, &["--learning-rate=-1"]);
    assert!(error.contains("learning rate is -1"), "{error}");
    assert!(!output.exists() && !states(&output).exists());
    // What is there already stays as it is.
    std::fs::create_dir(&output).unwrap();
    std::fs::write(output.join("mine"), "keep").unwrap();
    said(1, &[]);
    assert_eq!(std::fs::read_to_string(output.join("mine")).unwrap(), "keep");
    assert!(!states(&output).exists());

    // States that are none, or broken.
    let output = dir.path().join("other");
    let beside = states(&output);
    std::fs::create_dir(&beside).unwrap();
    let arguments = ["finetune", path(&model), path(&data), "--output", path(&output), "--full"];
    for text in ["", "{}", "[1, 2]", "{\"step\": -1}", "\u{0}"] {
        std::fs::write(beside.join("progress.json"), text).unwrap();
        let error = failed(&outsize(&arguments), 1);
        assert!(error.contains("other.states cannot be used to go on"), "{text}: {error}");
    }
    std::fs::remove_file(beside.join("progress.json")).unwrap();
    std::fs::write(beside.join("mine"), "keep").unwrap();
    let ran = outsize(&arguments);
    done(&ran);
    assert!(message(&ran).contains("all weights, "), "{}", message(&ran));
    let left: Vec<_> = beside.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine"]);
}
