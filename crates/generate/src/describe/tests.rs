use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use outsize_models::arch::LlamaForCausalLm;
use outsize_models::{Init, KvCache, presets};
use outsize_plan::{Access, WeightDtype};
use serde_json::json;
use tempfile::TempDir;

use super::*;

fn fixtures() -> Vec<PathBuf> {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    let folders = fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path());
    let gguf = |folder: &PathBuf| Some(folder.join("model.gguf")).filter(|file| file.exists());
    folders.map(|folder| gguf(&folder).unwrap_or(folder)).collect()
}

/// The tree that the pipeline makes of module and checkpoint.
fn with_weights(folder: &Path) -> Tree {
    let config = crate::read_config(folder).unwrap();
    let checkpoint = Checkpoint::open(folder).unwrap();
    let options = config.options(checkpoint.tensors());
    let init = Init::new(&Device::flex());
    match config.build::<LlamaForCausalLm>(&init) {
        Some(model) => outsize_core::tree(&model, &checkpoint, &options).unwrap(),
        None => config.tree("", checkpoint.tensors()).unwrap(),
    }
}

#[track_caller]
fn assert_same(described: &Tree, expected: &Tree, what: &Path) {
    let what = what.display();
    let names = |tree: &Tree| -> Vec<_> { tree.blocks.iter().map(|b| b.name.clone()).collect() };
    assert_eq!(names(described), names(expected), "{what}");
    for (one, other) in described.blocks.iter().zip(&expected.blocks) {
        assert_eq!(one.tensors, other.tensors, "{what}: {}", one.name);
    }
    assert_eq!(described.staging_bytes, expected.staging_bytes, "{what}");
    let modules = |tree: &Tree| -> BTreeSet<_> { tree.classes.keys().cloned().collect() };
    assert_eq!(modules(described), modules(expected), "{what}");
}

/// A folder with the preset's configuration, and a checkpoint that has all but the weights' bytes.
fn sparse(preset: &str, dtype: (&str, &str), misaligned: bool) -> TempDir {
    let place = TempDir::new().unwrap();
    let text = presets::config(preset).unwrap();
    let mut object: serde_json::Value = serde_json::from_str(text).unwrap();
    object.as_object_mut().unwrap().remove("torch_dtype");
    object["dtype"] = json!(dtype.1);
    fs::write(place.path().join("config.json"), object.to_string()).unwrap();
    let config = ModelConfig::from_json(text).unwrap();
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, dtype, shape) in config.tensors(dtype.0.parse().unwrap()) {
        let start = end;
        end += (shape.iter().product::<usize>() * dtype.size()) as u64;
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert(name, entry);
    }
    let mut json = serde_json::to_string(&header).unwrap();
    while json.len() % 8 != usize::from(misaligned) {
        json.push(' ');
    }
    let mut file = File::create(place.path().join("model.safetensors")).unwrap();
    file.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
    file.write_all(json.as_bytes()).unwrap();
    file.set_len(8 + json.len() as u64 + end).unwrap();
    place
}

#[test]
fn a_fixture_is_described_as_with_its_weights() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 21);
    for folder in fixtures {
        let expected = with_weights(&folder);
        let described = describe(&folder).unwrap();
        assert_eq!(described.source, SizeSource::Both, "{:?}", described.notes);
        assert_same(&described.tree, &expected, &folder);
        if folder.is_file() {
            continue; // A GGUF file's tensors say for themselves what they are stored in.
        }
        if folder.ends_with("llama-gptq-zeros-f16") {
            continue; // Patterns of layers that are left alone are not read: only the tensors tell.
        }
        let bare = describe(&folder.join("config.json")).unwrap();
        assert_eq!(bare.source, SizeSource::Config);
        assert_same(&bare.tree, &expected, &folder);
    }
}

fn presets_are_described_as_with_their_weights<'a>(
    presets: impl Iterator<Item = &'a str>,
    dtype: (&str, &str),
) {
    for preset in presets {
        let place = sparse(preset, dtype, false);
        let expected = with_weights(place.path());
        assert_same(&describe(place.path()).unwrap().tree, &expected, place.path());
        fs::remove_file(place.path().join("model.safetensors")).unwrap();
        let bare = describe(place.path()).unwrap();
        assert_eq!(bare.source, SizeSource::Config);
        assert_same(&bare.tree, &expected, place.path());
    }
}

// Tests that run side by side: they take long.
#[test]
fn a_preset_in_bf16_is_described_as_with_its_weights() {
    let presets = presets::names().step_by(2);
    presets_are_described_as_with_their_weights(presets, ("BF16", "bfloat16"));
}

#[test]
fn another_preset_in_bf16_is_described_as_with_its_weights() {
    let presets = presets::names().skip(1).step_by(2);
    presets_are_described_as_with_their_weights(presets, ("BF16", "bfloat16"));
}

#[test]
fn a_preset_in_f32_is_described_as_with_its_weights() {
    let tensors = |preset: &&str| {
        let config = ModelConfig::from_json(presets::config(preset).unwrap()).unwrap();
        config.tensors("F32".parse().unwrap()).len()
    };
    let presets = presets::names().filter(|preset| tensors(preset) < 5000);
    presets_are_described_as_with_their_weights(presets, ("F32", "float32"));
}

#[test]
fn casts_and_misaligned_tensors_need_readers() {
    let wide = sparse("llama-demo", ("F64", "float32"), false);
    let described = describe(wide.path()).unwrap().tree;
    assert!(described.staging_bytes > 0);
    let table = &described.blocks[0].tensors[0];
    assert_eq!((table.dtype, table.stored_bytes), (WeightDtype::F64, 2 * table.bytes));
    assert_same(&described, &with_weights(wide.path()), wide.path());
    let odd = sparse("qwen2-0.5b", ("BF16", "bfloat16"), true);
    let described = describe(odd.path()).unwrap().tree;
    assert!(described.staging_bytes > 0);
    assert_same(&described, &with_weights(odd.path()), odd.path());
}

#[test]
fn the_work_is_that_of_the_cache() {
    let place = sparse("mistral-7b", ("BF16", "bfloat16"), false);
    let mut described = describe(place.path()).unwrap();
    let kv = |described: &Described| -> u64 {
        let blocks = described.tree.blocks.iter();
        blocks.map(|block| block.work.kv_bytes).sum()
    };
    assert_eq!(kv(&described), 0);
    let cache = CacheOptions::new(6000);
    described.set_cache(&cache);
    let expected = KvCache::bytes(described.config.as_ref().unwrap().cache(), &cache);
    assert_eq!(kv(&described), expected);
}

fn write_config(folder: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let path = folder.join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(path, config.to_string()).unwrap();
}

#[test]
fn what_is_not_built_in_is_described_by_names() {
    let place = sparse("llama-demo", ("BF16", "bfloat16"), false);
    write_config(place.path(), |config| config["model_type"] = json!("falcon\u{1b}[2J"));
    let described = describe(place.path()).unwrap();
    assert_eq!(described.source, SizeSource::Headers);
    assert!(described.config.is_none());
    assert_eq!(described.architecture.unwrap(), "falcon\\u{1b}[2J");
    assert!(described.notes[0].contains("is not built in"), "{:?}", described.notes);
    assert!(!described.notes[0].contains('\u{1b}'));
    let names: Vec<_> = described.tree.blocks.iter().map(|block| &block.name).collect();
    assert_eq!((names[0].as_str(), names[1].as_str()), ("model.embed_tokens", "model.layers.0"));
    assert_eq!(names.last().unwrap().as_str(), "lm_head");
    assert_eq!(described.tree.blocks[0].tensors[0].access, Access::Whole);
    // Without the weights it is an error that names the field.
    let config = describe(&place.path().join("config.json")).unwrap_err().to_string();
    assert!(config.contains("config.json: the model type `falcon"), "{config}");
    assert!(config.contains("without weights"), "{config}");
}

#[test]
fn weights_of_another_model_are_described_by_their_names() {
    let place = sparse("llama-demo", ("BF16", "bfloat16"), false);
    write_config(place.path(), |config| config["num_hidden_layers"] = json!(17));
    let described = describe(place.path()).unwrap();
    assert_eq!(described.source, SizeSource::Headers);
    assert!(described.config.is_some());
    assert!(
        described.notes[0].contains("9 tensors are missing, \"model.layers.16."),
        "{:?}",
        described.notes
    );
    write_config(place.path(), |config| {
        config["num_hidden_layers"] = json!(15);
        config["intermediate_size"] = json!(8);
    });
    let notes = describe(place.path()).unwrap().notes;
    assert!(
        notes[0].contains("of another shape") && notes[0].contains("not the model's"),
        "{notes:?}"
    );
}

#[test]
fn a_model_without_a_head_is_described_without_one() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/embeddings");
    for folder in fs::read_dir(all).unwrap() {
        let folder = folder.unwrap().path();
        let config = crate::read_embedding_config(&folder).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let mut tree = config.tree("", checkpoint.tensors()).unwrap();
        config.add_work(&mut tree, &CacheOptions::new(0), Logits::Last);
        let described = describe(&folder).unwrap();
        assert_eq!(described.source, SizeSource::Both);
        assert_same(&described.tree, &tree, &folder);
        let is_said = described.notes.iter().any(|note| note.contains("it has no head"));
        assert!(is_said && described.config.unwrap().is_headless(), "{}", folder.display());
        // Every tensor is one of its own, the table too, which is read by rows alone.
        assert_eq!(tree.tensors().count(), checkpoint.tensors().len());
        let table = tree.tensors().find(|tensor| tensor.name.contains("embed_tokens")).unwrap();
        assert_eq!(table.access, Access::Rows);
    }
}

#[test]
fn what_describes_nothing_is_refused() {
    let place = TempDir::new().unwrap();
    let said = |path: &Path| describe(path).unwrap_err().to_string();
    assert!(said(place.path()).contains("describes no model"));
    assert!(said(&place.path().join("config.json")).contains("no such file"));
    assert!(said(&place.path().join("x")).contains("no such file"));
    fs::write(place.path().join("config.json"), "[1]").unwrap();
    assert!(said(place.path()).contains("is not a JSON object"));
    fs::write(place.path().join("config.json"), [b'{', 0xff, b'}']).unwrap();
    assert!(said(place.path()).contains("is not a JSON object"));
    fs::write(place.path().join("model.safetensors"), "{}").unwrap();
    assert!(said(place.path()).contains("model.safetensors"));
}

#[test]
fn two_hundred_thousand_names_are_as_many_tensors() {
    let tensors: Vec<TensorInfo> = (0..64)
        .flat_map(|layer| (0..1042).map(move |expert| (layer, expert)))
        .flat_map(|(layer, expert)| {
            ["gate_proj", "up_proj", "down_proj"]
                .map(|part| format!("model.layers.{layer}.mlp.experts.{expert}.{part}.weight"))
        })
        .map(|name| TensorInfo {
            name,
            dtype: outsize_checkpoint::Dtype::F8E4M3,
            shape: vec![2048, 7168],
            file: 0,
            offset: 0,
            len: 2048 * 7168,
        })
        .collect();
    assert!(tensors.len() > 200_000);
    let described = Described::new(Path::new("x"), None, Some(&tensors)).unwrap();
    assert_eq!(described.tree.blocks.len(), 64);
    let found: usize = described.tree.blocks.iter().map(|block| block.tensors.len()).sum();
    assert_eq!(found, tensors.len());
    assert_eq!(described.tree.blocks[10].name, "model.layers.10");
}
