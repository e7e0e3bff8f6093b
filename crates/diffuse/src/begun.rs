//! What becomes of a picture to begin with, and of its mask.

use crate::schedulers::Scheduler;
use crate::settings::InitialImage;
use outsize_picture::{COLOURS, PictureFilter};

/// A picture to begin with in the size that is asked for.
pub(crate) struct ResizedImage {
    /// Values from -1 to 1, `[rows, columns, colours]`.
    pub picture: Vec<f32>,
    /// The same with gray where it is made anew.
    pub kept: Option<Vec<f32>>,
    /// Whether each latent is made anew, `[rows, columns, values]`: 1 or 0.
    pub mask: Option<Vec<f32>>,
}

impl ResizedImage {
    /// The picture in so many columns and rows, of which `scale` make a side of a latent. A
    /// denoiser that sees what is kept has so many values of the mask for each latent, of its first
    /// pixels.
    pub fn new(
        image: &InitialImage,
        [width, height]: [usize; 2],
        scale: usize,
        mask_values: Option<usize>,
    ) -> Self {
        let picture = image.picture.resized(width, height, PictureFilter::Lanczos).values();
        let Some(mask) = &image.mask else {
            return Self { picture, kept: None, mask: None };
        };
        let bright = mask.resized(width, height, PictureFilter::Lanczos).is_bright();
        let kept = mask_values.map(|_| {
            let mut kept = picture.clone();
            let pixels = kept.chunks_exact_mut(COLOURS).zip(&bright);
            pixels.filter(|(_, bright)| **bright).for_each(|(pixel, _)| pixel.fill(0.0));
            kept
        });
        let latents = (0..height)
            .step_by(scale)
            .flat_map(|row| (0..width).step_by(scale).map(move |column| row * width + column));
        let pixels = (0..mask_values.unwrap_or(1)).map(|n| n / scale * width + n % scale);
        let mask = latents.flat_map(|latent| pixels.clone().map(move |pixel| latent + pixel));
        let mask = mask.map(|pixel| f32::from(u8::from(bright[pixel]))).collect();
        Self { picture, kept, mask: Some(mask) }
    }
}

/// What the autoencoder makes of a picture to begin with.
pub(crate) struct BegunLatents {
    /// Its latents.
    pub image: LatentDistribution,
    /// What is made anew: 1 for each of `[rows, columns, values]` where it is, 0 where the picture
    /// is kept.
    pub mask: Option<Vec<f32>>,
    /// Whether a denoiser that sees the mask has it behind what is kept.
    pub mask_last: bool,
    /// The latents of what is kept, with gray elsewhere, if the denoiser sees it.
    pub kept: Option<LatentDistribution>,
    /// Whether nothing of the picture is seen where it is made anew.
    pub all_noise: bool,
}

/// Latents as the autoencoder gives them: normal distributions.
pub(crate) struct LatentDistribution {
    /// Of each pixel the means and the logarithms of the variances,
    /// `[rows, columns, 2 · channels]`.
    pub moments: Vec<f32>,
    pub channels: usize,
    /// What each channel of a denoiser's latents is multiplied with.
    pub scaling_factors: Vec<f32>,
    /// What is taken off it before.
    pub shift_factors: Vec<f32>,
}

/// What a denoiser has beside the latents that it works on, all by pixels.
pub(crate) enum Beside {
    Nothing,
    /// The picture, and the noise in which it is lost, that stay as they are where the mask is 0.
    Kept {
        mask: Vec<f32>,
        latents: Vec<f32>,
        noise: Vec<f32>,
    },
    /// So many values of each pixel that go in with the latents: the mask, and what is kept.
    Seen(Vec<f32>, usize),
}

impl BegunLatents {
    /// The latents to begin with, by noise that `draw` draws in the order in which diffusers does.
    pub fn start(
        &self,
        scheduler: &Scheduler,
        draw: &mut dyn FnMut() -> Vec<f32>,
    ) -> (Vec<f32>, Beside) {
        let is_seen = self.kept.is_none() || !self.all_noise;
        let image = is_seen.then(|| self.image.sample(draw()));
        let noise = draw();
        let latents = match &image {
            Some(image) if !self.all_noise => {
                let mut latents = image.clone();
                scheduler.add_noise(&mut latents, &noise);
                latents
            }
            _ => scaled(noise.clone(), scheduler.initial_scale()),
        };
        let beside = match (&self.kept, &self.mask, image) {
            (Some(kept), Some(mask), _) => {
                let (channels, kept) = (kept.channels, kept.sample(draw()));
                let values = mask.len() / (kept.len() / channels);
                let pixels = mask.chunks(values).zip(kept.chunks(channels));
                let seen = pixels.flat_map(|(mask, kept)| match self.mask_last {
                    true => [kept, mask].concat(),
                    false => [mask, kept].concat(),
                });
                Beside::Seen(seen.collect(), values + channels)
            }
            (None, Some(mask), Some(latents)) => {
                // Diffusers draws the latents of what is kept, and leaves them: what schedulers add
                // is drawn behind them.
                draw();
                Beside::Kept { mask: mask.clone(), latents, noise }
            }
            _ => Beside::Nothing,
        };
        (latents, beside)
    }
}

impl LatentDistribution {
    /// Turns normal noise into latents as the denoiser has them.
    fn sample(&self, mut noise: Vec<f32>) -> Vec<f32> {
        let moments = self.moments.chunks_exact(2 * self.channels);
        for (latent, moments) in noise.chunks_exact_mut(self.channels).zip(moments) {
            let (means, variances) = moments.split_at(self.channels);
            let factors = self.scaling_factors.iter().zip(&self.shift_factors);
            let channels = latent.iter_mut().zip(means).zip(variances).zip(factors);
            for (((value, mean), variance), (scaling_factor, shift_factor)) in channels {
                // The bounds that diffusers has.
                let deviation = (0.5 * variance.clamp(-30.0, 20.0)).exp();
                *value = scaling_factor * (mean + deviation * *value - shift_factor);
            }
        }
        noise
    }
}

impl Beside {
    /// What goes into the denoiser with these latents.
    pub fn input(&self, latents: Vec<f32>) -> Vec<f32> {
        let Self::Seen(seen, values) = self else {
            return latents;
        };
        let channels = latents.len() / (seen.len() / values);
        let pixels = latents.chunks(channels).zip(seen.chunks(*values));
        pixels.flat_map(|(latent, seen)| [latent, seen].concat()).collect()
    }

    /// Puts back what is kept, as it looks in the noise of the next step.
    pub fn keep(&self, scheduler: &Scheduler, latents: &mut [f32]) {
        let Self::Kept { mask, latents: image, noise } = self else {
            return;
        };
        let mut image = image.clone();
        scheduler.add_noise(&mut image, noise);
        let channels = latents.len() / mask.len();
        let pixels = latents.chunks_mut(channels).zip(image.chunks(channels)).zip(mask);
        pixels.filter(|(_, mask)| **mask == 0.0).for_each(|((latent, image), _)| {
            latent.copy_from_slice(image);
        });
    }
}

/// All values multiplied with a number.
pub(crate) fn scaled(mut values: Vec<f32>, scale: f32) -> Vec<f32> {
    values.iter_mut().for_each(|value| *value *= scale);
    values
}
