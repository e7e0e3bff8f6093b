//! A small classifier on generated data, trained for some steps on however many ranks.
#![allow(dead_code, reason = "each test file uses a part")]

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use outsize_train::{Accelerator, DataLoaderBuilder, Error};
use serde::{Deserialize, Serialize};

pub const FEATURES: usize = 6;
pub const CLASSES: usize = 3;

/// A run that must give the same weights on any number of ranks.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Run {
    /// Items of all ranks' batches together.
    pub batch_size: usize,
    pub items: usize,
    pub accumulation: usize,
    pub adam: bool,
    pub clip: Option<f64>,
    pub steps: usize,
    /// What part of the hidden features is dropped.
    pub dropout: f64,
}

impl Run {
    pub const PLAIN: Self = Self {
        batch_size: 12,
        items: 48,
        accumulation: 1,
        adam: false,
        clip: None,
        steps: 20,
        dropout: 0.0,
    };
}

#[derive(Module, Debug)]
pub struct Classifier {
    pub hidden: Linear,
    pub dropout: Dropout,
    pub output: Linear,
}

impl Classifier {
    /// Weights that depend on nothing but `salt`.
    pub fn new(salt: u64, device: &Device) -> Self {
        let linear = |inputs: usize, outputs: usize, salt: u64| {
            let weight = noise(salt, inputs * outputs, 0.5);
            let bias = noise(salt + 1, outputs, 0.1);
            let mut layer = LinearConfig::new(inputs, outputs).init(device);
            layer.weight = Param::from_data(TensorData::new(weight, [inputs, outputs]), device);
            layer.bias = Some(Param::from_data(TensorData::new(bias, [outputs]), device));
            layer
        };
        Self {
            hidden: linear(FEATURES, 16, salt),
            dropout: DropoutConfig::new(0.0).init(),
            output: linear(16, CLASSES, salt + 2),
        }
    }

    pub fn forward(&self, features: Tensor<2>) -> Tensor<2> {
        let hidden = activation::tanh(self.hidden.forward(features));
        self.output.forward(self.dropout.forward(hidden))
    }

    pub fn weights(&self) -> Vec<f32> {
        let tensors = [
            self.hidden.weight.val().into_data(),
            self.hidden.bias.as_ref().unwrap().val().into_data(),
            self.output.weight.val().into_data(),
            self.output.bias.as_ref().unwrap().val().into_data(),
        ];
        tensors.iter().flat_map(|data| data.as_slice::<f32>().unwrap().to_vec()).collect()
    }
}

/// Numbers in `-scale..scale` that look random.
pub fn noise(salt: u64, length: usize, scale: f32) -> Vec<f32> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..length + 4).map(|_| next() * scale).skip(4).collect()
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sample {
    pub features: Vec<f32>,
    pub class: i64,
}

pub fn samples(count: usize) -> InMemDataset<Sample> {
    let sample = |index: usize| {
        let features = noise(1000 + index as u64, FEATURES, 1.0);
        let class = i64::from(features[0] > 0.0) + i64::from(features[1] + features[2] > 0.3);
        Sample { features, class }
    };
    InMemDataset::new((0..count).map(sample).collect())
}

#[derive(Debug, Clone)]
pub struct SampleBatch {
    pub features: Tensor<2>,
    pub classes: Tensor<1, Int>,
}

#[derive(Clone)]
pub struct SampleBatcher;

impl Batcher<Sample, SampleBatch> for SampleBatcher {
    fn batch(&self, items: Vec<Sample>, device: &Device) -> SampleBatch {
        let features: Vec<f32> = items.iter().flat_map(|item| item.features.clone()).collect();
        let classes: Vec<i64> = items.iter().map(|item| item.class).collect();
        SampleBatch {
            features: Tensor::from_data(TensorData::new(features, [items.len(), FEATURES]), device),
            classes: Tensor::from_data(TensorData::new(classes, [items.len()]), device),
        }
    }
}

pub fn cross_entropy(output: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&output.device()).forward(output, classes)
}

pub fn optimizer(adam: bool) -> ModuleOptimizer {
    if adam { AdamConfig::new().init() } else { SgdConfig::new().init() }
}

/// The weights after `run.steps` optimizer steps.
pub fn train(accelerator: &Accelerator, run: &Run) -> Result<Vec<f32>, Error> {
    // Every rank begins with other weights: rank 0's are taken.
    let mut model = Classifier::new(accelerator.process_index() as u64, &accelerator.device());
    model.dropout = DropoutConfig::new(run.dropout).init();
    let loader = DataLoaderBuilder::new(SampleBatcher)
        .batch_size(run.batch_size)
        .shuffle(7)
        .build(samples(run.items));
    let peak = if run.adam { 0.01 } else { 0.2 };
    let schedule = LinearLrSchedulerConfig::new(peak, peak / 100.0, 25).init().unwrap();
    let (mut model, mut optimizer, loader, mut scheduler) =
        accelerator.prepare(model, optimizer(run.adam), loader, schedule)?;
    let mut steps = 0;
    while steps < run.steps {
        for batch in loader.iter() {
            accelerator.accumulate();
            let batch = batch.unwrap();
            let loss = cross_entropy(model.forward(batch.features), batch.classes);
            let mut gradients = accelerator.backward(loss, &model)?;
            if let Some(clip) = run.clip {
                accelerator.clip_grad_norm(&model, &mut gradients, clip);
            }
            model = optimizer.step(scheduler.step(), model, gradients);
            steps += usize::from(accelerator.sync_gradients());
            if steps == run.steps {
                break;
            }
        }
    }
    Ok(model.weights())
}

/// The largest difference between weights.
pub fn difference(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max)
}
