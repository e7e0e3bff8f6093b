//! PNDM: Runge-Kutta steps unless they are skipped, then a linear multistep method. Liu et
//! al. 2022.

use super::config::SchedulerConfig;
use super::kind::PredictionType;
use super::{AlphasCumprod, spaced};

/// Outputs that the multistep method combines.
const ORDER: usize = 4;

#[derive(Debug, Clone)]
pub(super) struct Pndm {
    alphas: AlphasCumprod,
    /// Timesteps between two steps.
    stride: i64,
    velocity: bool,
    /// The timesteps of Runge-Kutta steps, of which each takes four calls.
    runge_kutta: Vec<i64>,
    /// Calls so far.
    calls: usize,
    /// The last outputs, newest last.
    outputs: Vec<Vec<f32>>,
    /// The sample from which a step of several calls began.
    start: Vec<f32>,
    /// The weighted sum of a Runge-Kutta step's outputs.
    sum: Vec<f32>,
}

impl Pndm {
    pub fn new(config: &SchedulerConfig, steps: usize) -> (Self, Vec<f32>) {
        let of = config.train_timesteps;
        let stride = (of / steps) as i64;
        let plain = spaced(config.spacing, of, steps, steps, config.steps_offset);
        let plain: Vec<i64> = plain.into_iter().map(|t| t.round_ties_even() as i64).collect();
        let (mut runge_kutta, mut timesteps) = (Vec::new(), plain.clone());
        if !config.skip_prk_steps {
            // Each of the first three strides takes its start, its middle twice, and its end.
            for pair in plain[..ORDER].windows(2) {
                let middle = pair[1] + stride / 2;
                runge_kutta.extend([pair[0], middle, middle, pair[1]]);
            }
            timesteps = [&runge_kutta, &plain[ORDER - 1..]].concat();
        } else if steps > 1 {
            // The second one twice: there is no output before the first step.
            timesteps.insert(1, plain[1]);
        }
        let pndm = Self {
            alphas: AlphasCumprod::new(config),
            stride,
            velocity: config.prediction == PredictionType::Velocity,
            runge_kutta,
            calls: 0,
            outputs: Vec::new(),
            start: Vec::new(),
            sum: Vec::new(),
        };
        (pndm, timesteps.into_iter().map(|timestep| timestep as f32).collect())
    }

    /// The product of alphas at a timestep.
    pub fn alpha(&self, timestep: i64) -> f32 {
        self.alphas.at(timestep)
    }

    pub fn step(&mut self, timestep: i64, output: &[f32], sample: &mut [f32]) {
        match self.calls < self.runge_kutta.len() {
            true => self.runge_kutta_step(timestep, output, sample),
            false => self.multistep(timestep, output, sample),
        }
        self.calls += 1;
    }

    fn runge_kutta_step(&mut self, timestep: i64, output: &[f32], sample: &mut [f32]) {
        let call = self.calls % 4;
        let halfway = if self.calls.is_multiple_of(2) { self.stride / 2 } else { 0 };
        if call == 0 {
            self.remember(output);
            self.start = sample.to_vec();
            self.sum = vec![0.0; output.len()];
        }
        let weight = if call.is_multiple_of(3) { 1.0 / 6.0 } else { 1.0 / 3.0 };
        for (sum, output) in self.sum.iter_mut().zip(output) {
            *sum += weight * output;
        }
        let output = if call == 3 { &self.sum } else { output };
        sample.copy_from_slice(&self.start);
        let from = self.runge_kutta[self.calls / 4 * 4];
        self.advance(from, timestep - halfway, output, sample);
    }

    fn multistep(&mut self, timestep: i64, output: &[f32], sample: &mut [f32]) {
        let (mut from, mut to) = (timestep, timestep - self.stride);
        let second = self.calls == 1;
        if second {
            // The first step again, with the mean of the outputs at both of its ends.
            (from, to) = (timestep + self.stride, timestep);
            sample.copy_from_slice(&self.start);
        } else {
            self.remember(output);
        }
        if self.calls == 0 {
            self.start = sample.to_vec();
        }
        let last = |back: usize, index: usize| self.outputs[self.outputs.len() - back][index];
        let combined: Vec<f32> = (0..output.len())
            .map(|i| match self.outputs.len() {
                1 if second => (output[i] + last(1, i)) / 2.0,
                1 => output[i],
                2 => (3.0 * last(1, i) - last(2, i)) / 2.0,
                3 => (23.0 * last(1, i) - 16.0 * last(2, i) + 5.0 * last(3, i)) / 12.0,
                _ => {
                    (55.0 * last(1, i) - 59.0 * last(2, i) + 37.0 * last(3, i) - 9.0 * last(4, i))
                        / 24.0
                }
            })
            .collect();
        self.advance(from, to, &combined, sample);
    }

    fn remember(&mut self, output: &[f32]) {
        if self.outputs.len() == ORDER {
            self.outputs.remove(0);
        }
        self.outputs.push(output.to_vec());
    }

    /// Formula 9 of the paper.
    fn advance(&self, from: i64, to: i64, output: &[f32], sample: &mut [f32]) {
        let (alpha, previous) = (self.alphas.at(from), self.alphas.at(to));
        let (signal, noise) = (alpha.sqrt(), (1.0 - alpha).sqrt());
        let scale = (previous / alpha).sqrt();
        let denominator =
            alpha * (1.0 - previous).sqrt() + (alpha * (1.0 - alpha) * previous).sqrt();
        for (sample, &output) in sample.iter_mut().zip(output) {
            let epsilon = match self.velocity {
                true => signal * output + noise * *sample,
                false => output,
            };
            *sample = scale * *sample - (previous - alpha) * epsilon / denominator;
        }
    }
}
