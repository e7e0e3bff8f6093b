//! Adapters from the command: run, merged, counted in plans, and refused in words that help.

use crate::common::{done, failed, folder, outsize, path, report, tiny};
use burn::tensor::{Device, Tensor, TensorData};
use outsize::checkpoint::{Checkpoint, Dtype, FileWriter, TensorSpec};
use outsize::core::LowRank;
use outsize::lora::{LoraConfig, ModulePattern, save};
use outsize::models::ModelConfig;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A checkpoint of the models crate.
fn base(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures").join(name)
}

/// An adapter that PEFT saved, with what it computed.
fn adapter(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../lora/tests/fixtures").join(name)
}

fn floats(file: &Path, tensor: &str) -> Vec<f32> {
    let file = Checkpoint::open(file).unwrap();
    let bytes = file.read(file.get(tensor).unwrap()).unwrap();
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The greatest difference, as a share of the greatest of `expected`.
fn off(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    worst.fold(0.0, f32::max) / largest
}

/// What PEFT computed with an adapter, with the ids as an argument.
fn expected(adapter: &Path) -> (String, Vec<u64>, Vec<f32>) {
    let text = std::fs::read_to_string(adapter.join("expected.json")).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let list = |key: &str| -> Vec<u64> { serde_json::from_value(value[key].clone()).unwrap() };
    let ids: Vec<_> = list("ids").iter().map(u64::to_string).collect();
    let logits = floats(&adapter.join("expected.safetensors"), "logits");
    (ids.join(","), list("greedy"), logits)
}

fn logits(model: &Path, ids: &str, more: &[&str]) -> Vec<f32> {
    let dir = folder();
    let out = dir.path().join("logits.safetensors");
    let args = ["logits", path(model), "--ids", ids, "--output", path(&out)];
    done(&outsize(&[&args[..], more].concat()));
    floats(&out, "logits")
}

#[test]
fn a_model_runs_with_its_adapter_and_merged() {
    let dir = folder();
    for (name, model, dtype) in [
        ("llama", "gqa", None),
        ("llama-head-f16", "gqa", None),
        ("gpt2", "gpt2", None),
        ("phi3", "phi3", None),
        ("qwen3-rslora-patterns", "qwen3", None),
        ("llama-w4", "llama-compressed-w4-bf16", Some("f32")),
        ("llama-bf16", "gqa-bf16", Some("f32")),
        ("mixtral", "mixtral", None),
        ("qwen3_moe-apart", "qwen3_moe", None),
        ("gpt_oss", "gpt_oss", None),
        ("llama4", "llama4", None),
        ("granitemoe", "granitemoe", None),
        ("nemotron_h-experts", "nemotron_h", None),
    ] {
        let (model, adapter) = (base(model), adapter(name));
        let (ids, tokens, expected) = expected(&adapter);
        let with = ["--adapter", path(&adapter)];
        assert!(off(&logits(&model, &ids, &with), &expected) < 1e-4, "{name}");
        let run = ["run", path(&model), "--ids", &ids, "--max-new-tokens", "8", "--json"];
        let plain = report(&outsize(&[&run[..], &["--ignore-eos"]].concat()));
        let found = report(&outsize(&[&run[..], &["--ignore-eos"], &with].concat()));
        assert_eq!(found["tokens"], Value::from(tokens), "{name}");
        assert_ne!(found["tokens"], plain["tokens"], "{name}");

        let out = dir.path().join(name);
        let merge = ["merge", path(&model), path(&out), "--adapter", path(&adapter)];
        let dtype = dtype.map_or(vec![], |dtype| vec!["--dtype", dtype]);
        done(&outsize(&[&merge[..], &dtype].concat()));
        assert!(off(&logits(&out, &ids, &[]), &expected) < 1e-4, "{name} merged");
        assert!(off(&logits(&model, &ids, &[]), &expected) > 1e-2, "{name} without");
    }
}

#[test]
fn merged_weights_are_rounded_once() {
    let dir = folder();
    let (model, adapter) = (base("gqa-bf16"), adapter("llama-bf16"));
    let merge = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        let args = ["merge", path(&model), path(&out), "--adapter", path(&adapter)];
        done(&outsize(&[&args[..], more].concat()));
        Checkpoint::open(out).unwrap()
    };
    let (narrow, wide) = (merge("bf16", &[]), merge("f32", &["--dtype", "f32"]));
    let plain = Checkpoint::open(&model).unwrap();
    let mut changed = 0;
    for tensor in narrow.tensors() {
        let exact = wide.read(wide.get(&tensor.name).unwrap()).unwrap();
        let rounded: Vec<u8> = (exact.as_chunks().0.iter())
            .flat_map(|bytes| to_bf16(f32::from_le_bytes(*bytes)).to_le_bytes())
            .collect();
        let found = narrow.read(tensor).unwrap();
        assert_eq!(found, rounded, "{}", tensor.name);
        changed += usize::from(found != plain.read(plain.get(&tensor.name).unwrap()).unwrap());
    }
    // Of each of two layers seven matrices.
    assert_eq!(changed, 14);
}

/// To the nearest, and of two to the even one.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[test]
fn files_with_rows_in_another_order_have_the_same_adapter() {
    let dir = folder();
    for name in [
        "gguf-llama",
        "gguf-llama-f16",
        "gguf-smollm3",
        "gguf-mixtral-q4_0",
        "gguf-qwen3",
        "gguf-qwen3_moe",
    ] {
        let file = base(name).join("model.gguf");
        let [plain, merged, adapter] =
            ["plain", "merged", "adapter"].map(|part| dir.path().join(format!("{name}-{part}")));
        done(&outsize(&["merge", path(&file), path(&plain), "--dtype", "f32"]));
        let suffixes =
            ["q_proj", "k_proj", "v_proj", "o_proj", "w1", "w2", "w3", "experts.0.up_proj"];
        waves(&adapter, &plain, ModulePattern::suffixes(suffixes));
        let with = ["--adapter", path(&adapter)];
        let expected = logits(&plain, "5,6,7,8,9,10", &with);
        assert!(off(&logits(&plain, "5,6,7,8,9,10", &[]), &expected) > 1e-2, "{name}");
        assert!(off(&logits(&file, "5,6,7,8,9,10", &with), &expected) < 1e-4, "{name}");
        let merge = ["merge", path(&file), path(&merged), "--dtype", "f32"];
        done(&outsize(&[&merge[..], &with].concat()));
        assert!(off(&logits(&merged, "5,6,7,8,9,10", &[]), &expected) < 1e-4, "{name} merged");
    }
    // Whose heads of linear attention are in turns.
    let file = base("gguf-qwen3_5").join("model.gguf");
    let [plain, adapter] = ["plain", "adapter"].map(|name| dir.path().join(name));
    done(&outsize(&["merge", path(&file), path(&plain), "--dtype", "f32"]));
    waves(&adapter, &plain, ModulePattern::suffixes(["out_proj"]));
    done(&outsize(&["run", path(&plain), "--ids", "5", "--adapter", path(&adapter)]));
    let run = ["run", path(&file), "--ids", "5", "--adapter", path(&adapter)];
    let message = failed(&outsize(&run), 1);
    assert!(message.contains("is stored in another order"), "{message}");
}

#[test]
fn experts_that_are_apart_in_a_file_have_the_adapter_of_all() {
    let dir = folder();
    for name in ["gguf-gpt_oss", "gguf-qwen3_moe", "gguf-llama4"] {
        let file = base(name).join("model.gguf");
        let [plain, adapter] =
            ["plain", "adapter"].map(|part| dir.path().join(format!("{name}-{part}")));
        done(&outsize(&["merge", path(&file), path(&plain), "--dtype", "f32"]));
        of_all_experts(&adapter, &plain);
        let with = ["--adapter", path(&adapter)];
        let expected = logits(&plain, "5,6,7,8,9,10", &with);
        assert!(off(&logits(&plain, "5,6,7,8,9,10", &[]), &expected) > 1e-2, "{name}");
        assert!(off(&logits(&file, "5,6,7,8,9,10", &with), &expected) < 1e-4, "{name}");
    }
}

/// An adapter for the parameters of all experts, as PEFT names its tensors, of which no two rows
/// are alike.
fn of_all_experts(folder: &Path, model: &Path) {
    let text = std::fs::read_to_string(model.join("config.json")).unwrap();
    let mut specs = Vec::new();
    for module in ModelConfig::from_json(&text).unwrap().modules() {
        let Some(stack) = module.stack.filter(|stack| stack.expert == 0 && stack.first == 0) else {
            continue;
        };
        let (owner, field) = stack.names[0].rsplit_once('.').unwrap();
        let owner = match field {
            "down_proj" => owner.to_owned(),
            _ => format!("{owner}.base_layer"),
        };
        let (rank, [_, inputs]) = (2 * stack.experts, module.shape);
        let shapes = match stack.mistaken {
            false => [[rank, inputs], [stack.height, rank]],
            true => [[rank, stack.height], [inputs, rank]],
        };
        for (matrix, shape) in ["lora_A", "lora_B"].into_iter().zip(shapes) {
            let name = format!("base_model.model.{owner}.{matrix}.weight");
            specs.push(TensorSpec::new(name, Dtype::F32, shape));
        }
    }
    std::fs::create_dir(folder).unwrap();
    let config = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_parameters":
        ["experts.gate_up_proj", "experts.down_proj"]}"#;
    std::fs::write(folder.join("adapter_config.json"), config).unwrap();
    let file = folder.join("adapter_model.safetensors");
    let mut writer = FileWriter::create(file, specs.clone()).unwrap();
    for spec in specs {
        let values = (0..spec.shape.iter().product()).map(|at| (at as f32 * 0.37).sin() * 0.4);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        writer.write(&spec.name, &bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// An adapter of which no two rows are alike.
fn waves(folder: &Path, model: &Path, modules: ModulePattern) {
    let text = std::fs::read_to_string(model.join("config.json")).unwrap();
    let model = ModelConfig::from_json(&text).unwrap();
    let config = LoraConfig::new(3, 1.0, modules);
    let matrix = |shape: [usize; 2], step: f32| -> Tensor<2> {
        let values = (0..shape[0] * shape[1]).map(|at| (at as f32 * step).sin() * 0.3);
        Tensor::from_data(TensorData::new(values.collect::<Vec<f32>>(), shape), &Device::flex())
    };
    let parts = config.targets(&model).unwrap().into_iter().map(|target| {
        let [out, inputs] = target.shape;
        let (down, up) = (matrix([3, inputs], 0.37), matrix([out, 3], 0.73));
        (target.path, LowRank { down, up, scale: target.scale, in_out: false })
    });
    save(folder, &config, &model, &parts.collect()).unwrap();
}

/// An adapter of ones for a model.
fn of_ones(folder: &Path, model: &Path, rank: usize) {
    let text = std::fs::read_to_string(model.join("config.json")).unwrap();
    let model = ModelConfig::from_json(&text).unwrap();
    let config = LoraConfig::new(rank, 1.0, ModulePattern::AllLinear);
    let ones = |shape: [usize; 2]| Tensor::<2>::ones(shape, &Device::flex());
    let parts = config.targets(&model).unwrap().into_iter().map(|target| {
        let [out, inputs] = target.shape;
        let (down, up) = (ones([rank, inputs]), ones([out, rank]));
        (target.path, LowRank { down, up, scale: target.scale, in_out: false })
    });
    save(folder, &config, &model, &parts.collect()).unwrap();
}

#[test]
fn plans_count_it_and_conversations_have_it() {
    let dir = folder();
    let (model, adapter) = (tiny(&dir), dir.path().join("adapter"));
    of_ones(&adapter, &model, 64);
    let with = ["--adapter", path(&adapter)];
    let overhead = |more: &[&str]| {
        let plan = ["plan", path(&model), "--max-memory", "cpu=200MB", "--json"];
        let plan = report(&outsize(&[&plan[..], more].concat()));
        let tier = plan["tiers"].as_array().unwrap().iter().find(|it| it["tier"] == "cpu");
        ["other", "activations"].map(|key| tier.unwrap()[key].as_u64().unwrap())
    };
    let ([process, activations], [of_both, more]) = (overhead(&[]), overhead(&with));
    // Inputs and outputs of all layers, 64 times, in f32.
    let matrices = 4 * 64 * 2 * (2 * 128 + 2 * 96 + 3 * 160);
    assert!(of_both >= process + matrices, "{of_both}, {process} without");
    assert!(more > activations, "{more}, {activations} without");

    let prompts = dir.path().join("prompts.jsonl");
    std::fs::write(&prompts, "{\"ids\": [5, 6]}\n{\"ids\": [7]}\n").unwrap();
    let many = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        let run = ["run", path(&model), "--prompts", path(&prompts), "--output", path(&out)];
        done(&outsize(&[&run[..], more].concat()));
        std::fs::read_to_string(out).unwrap()
    };
    assert_ne!(many("plain.jsonl", &[]), many("adapted.jsonl", &with));

    let template = "{% for m in messages %}{{ m.content }}.{% endfor %}";
    std::fs::write(model.join("chat_template.jinja"), template).unwrap();
    let chat = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outsize"));
        command.args(["chat", path(&model), "--max-new-tokens", "12"]).args(more);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = pipes.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"Hello\n").unwrap();
        let said = child.wait_with_output().unwrap();
        assert!(said.status.success());
        said.stdout
    };
    assert_ne!(chat(&with), chat(&[]));
}

#[test]
fn what_does_not_fit_is_refused_in_words_that_help() {
    let dir = folder();
    let (llama, gqa) = (adapter("llama"), base("gqa"));
    let run = |model: &Path, adapter: &str, status| {
        let args = ["run", path(model), "--ids", "1", "--adapter", adapter];
        failed(&outsize(&args), status)
    };
    let message = run(&gqa, path(&gqa), 1);
    assert!(message.contains("holds a whole model (config.json)"), "{message}");
    let message = run(&gqa, path(dir.path()), 1);
    assert!(message.contains("has no adapter_config.json"), "{message}");
    let message = run(&gqa, "no/such/folder", 2);
    assert!(message.contains("--adapter: no/such/folder does not exist"), "{message}");
    let message = run(&base("qwen3"), path(&llama), 1);
    assert!(message.contains("the adapter is one of gqa"), "{message}");
    let message = run(&base("gpt2"), path(&llama), 1);
    assert!(message.contains("no such linear layer"), "{message}");

    // The adapter in place of the model.
    let said = "is an adapter of another model, gqa: give that, and `--adapter";
    for command in
        [&["run", "--ids", "1"][..], &["plan"], &["logits", "--ids", "1", "--output", "x"]]
    {
        let message = failed(&outsize(&[command, &[path(&llama)]].concat()), 2);
        assert!(message.contains(said), "{message}");
    }

    let out = dir.path().join("out");
    let merge = |model: &str, name: &str, status| {
        let (model, adapter) = (base(model), adapter(name));
        let args = ["merge", path(&model), path(&out), "--adapter", path(&adapter)];
        let message = failed(&outsize(&args), status);
        assert!(!out.exists(), "{message}");
        message
    };
    let message = merge("llama-compressed-w4-bf16", "llama-w4", 1);
    assert!(message.contains("quantised") && message.contains("--dtype"), "{message}");
    let message = merge("gemma3-images", "gemma3-images", 2);
    assert!(message.contains("what sees or hears"), "{message}");
}
