//! DPM-Solver++, multistep, of first or second order ("2M"). Lu et al. 2022.

use super::config::{SchedulerConfig, Spacing};
use super::kind::PredictionType;
use super::noise_schedule::Betas;
use super::sigma_spacing::SigmaSpacing;
use super::sigmas::Sigmas;
use super::spaced;

/// Below so many steps the last ones are of lower order, where that is asked for.
const FEW_STEPS: usize = 15;

#[derive(Debug, Clone)]
pub(super) struct DpmSolver {
    /// Of each step, and at the end.
    sigmas: Vec<f32>,
    prediction: PredictionType,
    second_order: bool,
    heun: bool,
    first_order_at_last: bool,
    /// The picture predicted a step before.
    before: Vec<f32>,
}

/// A noise level as the signal's and the noise's share, and the logarithm of their ratio.
#[derive(Clone, Copy)]
struct Level {
    alpha: f32,
    sigma: f32,
    lambda: f32,
}

impl DpmSolver {
    pub fn new(config: &SchedulerConfig, steps: usize) -> (Self, Vec<f32>) {
        let levels = Sigmas::new(config);
        let of = match config.lambda_min {
            lambda if lambda.is_finite() => levels.timesteps_above(lambda).max(1),
            _ => config.train_timesteps,
        };
        let mut timesteps = match config.spacing {
            // From where the noise is clipped, in strides over all timesteps.
            Spacing::Trailing => {
                let stride = config.train_timesteps as f64 / steps as f64;
                let timestep = |index: usize| of as f64 - index as f64 * stride;
                let timesteps = (0..steps).map(timestep).take_while(|timestep| *timestep > 0.0);
                timesteps.map(|timestep| timestep.round_ties_even() - 1.0).collect()
            }
            spacing => spaced(spacing, of, steps, steps + 1, config.steps_offset),
        };
        timesteps.iter_mut().for_each(|timestep| *timestep = timestep.round_ties_even());
        let mut sigmas: Vec<f64> = timesteps.iter().map(|timestep| levels.at(*timestep)).collect();
        let range = [levels.least(), levels.greatest()];
        if let Some(spread) = levels.spread(config.sigma_spacing, range, steps) {
            (sigmas, timesteps) = spread;
            let rounded = config.sigma_spacing == SigmaSpacing::Karras
                && config.betas != Betas::SquaredCosine;
            for timestep in &mut timesteps {
                *timestep = if rounded { timestep.round_ties_even() } else { timestep.trunc() };
            }
        }
        let few = config.lower_order_final && timesteps.len() < FEW_STEPS;
        let solver = Self {
            sigmas: levels.with_last(sigmas, config),
            prediction: config.prediction,
            second_order: config.solver_order == 2,
            heun: config.heun,
            first_order_at_last: config.euler_at_final || few || !config.ends_at_sigma_min,
            before: Vec::new(),
        };
        (solver, timesteps.into_iter().map(|timestep| timestep as f32).collect())
    }

    /// Whether each step has less noise than the one before.
    pub fn descends(&self) -> bool {
        self.sigmas[..self.sigmas.len() - 1].is_sorted_by(|one, next| one > next)
    }

    fn level(&self, index: usize) -> Level {
        let alpha = 1.0 / (self.sigmas[index] * self.sigmas[index] + 1.0).sqrt();
        let sigma = self.sigmas[index] * alpha;
        Level { alpha, sigma, lambda: alpha.ln() - sigma.ln() }
    }

    /// The shares of picture and noise before a step.
    pub fn shares(&self, index: usize) -> (f32, f32) {
        let level = self.level(index);
        (level.alpha, level.sigma)
    }

    pub fn step(&mut self, index: usize, output: &[f32], sample: &mut [f32]) {
        let (now, next) = (self.level(index), self.level(index + 1));
        let picture = |(output, sample): (&f32, &f32)| match self.prediction {
            PredictionType::Epsilon => (sample - now.sigma * output) / now.alpha,
            PredictionType::Sample => *output,
            PredictionType::Velocity => now.alpha * sample - now.sigma * output,
        };
        let pictures: Vec<f32> = output.iter().zip(&*sample).map(picture).collect();
        let h = next.lambda - now.lambda;
        let change = next.alpha * ((-h).exp() - 1.0);
        let last = index + 2 == self.sigmas.len();
        let second_order =
            self.second_order && !self.before.is_empty() && !(last && self.first_order_at_last);
        let slope = match (second_order, self.heun) {
            (false, _) => 0.0,
            (true, false) => -0.5 * change,
            (true, true) => next.alpha * (((-h).exp() - 1.0) / h + 1.0),
        };
        let ratio = match second_order {
            true => h / (now.lambda - self.level(index - 1).lambda),
            false => 0.0,
        };
        for (at, sample) in sample.iter_mut().enumerate() {
            *sample = next.sigma / now.sigma * *sample - change * pictures[at];
            if second_order {
                *sample += slope * (ratio * (pictures[at] - self.before[at]));
            }
        }
        self.before = pictures;
    }
}
