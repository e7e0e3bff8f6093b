//! From noise to latents, step by step.

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::error::Error;
use crate::noise::randn;
use crate::progress::ImageProgress;
use crate::schedulers::Scheduler;
use crate::settings::ImageRequest;

/// The pictures of a request, to be freed from noise.
pub(crate) struct Denoising<'a> {
    pub request: &'a ImageRequest,
    /// How much more the prompt counts than the negative one, which is the first of two texts. `None`: there is one text.
    pub guidance: Option<f32>,
    pub scheduler: Scheduler,
    /// Rows and columns of latents.
    pub size: [usize; 2],
    /// Channels of latents.
    pub channels: usize,
    pub device: &'a Device,
}

impl Denoising<'_> {
    /// The latents of one of the pictures, `[rows, columns, channels]`. `pass` is one of the denoiser: of latents
    /// `[texts, rows, columns, channels]` at a time of the training's schedule to what the scheduler takes.
    pub fn latents(
        &self,
        picture: usize,
        pass: &dyn Fn(Tensor<4>, f32) -> Result<Tensor<4>, outsize_core::Error>,
        observe: &mut dyn FnMut(ImageProgress<'_>),
    ) -> Result<Vec<f32>, Error> {
        let (size @ [rows, columns], channels) = (self.size, self.channels);
        let mut scheduler = self.scheduler.clone();
        let mut latents = initial_noise(self.request.seeds[picture], [rows, columns, channels]);
        let scale = scheduler.initial_scale();
        latents.iter_mut().for_each(|value| *value *= scale);
        let texts = if self.guidance.is_some() { 2 } else { 1 };
        let timesteps = scheduler.timesteps().to_vec();
        for (step, &timestep) in timesteps.iter().enumerate() {
            let divisor = scheduler.input_divisor();
            let scaled: Vec<f32> = latents.iter().map(|value| value / divisor).collect();
            let data = TensorData::new(scaled.repeat(texts), [texts, rows, columns, channels]);
            let input = Tensor::<4>::from_data(data, (self.device, DType::F32));
            let mut output = values(pass(input, timestep)?)?;
            if let Some(scale) = self.guidance {
                let (without, with) = output.split_at_mut(latents.len());
                for (without, with) in without.iter_mut().zip(with) {
                    *without += scale * (*with - *without);
                }
            }
            output.truncate(latents.len());
            scheduler.step(&output, &mut latents);
            if latents.iter().any(|value| !value.is_finite()) {
                return Err(Error::NotFinite { step: step + 1 });
            }
            let (done, steps) = (step + 1, timesteps.len());
            observe(ImageProgress::Step { picture, done, steps, size, latents: &latents });
        }
        Ok(latents)
    }
}

/// Noise in the order of `[rows, columns, channels]`, drawn in the order of `[channels, rows, columns]` as diffusers does.
fn initial_noise(seed: u64, [rows, columns, channels]: [usize; 3]) -> Vec<f32> {
    let pixels = rows * columns;
    let mut drawn = vec![0.0; pixels * channels];
    randn(seed, &mut drawn);
    let value = |index: usize| drawn[index % channels * pixels + index / channels];
    (0..drawn.len()).map(value).collect()
}

/// The values of a tensor.
pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, Error> {
    let values = tensor.into_data().try_into_vec();
    values.map_err(|error| Error::Values { reason: format!("{error:?}") })
}
