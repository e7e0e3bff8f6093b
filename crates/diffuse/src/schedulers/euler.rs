//! Euler's method on noise levels. Karras et al. 2022, algorithm 2 without churn; or with as much
//! noise added at each step as makes it a step of the diffusion ("ancestral").

use super::config::{SchedulerConfig, Spacing};
use super::kind::{PredictionType, SchedulerKind};
use super::sigmas::Sigmas;
use super::spaced;

#[derive(Debug, Clone)]
pub(super) struct Euler {
    /// Of each step, and at the end.
    sigmas: Vec<f32>,
    prediction: PredictionType,
    leading: bool,
    ancestral: bool,
}

impl Euler {
    pub fn new(config: &SchedulerConfig, steps: usize) -> (Self, Vec<f32>) {
        let levels = Sigmas::new(config);
        let of = config.train_timesteps;
        let mut timesteps = spaced(config.spacing, of, steps, steps, config.steps_offset);
        for timestep in &mut timesteps {
            *timestep = match config.spacing {
                // In 32 bits, as diffusers.
                Spacing::Linspace => f64::from(*timestep as f32),
                _ => timestep.round_ties_even(),
            };
        }
        let mut sigmas: Vec<f64> = timesteps.iter().map(|timestep| levels.at(*timestep)).collect();
        let [least, greatest] = config.sigma_range;
        let range = [least.unwrap_or(sigmas[steps - 1]), greatest.unwrap_or(sigmas[0])];
        if let Some(spread) = levels.spread(config.sigma_spacing, range, steps) {
            (sigmas, timesteps) = spread;
        }
        let euler = Self {
            sigmas: levels.with_last(sigmas, config),
            prediction: config.prediction,
            leading: config.spacing == Spacing::Leading,
            ancestral: config.kind == SchedulerKind::EulerAncestral,
        };
        (euler, timesteps.into_iter().map(|timestep| timestep as f32).collect())
    }

    pub fn initial_scale(&self) -> f32 {
        let greatest = self.sigmas.iter().copied().fold(0.0, f32::max);
        match self.leading {
            true => (greatest * greatest + 1.0).sqrt(),
            false => greatest,
        }
    }

    /// The noise level of a step.
    pub fn sigma(&self, index: usize) -> f32 {
        self.sigmas[index.min(self.sigmas.len() - 1)]
    }

    pub fn input_divisor(&self, index: usize) -> f32 {
        let sigma = self.sigma(index);
        (sigma * sigma + 1.0).sqrt()
    }

    /// `draw` gives as much normal noise as there are values.
    pub fn step(
        &self,
        index: usize,
        output: &[f32],
        sample: &mut [f32],
        draw: &mut dyn FnMut() -> Vec<f32>,
    ) {
        let (sigma, mut next) = (self.sigmas[index], self.sigmas[index + 1]);
        let mut added = 0.0;
        if self.ancestral {
            let (from, to) = (sigma * sigma, next * next);
            added = (to * (from - to) / from).max(0.0).sqrt();
            next = (to - added * added).max(0.0).sqrt();
        }
        let square = sigma * sigma + 1.0;
        for (sample, &output) in sample.iter_mut().zip(output) {
            let picture = match self.prediction {
                PredictionType::Sample => output,
                PredictionType::Epsilon => *sample - sigma * output,
                PredictionType::Velocity => output * (-sigma / square.sqrt()) + *sample / square,
            };
            *sample += (*sample - picture) / sigma * (next - sigma);
        }
        if added > 0.0 {
            for (sample, noise) in sample.iter_mut().zip(draw()) {
                *sample += noise * added;
            }
        }
    }
}
