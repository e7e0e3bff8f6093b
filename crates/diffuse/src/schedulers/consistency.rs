//! Models that were distilled to make a picture in a few steps, each of which goes all the way to
//! the picture and back into less noise: of latent consistency (LCM, Luo et al. 2023) and of
//! trajectory consistency (TCD, Zheng et al. 2024).

use super::AlphasCumprod;
use super::config::SchedulerConfig;
use super::kind::{PredictionType, SchedulerKind};

/// The deviation of data that consistency models are made for.
const SIGMA_DATA: f64 = 0.5;

#[derive(Debug, Clone)]
pub(super) struct Consistency {
    alphas: AlphasCumprod,
    timesteps: Vec<f32>,
    prediction: PredictionType,
    clip: Option<f32>,
    /// What a timestep is multiplied with where it says how much of the sample stays; `None`: a
    /// step ends in the noise that the model found, and none is added.
    scaling: Option<f64>,
}

impl Consistency {
    /// Fails with what is wrong about the number of steps.
    pub fn new(config: &SchedulerConfig, steps: usize) -> Result<(Self, Vec<f32>), String> {
        let (taught, stride) = (config.begun_steps, config.train_timesteps / config.taught_steps);
        if steps > taught {
            return Err(match config.taught_steps > taught {
                true => format!("that strength leaves {taught} of those the model was taught"),
                false => format!("the model was taught {taught}: choose 1 to {taught}"),
            });
        }
        // As evenly as whole numbers allow, in 64 bits as diffusers does.
        let index = |step: usize| (step as f64 * (taught as f64 / steps as f64)).floor() as usize;
        let timestep = |step| ((taught - index(step)) * stride - 1) as f32;
        let timesteps: Vec<f32> = (0..steps).map(timestep).collect();
        let consistency = Self {
            alphas: AlphasCumprod::new(config),
            timesteps: timesteps.clone(),
            prediction: config.prediction,
            clip: config.clip,
            scaling: (config.kind == SchedulerKind::Lcm).then_some(config.timestep_scaling),
        };
        Ok((consistency, timesteps))
    }

    /// The product of alphas at a timestep.
    pub fn alpha(&self, timestep: i64) -> f32 {
        self.alphas.at(timestep)
    }

    /// `draw` gives as much normal noise as there are values.
    pub fn step(
        &self,
        index: usize,
        output: &[f32],
        sample: &mut [f32],
        draw: &mut dyn FnMut() -> Vec<f32>,
    ) {
        let timestep = self.timesteps[index];
        let next = self.timesteps.get(index + 1).copied();
        let shares = |timestep: f32| {
            let alpha = self.alphas.at(timestep as i64);
            (alpha.sqrt(), (1.0 - alpha).sqrt())
        };
        let from = shares(timestep);
        let (signal, deviation) = shares(next.unwrap_or(0.0));
        match self.scaling {
            None => {
                for (sample, &output) in sample.iter_mut().zip(output) {
                    let (picture, noise) = self.prediction.picture_and_noise(output, *sample, from);
                    *sample = signal * picture + deviation * noise;
                }
            }
            Some(scaling) => {
                let scaled = f64::from(timestep) * scaling;
                let (of_data, square) = (SIGMA_DATA.powi(2), scaled.powi(2) + SIGMA_DATA.powi(2));
                let (keep, take) = ((of_data / square) as f32, (scaled / square.sqrt()) as f32);
                for (sample, &output) in sample.iter_mut().zip(output) {
                    let (picture, _) = self.prediction.picture_and_noise(output, *sample, from);
                    let picture = self.clip.map_or(picture, |clip| picture.clamp(-clip, clip));
                    *sample = take * picture + keep * *sample;
                }
                if next.is_some() {
                    for (sample, noise) in sample.iter_mut().zip(draw()) {
                        *sample = signal * *sample + deviation * noise;
                    }
                }
            }
        }
    }
}
