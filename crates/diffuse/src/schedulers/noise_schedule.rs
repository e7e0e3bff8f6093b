//! How much of a noisy picture is picture, at each timestep of training.

use std::f64::consts::FRAC_PI_2;

/// How the variances of the steps (`beta`) grow.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Betas {
    /// From `beta_start` to `beta_end`.
    Linear(f64, f64),
    /// Their roots are linear.
    ScaledLinear(f64, f64),
    /// As a squared cosine asks for, and at most 0.999.
    SquaredCosine,
    /// Each given.
    Trained(Vec<f32>),
}

impl Betas {
    /// The products of all `1 - beta` up to each of `steps` timesteps. Rounded to 32 bits where
    /// diffusers does, since errors of the betas would add up.
    pub(crate) fn alphas_cumprod(&self, steps: usize, zero_snr: bool) -> Vec<f32> {
        let betas = match self {
            Self::Linear(start, end) => linspace(*start, *end, steps),
            Self::ScaledLinear(start, end) => {
                let roots = linspace(start.sqrt(), end.sqrt(), steps);
                roots.into_iter().map(|root| root * root).collect()
            }
            Self::SquaredCosine => {
                let bar = |t: f64| ((t + 0.008) / 1.008 * FRAC_PI_2).cos().powi(2);
                let at = |step: usize| bar(step as f64 / steps as f64);
                (0..steps).map(|t| (1.0 - at(t + 1) / at(t)).min(0.999) as f32).collect()
            }
            Self::Trained(betas) => betas.clone(),
        };
        let alphas: Vec<f32> = betas.into_iter().map(|beta| 1.0 - beta).collect();
        let products = cumprod(&alphas);
        match zero_snr {
            true => cumprod(&with_zero_snr(&products)),
            false => products,
        }
    }
}

/// As `torch.linspace` in 32 bits: from both ends to the middle.
fn linspace(start: f64, end: f64, steps: usize) -> Vec<f32> {
    let (start, end) = (start as f32, end as f32);
    let step = (end - start) / (steps.max(2) - 1) as f32;
    let value = |index: usize| match index < steps / 2 {
        true => start + step * index as f32,
        false => end - step * (steps - index - 1) as f32,
    };
    (0..steps).map(value).collect()
}

/// As `torch.cumprod`, which multiplies in 64 bits.
fn cumprod(values: &[f32]) -> Vec<f32> {
    let product = |product: &mut f64, value: &f32| {
        *product *= f64::from(*value);
        Some(*product as f32)
    };
    values.iter().scan(1.0, product).collect()
}

/// The alphas whose products are rescaled so that the last one is zero: nothing of the picture is
/// left there. Lin et al. 2023, "Common Diffusion Noise Schedules and Sample Steps are Flawed".
fn with_zero_snr(products: &[f32]) -> Vec<f32> {
    let roots: Vec<f32> = products.iter().map(|product| product.sqrt()).collect();
    let (Some(first), Some(last)) = (roots.first(), roots.last()) else {
        return Vec::new();
    };
    let scale = first / (first - last);
    let bars: Vec<f32> = roots.iter().map(|root| ((root - last) * scale).powi(2)).collect();
    let ratio = |index: usize| match index {
        0 => bars[0],
        _ => bars[index] / bars[index - 1],
    };
    // By way of betas, as diffusers: it rounds.
    (0..bars.len()).map(|index| 1.0 - (1.0 - ratio(index))).collect()
}
