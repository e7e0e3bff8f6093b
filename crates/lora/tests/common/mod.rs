//! Models of the reference fixtures, with their adapters.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use outsize_checkpoint::Checkpoint;
use outsize_core::Options;
use outsize_models::{
    ActivationDtype, Batch, CacheOptions, DispatchedDecoder, Init, KvCache, Logits, ModelConfig,
};
use outsize_plan::{Budget, infer};
use serde_json::Value;

/// Each adapter, and the fixture of the models crate that it is for.
pub const ADAPTERS: &[(&str, &str)] = &[
    ("llama", "gqa"),
    ("llama-bf16", "gqa-bf16"),
    ("llama-head-f16", "gqa"),
    ("llama-w4", "llama-compressed-w4-bf16"),
    ("llama-w8-ragged", "llama-compressed-w8-ragged-bf16"),
    ("llama-bin", "gqa"),
    ("gpt2", "gpt2"),
    ("qwen3-rslora-patterns", "qwen3"),
    ("qwen3-layers", "qwen3"),
    ("phi3", "phi3"),
    ("gemma2", "gemma2"),
    ("gemma3-images", "gemma3-images"),
    ("qwen3_moe", "qwen3_moe"),
    ("qwen2_moe", "qwen2_moe"),
    ("deepseek_v3", "deepseek_v3"),
    ("qwen3_next", "qwen3_next"),
    ("gpt_neox", "gpt_neox"),
    ("bloom", "bloom"),
    ("t5", "t5-gated-bf16"),
    ("granitemoehybrid", "granitemoehybrid"),
    ("nemotron_h", "nemotron_h-published-bf16"),
    ("mixtral", "mixtral"),
    ("mixtral-apart", "mixtral"),
    ("qwen3_moe-all-linear", "qwen3_moe"),
    ("qwen3_moe-apart", "qwen3_moe"),
    ("gpt_oss", "gpt_oss"),
    ("llama4", "llama4"),
    ("granitemoe", "granitemoe"),
    ("nemotron_h-experts", "nemotron_h"),
    ("phimoe", "phimoe"),
];

/// The folder of an adapter.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The folder of a fixture of the models crate.
pub fn base(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures").join(name)
}

pub fn config(base_name: &str) -> ModelConfig {
    let text = std::fs::read_to_string(base(base_name).join("config.json")).unwrap();
    ModelConfig::from_json(&text).unwrap()
}

/// The base in so many bytes beside what readers take, if they are enough, in small tiles; and the
/// bytes that are streamed.
pub fn dispatched(base_name: &str, bytes: u64) -> Option<(DispatchedDecoder, u64)> {
    let config = config(base_name);
    let checkpoint = Checkpoint::open(base(base_name)).unwrap();
    let tree = config.tree(base_name, checkpoint.tensors()).unwrap();
    let options = Options {
        budget: Budget::parse(&format!("cpu={}", bytes + tree.staging_bytes)).unwrap(),
        tile_bytes: 700,
        read_bytes: 4096,
        min_ring_bytes: 0,
        ..config.options(checkpoint.tensors())
    };
    // Nothing is too small to be streamed.
    let plan = outsize_plan::Options { small_tensor: 0, ..options.plan() };
    let map = infer(&tree, &options.budget, &plan).ok()?;
    let init = Init { device: Device::flex(), compute: ActivationDtype::F32 };
    let model = config.dispatch(&init, &checkpoint, &map, &options).unwrap();
    Some((model, map.streamed_bytes()))
}

/// What PEFT computed.
pub struct Expected {
    pub ids: Vec<u32>,
    pub greedy: Vec<u32>,
    pub decoder_ids: Vec<u32>,
    pub logits: Vec<f32>,
    /// Without the adapter.
    pub plain: Vec<f32>,
}

pub fn expected(name: &str) -> Expected {
    let text = std::fs::read_to_string(folder(name).join("expected.json")).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let ids = |key: &str| -> Vec<u32> { serde_json::from_value(value[key].clone()).unwrap() };
    let file = Checkpoint::open(folder(name).join("expected.safetensors")).unwrap();
    let floats = |tensor: &str| {
        let bytes = file.read(file.get(tensor).unwrap()).unwrap();
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    Expected {
        ids: ids("ids"),
        greedy: ids("greedy"),
        decoder_ids: ids("decoder_ids"),
        logits: floats("logits"),
        plain: floats("plain"),
    }
}

/// The logits of all positions of `ids`, or of `decoder_ids` where an encoder reads these.
pub fn logits(
    model: &DispatchedDecoder,
    config: &ModelConfig,
    ids: &[u32],
    decoder_ids: &[u32],
) -> Vec<f32> {
    let batch = |ids: &[u32]| Batch::left_padded(&[ids]).unwrap();
    let options = CacheOptions { prompt: ids.len(), ..CacheOptions::new(64) };
    let mut cache = KvCache::new(config.cache(), &options, &Device::flex()).unwrap();
    let text = match decoder_ids {
        [] => ids,
        text => {
            model.encode_batch(&batch(ids), &mut cache).unwrap().unwrap();
            text
        }
    };
    let logits = model.forward_batch(&batch(text), &mut cache, Logits::All).unwrap().unwrap();
    logits.into_data().try_to_vec().unwrap()
}

/// Greatest difference over greatest reference.
pub fn difference(found: &[f32], reference: &[f32]) -> f32 {
    assert_eq!(found.len(), reference.len());
    let largest = reference.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let worst = found.iter().zip(reference).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(found.iter().all(|value| value.is_finite()));
    worst / largest
}
