//! Adapters of random values.

use std::path::Path;

use burn::tensor::{Device, Distribution, Tensor};
use outsize_core::LowRank;
use outsize_lora::{LoraConfig, save};
use outsize_models::ModelConfig;

/// An adapter for a model of this configuration.
pub fn random_adapter(folder: &Path, model: &str, config: &LoraConfig) {
    let model = ModelConfig::from_json(model).unwrap();
    let parts = config.targets(&model).unwrap().into_iter().map(|target| {
        let matrix = |shape: [usize; 2]| -> Tensor<2> {
            let spread = 0.2 / (shape[1] as f64).sqrt();
            Tensor::random(shape, Distribution::Normal(0.0, spread), &Device::flex())
        };
        let [out, inputs] = target.shape;
        let (down, up) = (matrix([target.rank, inputs]), matrix([out, target.rank]));
        (target.path, LowRank { down, up, scale: target.scale, in_out: target.in_out })
    });
    save(folder, config, &model, &parts.collect()).unwrap();
}
