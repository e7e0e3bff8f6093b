//! How an adapter, or all of a model, learns.

use std::path::PathBuf;
use std::time::Duration;

use burn::optim::AdamWConfig;
use outsize_train::offload::OffloadedAdamW;

use crate::FinetuneError;

/// How the learning rate changes from step to step, after it has risen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LearningRateSchedule {
    /// It stays.
    Constant,
    /// It falls in a line, to zero behind the last step.
    #[default]
    Linear,
    /// It falls along half a cosine, likewise.
    Cosine,
}

/// How an adapter, or all of a model, learns: by AdamW, with the settings of transformers' trainer
/// where nothing is said, but for the learning rate.
#[derive(Debug, Clone)]
pub struct FinetuneOptions {
    /// How often all examples are learned from.
    pub epochs: usize,
    /// The most steps, if fewer.
    pub max_steps: Option<usize>,
    /// Batches of one step.
    pub accumulate: usize,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// How it changes.
    pub schedule: LearningRateSchedule,
    /// Steps in which it rises in a line.
    pub warmup_steps: usize,
    /// What a weight loses of itself in a step, times the learning rate.
    pub weight_decay: f32,
    /// The betas of AdamW.
    pub betas: [f32; 2],
    /// The epsilon of AdamW.
    pub epsilon: f32,
    /// The greatest norm of the gradients of a step; none for any.
    pub max_grad_norm: Option<f64>,
    /// Draws the order of the examples in each epoch; none for that of the file.
    pub shuffle: Option<u64>,
    /// Where the state is saved now and then, and when the caller ends the training: from there the
    /// same training goes on. One with other settings or examples is refused.
    pub states: Option<PathBuf>,
    /// The least time between two states.
    pub save_after: Duration,
}

impl Default for FinetuneOptions {
    fn default() -> Self {
        Self {
            epochs: 1,
            max_steps: None,
            accumulate: 1,
            learning_rate: 2e-4,
            schedule: LearningRateSchedule::default(),
            warmup_steps: 0,
            weight_decay: 0.0,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            max_grad_norm: Some(1.0),
            shuffle: Some(0),
            states: None,
            save_after: Duration::from_secs(300),
        }
    }
}

impl FinetuneOptions {
    /// The same for all weights, which learn with a lower rate than an adapter: 1e-5.
    pub fn full() -> Self {
        Self { learning_rate: 1e-5, ..Self::default() }
    }

    /// The learning rate of step `step` of `steps`, counted from 0, as transformers' schedules have
    /// it.
    pub fn rate(&self, step: usize, steps: usize) -> f64 {
        if step < self.warmup_steps {
            return self.learning_rate * step as f64 / self.warmup_steps as f64;
        }
        let left = steps.saturating_sub(self.warmup_steps).max(1) as f64;
        let along = (step - self.warmup_steps) as f64 / left;
        self.learning_rate
            * match self.schedule {
                LearningRateSchedule::Constant => 1.0,
                LearningRateSchedule::Linear => (1.0 - along).max(0.0),
                LearningRateSchedule::Cosine => {
                    (0.5 * (1.0 + (std::f64::consts::PI * along).cos())).max(0.0)
                }
            }
    }

    /// Steps of a training whose epochs have so many.
    pub(crate) fn steps(&self, of_epoch: usize) -> usize {
        let steps = self.epochs.saturating_mul(of_epoch);
        self.max_steps.map_or(steps, |most| most.min(steps))
    }

    pub(crate) fn adamw(&self) -> AdamWConfig {
        AdamWConfig::new()
            .with_beta_1(self.betas[0])
            .with_beta_2(self.betas[1])
            .with_epsilon(self.epsilon)
            .with_weight_decay(self.weight_decay)
    }

    /// What of it is for weights whose states are on the disk.
    pub(crate) fn offloaded(&self) -> OffloadedAdamW {
        let Self { betas, epsilon, weight_decay, max_grad_norm, .. } = *self;
        OffloadedAdamW { betas, epsilon, weight_decay, max_grad_norm }
    }

    /// Whether all settings are in range.
    ///
    /// # Errors
    /// One that is not.
    pub fn check(&self) -> Result<(), FinetuneError> {
        let positive = |what, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(FinetuneError::Setting {
                what,
                value: value.to_string(),
                expected: "it must be a number above 0".into(),
            }),
        };
        positive("the number of epochs", self.epochs as f64)?;
        positive("the number of batches of a step", self.accumulate as f64)?;
        positive("the learning rate", self.learning_rate)?;
        self.max_steps.map_or(Ok(()), |most| positive("the most steps", most as f64))?;
        Ok(self.offloaded().check()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_transformers() {
        // get_scheduler("linear" and "cosine", AdamW of 1.0, num_warmup_steps=2,
        // num_training_steps=6).
        let rates = |schedule| {
            let options = FinetuneOptions {
                learning_rate: 1.0,
                warmup_steps: 2,
                schedule,
                ..FinetuneOptions::default()
            };
            (0..6).map(|step| options.rate(step, 6)).collect::<Vec<_>>()
        };
        assert_eq!(rates(LearningRateSchedule::Linear), [0.0, 0.5, 1.0, 0.75, 0.5, 0.25]);
        assert_eq!(rates(LearningRateSchedule::Constant), [0.0, 0.5, 1.0, 1.0, 1.0, 1.0]);
        let cosine = [0.0, 0.5, 1.0, 0.853_553_390_593_273_7, 0.5, 0.146_446_609_406_726_3];
        for (found, want) in rates(LearningRateSchedule::Cosine).iter().zip(cosine) {
            assert!((found - want).abs() < 1e-12, "{found} for {want}");
        }
    }
}
