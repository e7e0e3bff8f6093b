//! What a GPU's pools hold stays below what the plan says. One test: the pools are the process's.

mod common;

use burn::tensor::Device;
use common::gpu::{computes_nothing, figures, of_zeros, there_is_a_gpu, written};
use common::reference::values;
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{Devices, Options, gpu, gpu_overhead};
use outsize_models::{Batch, CacheOptions, Init, KvCache, Logits, ModelConfig};
use outsize_plan::{Budget, ManualMap, Tier, from_assignment};
use serde_json::{Map, Value};
use std::path::Path;

const SMALL: &str = r#"{"model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 4096}"#;

#[test]
fn a_gpu_holds_no_more_than_planned() {
    if !there_is_a_gpu() {
        return;
    }
    let in_folder = |config: &ModelConfig, make: Make, tokens, budget| {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let checkpoint = make(&dir.path().join("model"), config.tensors(Dtype::BF16));
        check(config, &checkpoint, tokens, budget);
    };
    in_folder(&ModelConfig::from_json(SMALL).unwrap(), written, 96, "gpu0=400MiB,cpu=400MiB");
    if computes_nothing() {
        for (name, config) in published() {
            println!("{name}");
            in_folder(&config, of_zeros, 1000, "gpu0=8GiB,cpu=8GiB");
        }
    }
}

/// Makes a checkpoint of such tensors in a folder.
type Make = fn(&Path, Vec<(String, Dtype, Vec<usize>)>) -> Checkpoint;

/// Published models at their full width, cut to two layers; without those that have Mamba-2 layers,
/// which hold more than is planned (docs/gpu.md).
fn published() -> Vec<(String, ModelConfig)> {
    let models: Map<String, Value> = serde_json::from_str(include_str!("published.json")).unwrap();
    let cut = |(name, mut model): (String, Value)| {
        let fields = model["config"].as_object_mut().unwrap();
        fields.remove("layer_types");
        for layers in ["num_hidden_layers", "n_layer"] {
            fields.entry(layers).and_modify(|layers| *layers = 2.into());
        }
        (name, ModelConfig::from_json(&model["config"].to_string()).unwrap())
    };
    let has_mamba = |model: &Value| {
        let fields = model["config"].as_object().unwrap();
        fields.keys().any(|field| field.starts_with("mamba"))
    };
    models.into_iter().filter(|(_, model)| !has_mamba(model)).map(cut).collect()
}

/// A prompt of so many tokens and two more, with weights on each tier.
fn check(config: &ModelConfig, checkpoint: &Checkpoint, tokens: u32, budget: &str) {
    let device = &gpu(0).unwrap().device;
    let held = || device.memory_pool_usage().unwrap();
    let context = CacheOptions::new(tokens as usize + 32);
    let mut tree = config.tree("model", checkpoint.tensors()).unwrap();
    config.add_work(&mut tree, &context, Logits::Last);
    // Streamed first: what a pool held once it may keep.
    for map in [r#"{"": "disk"}"#, r#"{"": "cpu"}"#, r#"{"": "gpu0"}"#] {
        let options = Options {
            budget: Budget::parse(budget).unwrap(),
            ..config.options(checkpoint.tensors())
        };
        let plan = outsize_plan::Options {
            figures: figures(),
            gpu_activations: gpu_overhead(config.activation_bytes(
                tokens as usize,
                &context,
                Logits::Last,
            )),
            ..options.plan()
        };
        let manual = ManualMap::parse(map).unwrap();
        let assignment = manual.assign(&tree, &options.budget, &plan).unwrap();
        let placed = from_assignment(&tree, &assignment, &options.budget, &plan).unwrap();
        let planned = placed.tiers().iter().find(|held| held.tier == Tier::Gpu(0)).unwrap();
        let devices = config.cache_devices(&placed, &Devices::of_map(&placed).unwrap());
        let mut cache = KvCache::on(config.cache(), &context, &devices).unwrap();
        let init = Init::new(&Device::flex());
        let model = config.dispatch(&init, checkpoint, &placed, &options).unwrap();
        let ids: Vec<u32> = (0..tokens).collect();
        let mut most = 0;
        for ids in [&ids[..], &[5], &[6]] {
            let batch = Batch::left_padded(&[ids]).unwrap();
            values(model.forward_batch(&batch, &mut cache, Logits::Last).unwrap().unwrap());
            most = most.max(held().bytes_reserved);
        }
        let usage = held();
        println!(
            "{map}: {most} bytes held at most, {} in use, planned {planned:?}",
            usage.bytes_in_use
        );
        assert!(most <= planned.sum(), "{map}: {most} bytes, planned {}", planned.sum());
        assert!(planned.weights > 0 || most < checkpoint.total_bytes() + planned.sum());
        drop((model, cache));
        device.memory_cleanup();
    }
}
