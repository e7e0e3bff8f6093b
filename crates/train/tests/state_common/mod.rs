//! A run that can be saved after any micro-batch.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::Path;

use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::{Distribution, Tensor};
use outsize_train::data::ShardedLoader;
use outsize_train::state::TrainingState;
use outsize_train::{
    AcceleratedOptimizer, AcceleratedScheduler, Accelerator, AcceleratorBuilder, DataLoaderBuilder,
};

use crate::common::{Classifier, SampleBatch, SampleBatcher, cross_entropy, samples};

pub struct Training {
    pub accelerator: Accelerator,
    pub model: Classifier,
    pub optimizer: AcceleratedOptimizer,
    pub scheduler: AcceleratedScheduler,
    pub loader: ShardedLoader<SampleBatch>,
    /// Whether random numbers are added to the features.
    pub noise: bool,
}

pub fn builder(states: &Path) -> AcceleratorBuilder {
    Accelerator::builder().gradient_accumulation_steps(3).seed(11).state_dir(states)
}

pub fn optimizer(adam: bool) -> ModuleOptimizer {
    match adam {
        true => AdamConfig::new().init(),
        false => SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init(),
    }
}

impl Training {
    /// A run that begins; `salt` makes its weights.
    pub fn new(accelerator: Accelerator, adam: bool, salt: u64) -> Self {
        let model = Classifier::new(salt, &accelerator.device());
        let loader = DataLoaderBuilder::new(SampleBatcher).batch_size(4).shuffle(5);
        let schedule = LinearLrSchedulerConfig::new(0.05, 0.001, 40).init().unwrap();
        let (model, optimizer, loader, scheduler) = accelerator
            .prepare(model, optimizer(adam), loader.build(samples(42)), schedule)
            .unwrap();
        Self { accelerator, model, optimizer, scheduler, loader, noise: false }
    }

    pub fn state(&mut self) -> TrainingState<'_> {
        TrainingState::new()
            .model(&mut self.model)
            .optimizer(&mut self.optimizer)
            .scheduler(&mut self.scheduler)
            .data_loader(&self.loader)
    }

    pub fn save(&mut self) -> std::path::PathBuf {
        self.accelerator.clone().save_state(self.state()).unwrap()
    }

    /// Trains until the rank has taken so many batches.
    pub fn train_to(&mut self, batches: u64) {
        self.train_to_with(batches, |_| {});
    }

    /// The same, with something to do after each batch.
    pub fn train_to_with(&mut self, batches: u64, mut after: impl FnMut(&mut Self)) {
        while self.accelerator.batches_taken() < batches {
            for batch in self.loader.iter() {
                self.accelerator.accumulate();
                let mut batch = batch.unwrap();
                if self.noise {
                    let noise = Distribution::Normal(0.0, 0.1);
                    let (shape, device) = (batch.features.dims(), batch.features.device());
                    batch.features = batch.features + Tensor::random(shape, noise, &device);
                }
                let loss = cross_entropy(self.model.forward(batch.features), batch.classes);
                let gradients = self.accelerator.backward(loss, &self.model).unwrap();
                self.model =
                    self.optimizer.step(self.scheduler.step(), self.model.clone(), gradients);
                after(self);
                if self.accelerator.batches_taken() == batches {
                    break;
                }
            }
        }
    }

    /// Weights and the next learning rate.
    pub fn outcome(&mut self) -> (Vec<f32>, f64) {
        (self.model.weights(), self.scheduler.step().base())
    }
}
