//! Noise levels: the noise's standard deviation beside a picture of scale one.

use super::config::SchedulerConfig;
use super::sigma_spacing::SigmaSpacing;

/// What stands for a signal of zero, so that the noise level stays finite.
const LEAST_ALPHA: f32 = 1.0 / (1u32 << 24) as f32;

/// The noise levels of all timesteps of training, and those of a picture.
pub(super) struct Sigmas {
    /// Rising with the timestep.
    training: Vec<f32>,
}

impl Sigmas {
    pub fn new(config: &SchedulerConfig) -> Self {
        let mut alphas = config.betas.alphas_cumprod(config.train_timesteps, config.zero_snr);
        if let (true, Some(last)) = (config.zero_snr, alphas.last_mut()) {
            *last = LEAST_ALPHA;
        }
        let training = alphas.into_iter().map(|alpha| ((1.0 - alpha) / alpha).sqrt()).collect();
        Self { training }
    }

    /// How many timesteps of training have a logarithm of signal to noise of at least `lambda`.
    pub fn timesteps_above(&self, lambda: f64) -> usize {
        self.training.iter().filter(|sigma| -f64::from(sigma.ln()) >= lambda).count()
    }

    /// The noise level of a timestep between those of training.
    pub fn at(&self, timestep: f64) -> f64 {
        let last = self.training.len() - 1;
        let below = (timestep.max(0.0) as usize).min(last);
        let (low, high) = (self.training[below], self.training[(below + 1).min(last)]);
        let share = (timestep - below as f64).clamp(0.0, 1.0);
        f64::from(low) + share * (f64::from(high) - f64::from(low))
    }

    /// The least noise level of training.
    pub fn least(&self) -> f64 {
        f64::from(self.training[0])
    }

    /// The greatest noise level of training.
    pub fn greatest(&self) -> f64 {
        f64::from(self.training[self.training.len() - 1])
    }

    /// The timestep of a noise level.
    fn timestep(&self, sigma: f64) -> f64 {
        let log = sigma.max(1e-10).ln();
        let above = self.training.partition_point(|sigma| f64::from(sigma.ln()) <= log);
        let low = above.saturating_sub(1).min(self.training.len().saturating_sub(2));
        let high = (low + 1).min(self.training.len() - 1);
        let (from, to) = (self.training[low].ln(), self.training[high].ln());
        let share = ((f64::from(from) - log) / f64::from(from - to)).clamp(0.0, 1.0);
        (1.0 - share) * low as f64 + share * high as f64
    }

    /// The noise levels of `steps` steps between two, falling, and their timesteps; `None` if they
    /// are those of the timesteps.
    pub fn spread(
        &self,
        spacing: SigmaSpacing,
        range: [f64; 2],
        steps: usize,
    ) -> Option<(Vec<f64>, Vec<f64>)> {
        let sigmas = spacing.spread(range, steps)?;
        let timesteps = sigmas.iter().map(|sigma| self.timestep(*sigma)).collect();
        Some((sigmas, timesteps))
    }

    /// The levels in 32 bits, with the one at the end.
    pub fn with_last(&self, sigmas: Vec<f64>, config: &SchedulerConfig) -> Vec<f32> {
        let last = if config.ends_at_sigma_min { self.least() } else { 0.0 };
        sigmas.into_iter().chain([last]).map(|sigma| sigma as f32).collect()
    }
}
