//! Folders of adapters: written and read again, and refused where they are wrong.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::common::{ADAPTERS, config, folder};
use outsize_checkpoint::{Checkpoint, Dtype, FileWriter, TensorSpec};
use outsize_core::LowRank;
use outsize_lora::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, Error, LoraAdapter, LoraConfig, save};
use outsize_models::ModelConfig;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

fn bytes(part: &LowRank) -> [Vec<u8>; 2] {
    [&part.down, &part.up].map(|matrix| matrix.to_data().as_bytes().to_vec())
}

#[test]
fn what_is_saved_is_read_again() {
    let dir = tempdir().unwrap();
    for &(name, base) in ADAPTERS {
        let model = config(base);
        let adapter = LoraAdapter::open(folder(name), &model).unwrap();
        let parts = adapter.parts().unwrap();
        let out = dir.path().join(name);
        let saved = save(&out, adapter.config(), &model, &parts);
        if !adapter.config().target_parameters.is_empty() {
            assert!(matches!(saved, Err(Error::Field { .. })), "{name}: {saved:?}");
            continue;
        }
        saved.unwrap();
        if name.ends_with("-apart") {
            let [found, theirs] = [out.clone(), folder(name)].map(|folder| {
                let file = Checkpoint::open(folder.join(ADAPTER_WEIGHTS[0])).unwrap();
                let names = file.tensors().iter().map(|tensor| tensor.name.clone());
                names.collect::<std::collections::BTreeSet<_>>()
            });
            assert_eq!(found, theirs, "{name}");
        }
        let again = LoraAdapter::open(&out, &model).unwrap();
        assert_eq!(again.config(), adapter.config(), "{name}");
        assert!(again.targets().eq(adapter.targets()), "{name}");
        assert_eq!(again.memory(), adapter.memory(), "{name}");
        for (path, part) in again.parts().unwrap() {
            assert_eq!(bytes(&part), bytes(&parts[&path]), "{name}: {path}");
            assert_eq!((part.scale, part.in_out), (parts[&path].scale, parts[&path].in_out));
        }
        assert_eq!(fs::read_dir(&out).unwrap().count(), 2, "{name}");
        // What is there is left alone.
        assert!(save(&out, adapter.config(), &model, &parts).is_err(), "{name}");
    }
}

#[test]
fn rows_in_another_order_are_saved_in_that_of_transformers() {
    let text = fs::read_to_string(crate::common::base("gqa").join("config.json")).unwrap();
    let stored_so = text.replacen('{', "{\"rope_interleaved\": true,", 1);
    let [plain, other] = [text, stored_so].map(|text| ModelConfig::from_json(&text).unwrap());
    let dir = tempdir().unwrap();
    let out = dir.path().join("adapter");
    let adapter = LoraAdapter::open(folder("llama"), &other).unwrap();
    save(&out, adapter.config(), &other, &adapter.parts().unwrap()).unwrap();
    let of = |folder: &Path, model| LoraAdapter::open(folder, model).unwrap().parts().unwrap();
    let (again, parts) = (of(&out, &plain), of(&folder("llama"), &plain));
    assert!(again.iter().all(|(path, part)| bytes(part) == bytes(&parts[path])));
    // In memory those of queries are in the order of the checkpoint, and those of values as ever.
    let moved = of(&out, &other);
    let is_moved = |path: &str| bytes(&moved[path]) != bytes(&parts[path]);
    assert!(is_moved("model.layers.0.self_attn.q_proj.weight"));
    assert!(!is_moved("model.layers.0.self_attn.v_proj.weight"));
}

#[test]
fn what_does_not_fit_is_not_saved() {
    let model = config("gqa");
    let adapter = LoraAdapter::open(folder("llama"), &model).unwrap();
    let dir = tempdir().unwrap();
    let out = dir.path().join("adapter");
    let refused = |config: &LoraConfig, parts: &HashMap<String, LowRank>| {
        let message = save(&out, config, &model, parts).unwrap_err().to_string();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{message}");
        message
    };
    let path = "model.layers.0.self_attn.q_proj.weight";
    let mut parts = adapter.parts().unwrap();
    let mut other = adapter.config().clone();
    other.rank = 5;
    assert!(refused(&other, &parts).contains("[5, 64]"));
    let part = parts.remove(path).unwrap();
    let message = refused(adapter.config(), &parts);
    assert!(message.contains(path) && message.contains("has no matrices"), "{message}");
    parts.insert(path.into(), part.clone());
    parts.insert("model.layers.0.mlp.up_proj.weight".into(), part);
    assert!(refused(adapter.config(), &parts).contains("no target of that path"));
}

/// A copy of an adapter whose configuration and tensors are changed.
fn changed(
    name: &str,
    change: impl FnOnce(&mut Value),
    rename: impl Fn(&str) -> Option<String>,
) -> TempDir {
    let dir = tempdir().unwrap();
    let text = fs::read_to_string(folder(name).join(ADAPTER_CONFIG)).unwrap();
    let mut fields: Value = serde_json::from_str(&text).unwrap();
    change(&mut fields);
    fs::write(dir.path().join(ADAPTER_CONFIG), fields.to_string()).unwrap();
    let from = Checkpoint::open(folder(name).join(ADAPTER_WEIGHTS[0])).unwrap();
    let kept: Vec<_> =
        from.tensors().iter().filter_map(|tensor| Some((rename(&tensor.name)?, tensor))).collect();
    let spec = |(name, tensor): &(String, &outsize_checkpoint::TensorInfo)| {
        TensorSpec::new(name.clone(), tensor.dtype, tensor.shape.clone())
    };
    let specs = kept.iter().map(spec).collect();
    let mut to = FileWriter::create(dir.path().join(ADAPTER_WEIGHTS[0]), specs).unwrap();
    for (name, tensor) in &kept {
        to.write(name, &from.read(tensor).unwrap()).unwrap();
    }
    to.finish().unwrap();
    dir
}

fn refused(folder: &Path, model: &ModelConfig) -> String {
    LoraAdapter::open(folder, model).unwrap_err().to_string()
}

#[test]
fn names_with_the_adapter_are_read() {
    let model = config("gqa");
    let named = |name: &str| Some(name.replace(".weight", ".default.weight"));
    let dir = changed("llama", |_| {}, named);
    let found = LoraAdapter::open(dir.path(), &model).unwrap().parts().unwrap();
    let parts = LoraAdapter::open(folder("llama"), &model).unwrap().parts().unwrap();
    assert_eq!(found.len(), parts.len());
    assert!(found.iter().all(|(path, part)| bytes(part) == bytes(&parts[path])));
}

#[test]
fn names_of_other_versions_of_transformers_are_read() {
    let model = config("gemma3-images");
    let parts = LoraAdapter::open(folder("gemma3-images"), &model).unwrap();
    let seen = parts.passed_over();
    assert!(seen > 0);
    let parts = parts.parts().unwrap();
    for other in ["language_model.model.", "model."] {
        let renamed = |name: &str| Some(name.replace("model.language_model.", other));
        let dir = changed("gemma3-images", |_| {}, renamed);
        let adapter = LoraAdapter::open(dir.path(), &model).unwrap();
        assert_eq!(adapter.passed_over(), seen);
        let found = adapter.parts().unwrap();
        assert_eq!(found.len(), parts.len());
        assert!(found.iter().all(|(path, part)| bytes(part) == bytes(&parts[path])));
    }
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let model = config("gqa");
    let all = |name: &str| Some(name.to_owned());
    let first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    let with = |change: &dyn Fn(&mut Value), rename: &dyn Fn(&str) -> Option<String>| {
        let dir = changed("llama", |fields| change(fields), rename);
        refused(dir.path(), &model)
    };
    let as_it_is = |_: &mut Value| {};
    let message = with(&as_it_is, &|name| (name != first).then(|| name.into()));
    assert!(message.contains(first) && message.contains("is missing"), "{message}");
    let to = |new: &'static str| {
        move |name: &str| Some(if name == first { new } else { name }.to_owned())
    };
    let message =
        with(&as_it_is, &to("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight"));
    assert!(message.contains("layers.9") && message.contains("does not have"), "{message}");
    let message = with(&as_it_is, &to("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"));
    assert!(message.contains("up_proj") && message.contains("does not name"), "{message}");
    for name in ["lora_embedding_A", "lora_magnitude_vector.weight", "lora_A.bias", "weight"] {
        let name = format!("base_model.model.model.layers.0.self_attn.q_proj.{name}").leak();
        let message = with(&as_it_is, &to(name));
        assert!(message.contains("is no part of a linear layer's adapter"), "{message}");
    }
    let message =
        with(&as_it_is, &to("base_model.model.model.layers.1.self_attn.q_proj.lora_A.x.weight"));
    assert!(message.contains("is for the same as"), "{message}");
    let message = with(&|fields| fields["r"] = json!(3), &all);
    assert!(message.contains("has the shape [4, 64]") && message.contains("[3, 64]"), "{message}");
    let message =
        with(&|fields| fields["target_modules"] = json!(["q_proj", "v_proj", "o_proj"]), &all);
    assert!(message.contains("o_proj.lora_A.weight is missing"), "{message}");
    let message = with(&|fields| fields["use_dora"] = json!(true), &all);
    assert!(message.contains("DoRA is not built in"), "{message}");
    // Of another model: one of other widths, and one of other modules.
    let message = refused(&folder("llama"), &config("qwen3"));
    assert!(message.contains("the adapter is one of gqa"), "{message}");
    let message = refused(&folder("llama"), &config("gpt2"));
    assert!(message.contains("q_proj") && message.contains("c_attn"), "{message}");
}

#[test]
fn tensors_of_experts_must_fit_too() {
    let all = |name: &str| Some(name.to_owned());
    let model = config("mixtral");
    let first = "base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight";
    let dir = changed("mixtral", |_| {}, |name| (name != first).then(|| name.into()));
    let message = refused(dir.path(), &model);
    assert!(message.contains(first) && message.contains("is missing"), "{message}");
    let dir = changed("mixtral", |fields| fields["rank_pattern"] = json!({}), all);
    let message = refused(dir.path(), &model);
    assert!(message.contains("has the shape [16, 16]") && message.contains("[8, 16]"), "{message}");
    // Of one parameter alone the names are others.
    let alone = |fields: &mut Value| fields["target_parameters"] = json!(["gate_up_proj"]);
    let dir = changed("mixtral", alone, |name| (!name.contains(".gate.")).then(|| name.into()));
    let message = refused(dir.path(), &model);
    assert!(message.contains("base_layer") && message.contains("does not name"), "{message}");
    let only = |name: &str| {
        let is_down = name.contains("experts.lora") || name.contains(".gate.");
        (!is_down).then(|| name.replace(".base_layer", ""))
    };
    let dir = changed("mixtral", alone, only);
    let found = LoraAdapter::open(dir.path(), &model).unwrap().parts().unwrap();
    let parts = LoraAdapter::open(folder("mixtral"), &model).unwrap().parts().unwrap();
    let path = "model.layers.1.block_sparse_moe.experts.3.w3.weight";
    assert_eq!(bytes(&found[path]), bytes(&parts[path]));
    assert_eq!(found.len(), 2 + 2 * 4 * 2);

    // Under the names of transformers 4 experts may be left out, and no half of one.
    let model = config("qwen3_moe");
    let apart = |keep: &dyn Fn(&str) -> bool| {
        let dir = changed("qwen3_moe-apart", |_| {}, |name| keep(name).then(|| name.into()));
        LoraAdapter::open(dir.path(), &model).map(|adapter| adapter.targets().count())
    };
    let whole = apart(&|_| true).unwrap();
    assert_eq!(apart(&|name| !name.contains("experts.3.")).unwrap(), whole - 2 * 3);
    let message = apart(&|name| !name.ends_with("experts.3.up_proj.lora_B.weight")).unwrap_err();
    assert!(message.to_string().contains("experts.3.up_proj.lora_B.weight is missing"));
    let message = apart(&|name| name.contains("none")).unwrap_err();
    assert!(message.to_string().contains("v_proj.lora_A.weight is missing"), "{message}");
}

#[test]
fn matrices_of_all_experts_are_found_under_any_name_and_in_any_types() {
    let dir = tempdir().unwrap();
    let settings = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_parameters":
        ["experts.gate_up_proj", "experts.down_proj"]}"#;
    // Of a model within another one, and of one whose matrices are taken for others.
    for base in ["glm46v-experts", "llama4-published-bf16"] {
        let model = config(base);
        let stacks: Vec<_> = model
            .modules()
            .into_iter()
            .filter_map(|module| Some((module.shape, module.stack?)))
            .filter(|(_, stack)| stack.expert == 0 && stack.first == 0)
            .collect();
        let mut found = Vec::new();
        for name in [0, 1] {
            let folder = dir.path().join(format!("{base}-{name}"));
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join(ADAPTER_CONFIG), settings).unwrap();
            let specs = stacks.iter().flat_map(|([_, inputs], stack)| {
                let (owner, field) = stack.names[name].rsplit_once('.').unwrap();
                let wrapped = if field == "down_proj" { "" } else { ".base_layer" };
                let (rank, height) = (2 * stack.experts, stack.height);
                let shapes = match stack.mistaken {
                    false => [[rank, *inputs], [height, rank]],
                    true => [[rank, height], [*inputs, rank]],
                };
                let types = [Dtype::F32, Dtype::BF16];
                ["lora_A", "lora_B"].into_iter().zip(shapes).zip(types).map(
                    move |((matrix, shape), dtype)| {
                        let name = format!("base_model.model.{owner}{wrapped}.{matrix}.weight");
                        TensorSpec::new(name, dtype, shape)
                    },
                )
            });
            let specs: Vec<_> = specs.collect();
            let mut file =
                FileWriter::create(folder.join(ADAPTER_WEIGHTS[0]), specs.clone()).unwrap();
            for spec in specs {
                let bytes = spec.shape.iter().product::<usize>() * spec.dtype.size();
                let bytes: Vec<u8> = (0..bytes).map(|at| (at % 61) as u8).collect();
                file.write(&spec.name, &bytes).unwrap();
            }
            file.finish().unwrap();
            let adapter = LoraAdapter::open(&folder, &model).unwrap();
            let parts = adapter.parts().unwrap();
            let held: usize = parts.values().flat_map(bytes).map(|bytes| bytes.len()).sum();
            assert!(adapter.bytes() > held as u64, "{base}");
            let parts: std::collections::BTreeMap<_, _> =
                parts.iter().map(|(path, part)| (path.clone(), bytes(part))).collect();
            found.push(parts);
        }
        assert!(found[0].len() > stacks.len(), "{base}");
        assert_eq!(found[0], found[1], "{base}");
    }
}

#[test]
fn types_that_are_not_built_in_are_refused() {
    let dir = tempdir().unwrap();
    fs::copy(folder("llama").join(ADAPTER_CONFIG), dir.path().join(ADAPTER_CONFIG)).unwrap();
    let name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    let specs = vec![TensorSpec::new(name, Dtype::I32, [4, 64])];
    let mut file = FileWriter::create(dir.path().join(ADAPTER_WEIGHTS[0]), specs).unwrap();
    file.write(name, &[0; 4 * 4 * 64]).unwrap();
    file.finish().unwrap();
    let message = refused(dir.path(), &config("gqa"));
    assert!(message.contains("must be of F32, BF16 or F16"), "{message}");
}

#[test]
fn folders_without_an_adapter_are_named() {
    let model = config("gqa");
    let message = refused(&crate::common::base("gqa"), &model);
    assert!(message.contains("holds a whole model"), "{message}");
    let dir = tempdir().unwrap();
    assert!(refused(dir.path(), &model).contains("has no adapter_config.json"));
    assert!(refused(&dir.path().join("none"), &model).contains("no such folder"));
    let file = folder("llama").join(ADAPTER_CONFIG);
    assert!(refused(&file, &model).contains("it is a file"));
    fs::copy(&file, dir.path().join(ADAPTER_CONFIG)).unwrap();
    assert!(
        refused(dir.path(), &model)
            .contains("has no adapter_model.safetensors or adapter_model.bin")
    );
    fs::write(dir.path().join(ADAPTER_WEIGHTS[0]), [1; 64]).unwrap();
    assert!(matches!(LoraAdapter::open(dir.path(), &model), Err(Error::Checkpoint(_))));
    fs::write(dir.path().join(ADAPTER_CONFIG), "[]").unwrap();
    assert!(refused(dir.path(), &model).contains("is not a JSON object"));
}

#[test]
fn damaged_files_give_errors_or_an_adapter() {
    for (name, base, weights) in [
        ("llama", "gqa", ADAPTER_WEIGHTS[0]),
        ("llama-bin", "gqa", ADAPTER_WEIGHTS[1]),
        ("mixtral", "mixtral", ADAPTER_WEIGHTS[0]),
    ] {
        let model = config(base);
        let dir = tempdir().unwrap();
        let whole = fs::read(folder(name).join(weights)).unwrap();
        fs::copy(folder(name).join(ADAPTER_CONFIG), dir.path().join(ADAPTER_CONFIG)).unwrap();
        let file = dir.path().join(weights);
        let try_it = |bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            LoraAdapter::open(dir.path(), &model).and_then(|adapter| adapter.parts()).is_ok()
        };
        assert!(try_it(&whole), "{name}");
        for cut in (0..whole.len()).step_by(97) {
            assert!(!try_it(&whole[..cut]), "{name}, {cut} bytes");
        }
        // A byte of the header or of the directory, wherever that is.
        let (ends, mut refused) = (whole.len().saturating_sub(900), 0);
        for at in (0..900).chain(ends..whole.len()).step_by(7) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x11;
            refused += usize::from(!try_it(&bytes));
        }
        assert!(refused > 40, "{name}: {refused}");
    }
}
