//! Where weights and biases are placed does not change a bit of the logits.

use std::collections::HashMap;

use burn::tensor::Device;
use outsize_checkpoint::Checkpoint;
use outsize_core::{Access, FloatType, Options, dispatch};
use outsize_models::arch::LlamaForCausalLm;
use outsize_models::{CacheOptions, Decoder, Init, KvCache, Logits, ModelConfig, WhenFull};
use outsize_plan::{Budget, Residency};

/// Passes that go past windows: a long one and some short ones.
fn run(config: &ModelConfig, mut pass: impl FnMut(&[u32], &mut KvCache) -> Vec<f32>) -> Vec<f32> {
    let options = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(20) };
    let mut cache = KvCache::new(config.cache(), &options, &Device::flex()).unwrap();
    let ids: Vec<u32> = (0..30).map(|i| i * 37 % 90).collect();
    let passes = [&ids[..24], &ids[24..25], &ids[25..]];
    passes.into_iter().flat_map(|ids| pass(ids, &mut cache)).collect()
}

fn forward(model: &LlamaForCausalLm, ids: &[u32], cache: &mut KvCache) -> Vec<f32> {
    let logits = model.forward(ids, cache, Logits::All).unwrap();
    logits.into_data().try_to_vec().unwrap()
}

#[test]
fn streamed_or_resident_the_bits_are_the_same() {
    for name in ["mlp-bias-gelu-tanh", "qwen2-window", "qwen2-layer-types-bf16"] {
        let (config, model) = crate::common::load(name);
        let expected = run(&config, |ids, cache| forward(&model, ids, cache));
        let checkpoint = Checkpoint::open(crate::common::folder(name)).unwrap();
        let weights = config.weights().into_iter();
        let access: HashMap<String, Access> =
            weights.map(|weight| (weight.name, weight.access)).collect();
        let biases: Vec<&String> = access.keys().filter(|name| name.ends_with("bias")).collect();
        let (mut streamed_biases, mut resident_biases, mut maps) = (0, 0, 0);
        for kibibytes in (16..=640).step_by(48) {
            let options = Options {
                budget: Budget::parse(&format!("cpu={kibibytes}KiB")).unwrap(),
                float_type: FloatType::AsStored,
                access: access.clone(),
                // Several tiles for each matrix.
                tile_bytes: 700,
                read_bytes: 4096,
                ..Options::default()
            };
            let model: LlamaForCausalLm = config.build(&Init::new(&Device::flex())).unwrap();
            let tree = outsize_core::tree(&model, &checkpoint, &options).unwrap();
            let plan = outsize_plan::Options {
                // Nothing is too small to be streamed.
                small_tensor: 0,
                ..options.plan()
            };
            let Ok(map) = outsize_plan::infer(&tree, &options.budget, &plan) else {
                continue;
            };
            maps += 1;
            for &bias in &biases {
                match map.residency(bias) {
                    Some(Residency::Streamed) => streamed_biases += 1,
                    _ => resident_biases += 1,
                }
            }
            let model = dispatch(model, &checkpoint, &map, &options).unwrap();
            let found =
                run(&config, |ids, cache| model.run(|model| forward(model, ids, cache)).unwrap());
            let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && found.len() == expected.len(), "{name} in {kibibytes} KiB");
        }
        println!(
            "{name}: {maps} maps, biases {streamed_biases} streamed, {resident_biases} resident"
        );
        assert!(maps > 4 && streamed_biases > 0 && resident_biases > 0, "{name}");
    }
}
