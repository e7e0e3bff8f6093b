//! DDIM without noise added (eta 0). Song, Meng and Ermon 2020.

use super::config::SchedulerConfig;
use super::kind::PredictionType;
use super::{AlphasCumprod, spaced};

#[derive(Debug, Clone)]
pub(super) struct Ddim {
    alphas: AlphasCumprod,
    /// Timesteps between two steps.
    stride: i64,
    prediction: PredictionType,
    clip: Option<f32>,
}

impl Ddim {
    pub fn new(config: &SchedulerConfig, steps: usize) -> (Self, Vec<f32>) {
        let of = config.train_timesteps;
        let timesteps = spaced(config.spacing, of, steps, steps, config.steps_offset);
        let ddim = Self {
            alphas: AlphasCumprod::new(config),
            stride: (of / steps) as i64,
            prediction: config.prediction,
            clip: config.clip,
        };
        (ddim, timesteps.into_iter().map(|t| t.round_ties_even() as f32).collect())
    }

    /// The product of alphas at a timestep.
    pub fn alpha(&self, timestep: i64) -> f32 {
        self.alphas.at(timestep)
    }

    pub fn step(&self, timestep: i64, output: &[f32], sample: &mut [f32]) {
        let (alpha, previous) = (self.alphas.at(timestep), self.alphas.at(timestep - self.stride));
        let (signal, noise) = (alpha.sqrt(), (1.0 - alpha).sqrt());
        let (next_signal, next_noise) = (previous.sqrt(), (1.0 - previous).sqrt());
        for (sample, &output) in sample.iter_mut().zip(output) {
            let (mut picture, epsilon) =
                self.prediction.picture_and_noise(output, *sample, (signal, noise));
            if let Some(clip) = self.clip {
                picture = picture.clamp(-clip, clip);
            }
            *sample = next_signal * picture + next_noise * epsilon;
        }
    }
}
