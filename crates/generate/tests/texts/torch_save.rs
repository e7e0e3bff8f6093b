//! A model in PyTorch's own files computes what its safetensors twin computes, resident and
//! streamed. `scripts/fixtures/torch_bin.py` wrote the small ones with torch.

#[path = "../../../checkpoint/tests/common/torch.rs"]
mod made;

use crate::common::{PROCESS, cpu, least};
use made::{Archive, Entry, Pickle};
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
use outsize_generate::{
    GenerationWorkload, Pipeline, PipelineError, PipelineSettings, SizeSource, describe,
    read_config,
};
use outsize_models::{CacheOptions, Logits, ModelConfig, RandomWeights};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn open(folder: &Path, budget: Option<u64>) -> Result<Pipeline, PipelineError> {
    let workload = GenerationWorkload {
        logits: Logits::All,
        process: PROCESS,
        ..GenerationWorkload::new(CacheOptions::new(40), 32)
    };
    let settings = PipelineSettings {
        planning: Default::default(),
        max_memory: cpu(budget),
        workload,
        stop: None,
    };
    Pipeline::open(folder, read_config(folder)?, &settings, |_| {})
}

fn bits(pipeline: &mut Pipeline, ids: &[u32]) -> Vec<u32> {
    let mut all = Vec::new();
    pipeline.logits(ids, |rows| all.extend(rows.iter().map(|logit| logit.to_bits()))).unwrap();
    pipeline.clear();
    all
}

#[test]
fn what_torch_wrote_gives_the_logits_of_its_twin() {
    let ids: Vec<u32> = (0..30).map(|i| (i * 13 + 5) % 64).collect();
    for name in ["gpt2", "relu2-tied"] {
        let folder = crates().join("generate/tests/fixtures/torch").join(name);
        let twin = crates().join("models/tests/fixtures").join(name);
        let expected = bits(&mut open(&twin, None).unwrap(), &ids);
        assert!(expected.len() >= 64 * ids.len());
        assert!(bits(&mut open(&folder, None).unwrap(), &ids) == expected, "{name}");

        // And it is planned and described alike: what is tied counts once.
        let [mut found, expected] = [&folder, &twin].map(|folder| describe(folder).unwrap());
        assert_eq!(found.source, SizeSource::Both, "{:?}", found.notes);
        assert_eq!(found.notes, expected.notes);
        for (one, other) in found.tree.blocks.iter_mut().zip(&expected.tree.blocks) {
            assert_eq!(one, other, "{name}");
        }
        assert_eq!(found.tree, expected.tree);
    }
}

#[test]
fn a_file_alone_is_described_by_its_names() {
    let folder = crates().join("generate/tests/fixtures/torch/gpt2");
    let place = TempDir::new().unwrap();
    let file = place.path().join("weights.bin");
    fs::copy(folder.join("pytorch_model.bin"), &file).unwrap();
    let found = describe(&file).unwrap();
    assert_eq!(found.source, SizeSource::Headers);
    let tensors: Vec<_> = found.tree.tensors().collect();
    let tied: Vec<_> = tensors.iter().filter(|tensor| tensor.tied.is_some()).collect();
    let names: Vec<_> = tied.iter().map(|tensor| &*tensor.name).collect();
    assert_eq!(names, ["transformer.wte.weight", "lm_head.weight"]);
    assert_eq!(tied[0].tied, tied[1].tied);
    // Of a file that is never read, the configuration tells the sizes.
    let refused = crates().join("checkpoint/tests/fixtures/torch/refused/legacy.bin");
    fs::copy(refused, place.path().join("pytorch_model.bin")).unwrap();
    fs::remove_file(file).unwrap();
    assert!(describe(place.path()).is_err());
    fs::copy(folder.join("config.json"), place.path().join("config.json")).unwrap();
    assert_eq!(describe(place.path()).unwrap().source, SizeSource::Config);
}

/// A Llama of some 40 MB, so that a ring is smaller than the weights.
const CONFIG: &str = r#"{
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 3000, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128, "tie_word_embeddings": false
}"#;

/// Writes the model as safetensors, and reads it back.
fn wide(folder: &Path) -> Checkpoint {
    let weights = ModelConfig::from_json(CONFIG).unwrap().weights();
    let spec =
        |name: &String, shape: &Vec<usize>| TensorSpec::new(name, Dtype::BF16, shape.clone());
    let specs = weights.iter().map(|weight| spec(&weight.name, &weight.shape)).collect();
    let mut writer = ShardWriter::create(folder, specs, u64::MAX).unwrap();
    writer.add_file("config.json", CONFIG.as_bytes()).unwrap();
    for weight in &weights {
        let mut values = vec![0.0; weight.elements() as usize];
        RandomWeights::new(3).fill(weight, 0, &mut values);
        let bytes = values.iter().flat_map(|v| half::bf16::from_f32(4.0 * v).to_le_bytes());
        writer.write(&weight.name, &bytes.collect::<Vec<_>>()).unwrap();
    }
    writer.finish().unwrap();
    Checkpoint::open(folder).unwrap()
}

/// Some tensors of a checkpoint as a file of torch.save, each in a storage of its own.
fn save<'a>(from: &Checkpoint, names: impl Iterator<Item = &'a str>, path: &Path) {
    let mut archive = Archive::new();
    let mut entries = Vec::new();
    for (key, name) in names.enumerate() {
        let tensor = from.get(name).unwrap();
        let shape: Vec<_> = tensor.shape.iter().map(|size| *size as u64).collect();
        entries.push(Entry::new(name, "BFloat16Storage", &key.to_string(), &shape));
        archive.add(&format!("model/data/{key}"), &from.read(tensor).unwrap());
    }
    archive.add("model/data.pkl", &Pickle::of(&entries));
    archive.add("model/byteorder", b"little");
    fs::write(path, archive.finish()).unwrap();
}

#[test]
fn streamed_it_gives_the_same_bits() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [twin, whole, sharded] = ["twin", "whole", "sharded"].map(|name| dir.path().join(name));
    let from = wide(&twin);
    let names: Vec<_> = from.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    for folder in [&whole, &sharded] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("config.json"), CONFIG).unwrap();
    }
    save(&from, names.iter().copied(), &whole.join("pytorch_model.bin"));
    let mut weight_map = serde_json::Map::new();
    for shard in 0..3 {
        let file = format!("pytorch_model-{:05}-of-00003.bin", shard + 1);
        let of_shard = || names.iter().copied().skip(shard).step_by(3);
        save(&from, of_shard(), &sharded.join(&file));
        weight_map.extend(of_shard().map(|name| (name.to_owned(), file.clone().into())));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": weight_map }).to_string();
    fs::write(sharded.join("pytorch_model.bin.index.json"), index).unwrap();

    let ids: Vec<u32> = (0..20).map(|i| (i * 131 + 7) % 3000).collect();
    let mut resident = open(&twin, None).unwrap();
    let expected = bits(&mut resident, &ids);
    let weights = resident.device_map().resident_bytes();
    drop(resident);
    for folder in [&twin, &whole, &sharded] {
        let mut resident = open(folder, None).unwrap();
        assert_eq!(resident.device_map().streamed_bytes(), 0);
        assert!(bits(&mut resident, &ids) == expected, "{}", folder.display());
        drop(resident);
        let least = least(open(folder, Some(1)).unwrap_err());
        let mut streamed = open(folder, Some(least + weights / 4)).unwrap();
        assert!(streamed.device_map().streamed_bytes() > 0);
        assert!(bits(&mut streamed, &ids) == expected, "{}", folder.display());
    }
}
