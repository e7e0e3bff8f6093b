//! Checkpoints, adapters and what PEFT and torch make of them
//! (`scripts/fixtures/lora_training.py`).

#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use outsize_checkpoint::Checkpoint;
use outsize_core::{LowRank, Options};
use outsize_models::{ActivationDtype, Batch, DispatchedDecoder, Init, ModelConfig};
use outsize_plan::{Budget, infer};

/// All checkpoints of `training.rs`, but those whose layers share keys and values, or see tokens
/// that are chosen.
pub const ALL: [&str; 43] = [
    "afmoe",
    "apertus",
    "arcee",
    "axk1",
    "cohere",
    "deepseek_v3",
    "ernie4_5_moe",
    "falcon_h1",
    "falcon_mamba",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_oss",
    "granite",
    "granitemoehybrid",
    "granitemoeshared",
    "jamba",
    "kimi_linear",
    "laguna",
    "lfm2_moe",
    "lfm3",
    "llama",
    "llama-tied",
    "llama4",
    "longcat_flash",
    "mimo_v2_flash",
    "minimax",
    "minimax_m2",
    "mistral-window",
    "mixtral",
    "muse_glimmer",
    "muse_spark",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "olmo",
    "olmo_hybrid",
    "phi",
    "qwen2_moe",
    "qwen3-tied",
    "qwen3_next",
    "starcoder2",
    "step3p7",
];

#[derive(serde::Deserialize)]
pub struct Expected {
    pub ids: Vec<Vec<u32>>,
    pub padding: Vec<usize>,
    pub prompts: Vec<usize>,
    pub scale: f64,
    pub loss: f64,
    pub losses: Vec<f64>,
    pub adamw: AdamW,
}

#[derive(serde::Deserialize)]
pub struct AdamW {
    pub lr: f64,
    pub betas: [f32; 2],
    pub eps: f32,
    pub weight_decay: f32,
}

pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/training").join(name)
}

impl Expected {
    pub fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(folder(name).join("lora/expected.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub fn batch(&self) -> Batch {
        let rows = self.ids.iter().zip(&self.padding).map(|(ids, padding)| &ids[*padding..]);
        Batch::left_padded(&rows.collect::<Vec<_>>()).unwrap()
    }

    /// The batch in two parts, its first row and the others, each with what its positions are to
    /// predict.
    pub fn parts(&self) -> [(Batch, Vec<Option<u32>>); 2] {
        let targets = self.targets();
        let tokens = targets.len() / self.ids.len();
        [0..1, 1..self.ids.len()].map(|rows| {
            let ids: Vec<_> = rows.clone().map(|row| &self.ids[row][self.padding[row]..]).collect();
            let batch = Batch::left_padded(&ids).unwrap();
            let targets = targets[rows.start * tokens..rows.end * tokens].chunks(tokens);
            let cut = tokens - batch.tokens();
            (batch, targets.flat_map(|row| &row[cut..]).copied().collect())
        })
    }

    /// What each position is to predict.
    pub fn targets(&self) -> Vec<Option<u32>> {
        let rows = self.ids.iter().zip(self.padding.iter().zip(&self.prompts));
        rows.flat_map(|(ids, (padding, prompt))| {
            let next = ids
                .iter()
                .enumerate()
                .skip(1)
                .map(move |(at, id)| (at >= padding + (*prompt).max(1)).then_some(*id));
            next.chain([None])
        })
        .collect()
    }
}

/// The values of a matrix, and its shape.
pub type Matrix = (Vec<f32>, [usize; 2]);

/// The matrices of a file, by path of the weight.
pub fn matrices(name: &str, file: &str) -> BTreeMap<String, [Matrix; 2]> {
    let file = Checkpoint::open(folder(name).join("lora").join(file)).unwrap();
    let mut found = BTreeMap::new();
    for info in file.tensors() {
        let Some(module) = info.name.strip_suffix(".down") else { continue };
        let read = |part: &str| {
            let info = file.get(&format!("{module}.{part}")).unwrap();
            let bytes = file.read(info).unwrap();
            let values = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            (values.collect(), info.shape.clone().try_into().unwrap())
        };
        found.insert(format!("{module}.weight"), [read("down"), read("up")]);
    }
    found
}

pub fn adapter(name: &str, scale: f64) -> HashMap<String, LowRank> {
    let matrices = matrices(name, "adapter.safetensors").into_iter();
    let parts = matrices.map(|(path, matrices)| {
        let [down, up] = matrices.map(|(values, shape)| {
            Tensor::from_data(TensorData::new(values, shape), &Device::flex())
        });
        (path, LowRank { down, up, scale, in_out: name == "gpt2" })
    });
    parts.collect()
}

/// The model in as much memory, if that is enough, its configuration, and how many bytes are
/// streamed.
pub fn model(name: &str, memory: &str) -> Option<(DispatchedDecoder, ModelConfig, u64)> {
    let text = std::fs::read_to_string(folder(name).join("config.json")).unwrap();
    let config = ModelConfig::from_json(&text).unwrap();
    let (model, streamed) = placed(&config, &folder(name), memory, ActivationDtype::F32)?;
    Some((model, config, streamed))
}

/// A checkpoint's model in as much memory, if that is enough, and how many bytes are streamed.
pub fn placed(
    config: &ModelConfig,
    path: &Path,
    memory: &str,
    compute: ActivationDtype,
) -> Option<(DispatchedDecoder, u64)> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let tree = config.tree("", checkpoint.tensors()).unwrap();
    let options = Options {
        budget: Budget::parse(&format!("cpu={memory}")).unwrap(),
        tile_bytes: 1400,
        read_bytes: 4096,
        min_ring_bytes: 0,
        // What a backward pass holds of a block, such as weights of norms, is never streamed.
        small_tensor_bytes: 600,
        ..config.options(checkpoint.tensors())
    };
    let map = infer(&tree, &options.budget, &options.plan()).ok()?;
    let init = Init { device: Device::flex(), compute };
    let model = config.dispatch(&init, &checkpoint, &map, &options).unwrap();
    Some((model, map.streamed_bytes()))
}
