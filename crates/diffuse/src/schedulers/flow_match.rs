//! Euler's method along the straight paths of flow matching: a sample is
//! `(1 - sigma) · picture + sigma · noise`. Lipman et al. 2022 (arXiv:2210.02747); noise levels are
//! shifted as Esser et al. 2024 (arXiv:2403.03206) do.

use outsize_models::{Error, Fields};

use super::sigma_spacing::SigmaSpacing;

/// The most tokens of a picture that a configuration may speak of.
const MAX_TOKENS: usize = 1 << 30;

/// What a configuration says of flow matching alone.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FlowMatchConfig {
    shift: Shift,
    /// What the last noise level before zero is stretched to.
    terminal: Option<f64>,
    /// Whether noise levels lie as far from each other before they are shifted, from 1 to that of
    /// one step; those of the timesteps of training otherwise.
    even: bool,
}

/// How far noise levels are shifted upwards.
#[derive(Debug, Clone, PartialEq)]
enum Shift {
    /// By this factor, whatever the picture.
    Static(f64),
    /// By a number that grows with the tokens of a picture: two such, and what it is for each.
    Dynamic { tokens: [usize; 2], shifts: [f64; 2], is_linear: bool, found: Option<f64> },
}

impl Default for FlowMatchConfig {
    fn default() -> Self {
        Self { shift: Shift::Static(1.0), terminal: None, even: false }
    }
}

impl FlowMatchConfig {
    pub fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        let number = |field, default, [least, most]: [f64; 2]| match fields.get(field) {
            Some(_) => fields.number_within(field, least, most),
            None => Ok(default),
        };
        let shift = match fields.flag_or("use_dynamic_shifting", false)? {
            false => Shift::Static(number("shift", 1.0, [1e-6, 1e6])?),
            true => {
                let base = fields.size_or("base_image_seq_len", 256, MAX_TOKENS)?;
                let most = fields.size_or("max_image_seq_len", 4096, MAX_TOKENS)?;
                if base == most {
                    let expected = "it must not be base_image_seq_len".to_owned();
                    return Err(fields.refuse("max_image_seq_len", expected));
                }
                let kind = fields.text("time_shift_type")?.unwrap_or("exponential");
                if !["exponential", "linear"].contains(&kind) {
                    let expected = "only \"exponential\" and \"linear\" are built in".to_owned();
                    return Err(fields.refuse("time_shift_type", expected));
                }
                let range = [-100.0, 100.0];
                Shift::Dynamic {
                    tokens: [base, most],
                    shifts: [number("base_shift", 0.5, range)?, number("max_shift", 1.15, range)?],
                    is_linear: kind == "linear",
                    found: None,
                }
            }
        };
        let terminal = number("shift_terminal", 0.0, [0.0, 0.999])?;
        Ok(Self { shift, terminal: Some(terminal).filter(|end| *end > 0.0), even: false })
    }

    /// With noise levels that lie as far from each other before they are shifted.
    pub fn even(self) -> Self {
        Self { even: true, ..self }
    }

    /// For pictures of so many tokens.
    pub fn with_image_tokens(mut self, image_tokens: usize) -> Self {
        if let Shift::Dynamic { tokens, shifts, found, .. } = &mut self.shift {
            let [base, most] = tokens.map(|tokens| tokens as f64);
            let slope = (shifts[1] - shifts[0]) / (most - base);
            *found = Some(image_tokens as f64 * slope + (shifts[0] - slope * base));
        }
        self
    }

    /// For pictures of so many tokens in so many steps, as measured for FLUX.2: the shift is linear
    /// in either, from 10 to 200 steps and beyond, and of large pictures in the tokens alone.
    pub fn with_fitted_shift(mut self, image_tokens: usize, steps: usize) -> Self {
        /// More tokens than this make a large picture.
        const LARGE: usize = 4300;
        if let Shift::Dynamic { found, .. } = &mut self.shift {
            let tokens = image_tokens as f64;
            let few = 8.738_095_24e-5 * tokens + 1.898_333_33;
            let many = 0.000_169_27 * tokens + 0.456_666_66;
            let slope = (many - few) / 190.0;
            *found = Some(match image_tokens > LARGE {
                true => many,
                false => slope * steps as f64 + many - 200.0 * slope,
            });
        }
        self
    }

    /// The noise levels of `steps` steps.
    fn sigmas(&self, train_timesteps: usize, steps: usize) -> Result<Vec<f64>, String> {
        let by = |factor: f64, sigma: f64| factor * sigma / (1.0 + (factor - 1.0) * sigma);
        let factor = match self.shift {
            Shift::Static(factor) => factor,
            Shift::Dynamic { found: Some(shift), is_linear, .. } => {
                if is_linear {
                    shift
                } else {
                    shift.exp()
                }
            }
            Shift::Dynamic { found: None, .. } => {
                return Err(
                    "noise is shifted by the size of a picture, which is not known".to_owned()
                );
            }
        };
        let least = match (self.even, &self.shift) {
            (true, _) => 1.0 / steps as f64,
            // Shifted once more below, as in diffusers.
            (false, Shift::Static(factor)) => by(*factor, 1.0 / train_timesteps as f64),
            (false, Shift::Dynamic { .. }) => 1.0 / train_timesteps as f64,
        };
        let level = |index: usize| 1.0 + index as f64 * (least - 1.0) / (steps.max(2) - 1) as f64;
        let mut sigmas: Vec<f64> = (0..steps).map(|index| by(factor, level(index))).collect();
        if let (Some(terminal), Some(last)) = (self.terminal, sigmas.last().copied()) {
            let scale = (1.0 - last) / (1.0 - terminal);
            sigmas.iter_mut().for_each(|sigma| *sigma = 1.0 - (1.0 - *sigma) / scale);
        }
        Ok(sigmas)
    }
}

#[derive(Debug, Clone)]
pub(super) struct FlowMatchEuler {
    /// Of each step, and at the end.
    sigmas: Vec<f32>,
}

impl FlowMatchEuler {
    /// The method and its timesteps, or why there are none.
    pub fn new(
        config: &FlowMatchConfig,
        spacing: SigmaSpacing,
        train_timesteps: usize,
        steps: usize,
    ) -> Result<(Self, Vec<f32>), String> {
        let mut sigmas = config.sigmas(train_timesteps, steps)?;
        if let Some(spread) = spacing.spread([sigmas[steps - 1], sigmas[0]], steps) {
            sigmas = spread;
        }
        let mut sigmas: Vec<f32> = sigmas.into_iter().map(|sigma| sigma as f32).collect();
        sigmas.push(0.0);
        let falls = sigmas.is_sorted_by(|one, next| one > next);
        if !falls || sigmas[0] > 1.0 {
            return Err(
                "with the shift of the configuration noise would not fall from step to step, \
                        from all to none: choose another number of steps"
                    .to_owned(),
            );
        }
        let timesteps = sigmas[..steps].iter().map(|sigma| sigma * train_timesteps as f32);
        let timesteps = timesteps.collect();
        Ok((Self { sigmas }, timesteps))
    }

    /// The noise level of a step.
    pub fn sigma(&self, index: usize) -> f32 {
        self.sigmas[index.min(self.sigmas.len() - 1)]
    }

    pub fn step(&self, index: usize, output: &[f32], sample: &mut [f32]) {
        let change = self.sigmas[index + 1] - self.sigmas[index];
        for (sample, &output) in sample.iter_mut().zip(output) {
            *sample += change * output;
        }
    }
}
