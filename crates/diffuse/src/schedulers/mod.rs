//! From noise to a picture in steps: what to ask a model for, and what to make of its answer.

mod config;
mod consistency;
mod ddim;
mod dpm_solver;
mod euler;
mod flow_match;
mod kind;
mod noise_schedule;
mod pndm;
mod sigma_spacing;
mod sigmas;

pub use self::config::SchedulerConfig;
use self::config::Spacing;
use self::consistency::Consistency;
use self::ddim::Ddim;
use self::dpm_solver::DpmSolver;
use self::euler::Euler;
use self::flow_match::FlowMatchEuler;
pub use self::kind::{ChosenSteps, PredictionType, SchedulerChoice, SchedulerKind};
use self::pndm::Pndm;
use crate::error::Error;

/// A scheduler with its timesteps and what it remembers of a picture under way.
#[derive(Debug, Clone)]
pub struct Scheduler {
    timesteps: Vec<f32>,
    /// Steps done.
    index: usize,
    method: Method,
}

#[derive(Debug, Clone)]
enum Method {
    Ddim(Ddim),
    Pndm(Pndm),
    Euler(Euler),
    DpmSolver(DpmSolver),
    FlowMatchEuler(FlowMatchEuler),
    Consistency(Consistency),
}

impl Scheduler {
    /// A scheduler for a picture of `steps` steps.
    ///
    /// # Errors
    /// [`Error::Steps`]: no steps, more than the configuration has timesteps for, or a
    /// configuration that divides by zero.
    pub fn new(config: &SchedulerConfig, steps: usize) -> Result<Self, Error> {
        let most = config.train_timesteps;
        let refused = |reason: String| Error::Steps { steps, reason };
        if !(1..=most).contains(&steps) {
            return Err(refused(format!("choose 1 to {most}")));
        }
        let (timesteps, method) = match config.kind {
            SchedulerKind::Ddim => {
                let (method, timesteps) = Ddim::new(config, steps);
                (timesteps, Method::Ddim(method))
            }
            SchedulerKind::Pndm => {
                if !config.skip_prk_steps && steps < 4 {
                    return Err(refused("Runge-Kutta steps need at least 4".to_owned()));
                }
                let (method, timesteps) = Pndm::new(config, steps);
                (timesteps, Method::Pndm(method))
            }
            SchedulerKind::Lcm | SchedulerKind::Tcd => {
                let (method, timesteps) = Consistency::new(config, steps).map_err(refused)?;
                (timesteps, Method::Consistency(method))
            }
            SchedulerKind::Euler | SchedulerKind::EulerAncestral => {
                let (method, timesteps) = Euler::new(config, steps);
                (timesteps, Method::Euler(method))
            }
            SchedulerKind::DpmSolver => {
                let (method, timesteps) = DpmSolver::new(config, steps);
                if !method.descends() {
                    return Err(refused(
                        "two of them would have the same noise: choose fewer".to_owned(),
                    ));
                }
                (timesteps, Method::DpmSolver(method))
            }
            SchedulerKind::FlowMatchEuler => {
                let (flow, spacing) = (&config.flow, config.sigma_spacing);
                let (method, timesteps) =
                    FlowMatchEuler::new(flow, spacing, most, steps).map_err(refused)?;
                return Ok(Self { timesteps, index: 0, method: Method::FlowMatchEuler(method) });
            }
        };
        if let Some(timestep) = timesteps.iter().find(|one| !(0.0..most as f32).contains(*one)) {
            return Err(refused(format!(
                "they would begin at timestep {timestep}, and the model was trained on 0 to {}: \
                 choose fewer, or a smaller `steps_offset`",
                most - 1
            )));
        }
        let scheduler = Self { timesteps, index: 0, method };
        match scheduler.first_not_finite() {
            Some(timestep) => Err(refused(format!(
                "at timestep {timestep} they would give values that are not finite: with the betas \
                 of the configuration there is no noise, or nothing of the picture"
            ))),
            None => Ok(scheduler),
        }
    }

    /// The first timestep that makes infinity, or no number at all, of a number: configurations can
    /// ask for a division by zero in many ways.
    fn first_not_finite(&self) -> Option<f32> {
        let (mut tried, mut sample) = (self.clone(), [0.5]);
        self.timesteps.iter().copied().find(|_| {
            let divisor = tried.input_divisor();
            tried.step(&[0.25], &mut sample, &mut || vec![1.0]);
            !divisor.is_finite() || !sample[0].is_finite()
        })
    }

    /// The timestep of each call of the model that is to come. There may be more of them than
    /// steps.
    pub fn timesteps(&self) -> &[f32] {
        &self.timesteps[self.index..]
    }

    /// Leaves out so many calls, to go on from a picture with [noise added](Self::add_noise).
    pub fn skip(&mut self, calls: usize) {
        self.index = self.timesteps.len().min(self.index + calls);
    }

    /// Makes of a picture the sample that the next call is to see, with such normal noise.
    pub fn add_noise(&self, sample: &mut [f32], noise: &[f32]) {
        let Some(&timestep) = self.timesteps.get(self.index) else {
            return;
        };
        let of_alpha = |alpha: f32| (alpha.sqrt(), (1.0 - alpha).sqrt());
        let (signal, deviation) = match &self.method {
            Method::Ddim(ddim) => of_alpha(ddim.alpha(timestep as i64)),
            Method::Pndm(pndm) => of_alpha(pndm.alpha(timestep as i64)),
            Method::Consistency(consistency) => of_alpha(consistency.alpha(timestep as i64)),
            Method::Euler(euler) => (1.0, euler.sigma(self.index)),
            Method::DpmSolver(solver) => solver.shares(self.index),
            Method::FlowMatchEuler(euler) => {
                (1.0 - euler.sigma(self.index), euler.sigma(self.index))
            }
        };
        for (sample, noise) in sample.iter_mut().zip(noise) {
            *sample = signal * *sample + deviation * noise;
        }
    }

    /// What normal noise is multiplied with to begin.
    pub fn initial_scale(&self) -> f32 {
        match &self.method {
            Method::Euler(euler) => euler.initial_scale(),
            _ => 1.0,
        }
    }

    /// What the sample is divided by for the model's next call.
    pub fn input_divisor(&self) -> f32 {
        match &self.method {
            Method::Euler(euler) => euler.input_divisor(self.index),
            _ => 1.0,
        }
    }

    /// One step: `output` is what the model made of `sample` at the next of the
    /// [timesteps](Self::timesteps), and `sample` becomes what the model is to see then. Both have
    /// the same length; any order of values will do. `draw` gives as much normal noise, in that
    /// order, for schedulers that add some. Does nothing once all timesteps are done.
    pub fn step(&mut self, output: &[f32], sample: &mut [f32], draw: &mut dyn FnMut() -> Vec<f32>) {
        let Some(&timestep) = self.timesteps.get(self.index) else {
            return;
        };
        match &mut self.method {
            Method::Ddim(ddim) => ddim.step(timestep as i64, output, sample),
            Method::Pndm(pndm) => pndm.step(timestep as i64, output, sample),
            Method::Euler(euler) => euler.step(self.index, output, sample, draw),
            Method::Consistency(consistency) => consistency.step(self.index, output, sample, draw),
            Method::DpmSolver(solver) => solver.step(self.index, output, sample),
            Method::FlowMatchEuler(flow) => flow.step(self.index, output, sample),
        }
        self.index += 1;
    }
}

/// The timesteps of a configuration's spacing, falling; `of` is the number of those of training,
/// and `divisions` into how many parts they are divided, which may be one more than steps.
fn spaced(spacing: Spacing, of: usize, steps: usize, divisions: usize, offset: usize) -> Vec<f64> {
    let whole = of as f64;
    let timestep = |index: usize| match spacing {
        Spacing::Leading => ((divisions - 1 - index) * (of / divisions) + offset) as f64,
        Spacing::Linspace if divisions == 1 => 0.0,
        Spacing::Linspace => {
            (divisions - 1 - index) as f64 * ((whole - 1.0) / (divisions - 1) as f64)
        }
        Spacing::Trailing => {
            (whole - index as f64 * (whole / steps as f64)).round_ties_even() - 1.0
        }
    };
    (0..steps).map(timestep).collect()
}

/// The products of alphas, with the one before the first timestep.
#[derive(Debug, Clone)]
struct AlphasCumprod {
    values: Vec<f32>,
    before: f32,
}

impl AlphasCumprod {
    fn new(config: &SchedulerConfig) -> Self {
        let values = config.betas.alphas_cumprod(config.train_timesteps, config.zero_snr);
        let before = if config.alpha_to_one { 1.0 } else { values[0] };
        Self { values, before }
    }

    fn at(&self, timestep: i64) -> f32 {
        match usize::try_from(timestep) {
            Ok(timestep) => self.values[timestep.min(self.values.len() - 1)],
            Err(_) => self.before,
        }
    }
}
