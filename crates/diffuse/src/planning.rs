//! What pictures take: memory part by part, and time.

use outsize_core::{gpu_overhead, memory_overhead, upload_bytes};
use outsize_models::{PicturePass, PictureSize};
use outsize_plan::Estimate;
use serde::Serialize;

use crate::error::Error;
use crate::model::{COLOURS, ImageModel};
use crate::part::{PartNeeds, PartPlan};
use crate::schedulers::Scheduler;
use crate::settings::{ImageRequest, ImageSettings};

/// How long pictures are predicted to take, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ImagePrediction {
    /// The text encoder, its weights read.
    pub text_encoder_seconds: f64,
    /// A pass of the denoiser, but for the first, which also reads the weights that stay in memory.
    pub seconds_per_step: f64,
    /// Passes for each picture: of some schedulers more than the steps that are asked for.
    pub steps: usize,
    /// All passes for all pictures.
    pub unet_seconds: f64,
    /// All pictures decoded.
    pub vae_seconds: f64,
    /// All of it.
    pub seconds: f64,
}

impl ImageModel {
    /// Where the weights of each part live while it is its turn. Each has the whole budget, but for what is kept beside it: the
    /// process, the tokenizer, what the parts pass on, and the pictures.
    ///
    /// # Errors
    /// How many bytes of budget would do, and what is wrong with the request.
    pub fn plan(
        &self,
        settings: &ImageSettings,
        request: &ImageRequest,
    ) -> Result<[PartPlan; 3], Error> {
        let [text_encoder, unet, vae] = self.needs(settings, request)?;
        let [pass, one] = self.passes(request)?;
        let plans = [
            self.text_encoder.plan(settings, &text_encoder, &pass),
            self.unet.plan(settings, &unet, &pass),
            self.vae.plan(settings, &vae, &one),
        ];
        match plans {
            [Ok(text_encoder), Ok(unet), Ok(vae)] => Ok([text_encoder, unet, vae]),
            plans => Err(largest(plans.into_iter().filter_map(Result::err))),
        }
    }

    /// What each part takes for such a request, with weights as they are stored: all in memory, and the least with which it runs.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub fn estimate(
        &self,
        settings: &ImageSettings,
        request: &ImageRequest,
    ) -> Result<[Estimate; 3], Error> {
        let [text_encoder, unet, vae] = self.needs(settings, request)?;
        Ok([
            self.text_encoder.estimate(settings, text_encoder.alone)?,
            self.unet.estimate(settings, unet.alone)?,
            self.vae.estimate(settings, vae.alone)?,
        ])
    }

    /// How long the pictures of a request take that is placed like that.
    ///
    /// # Errors
    /// A scheduler that is not built in, or steps that it cannot make.
    pub fn predict(
        &self,
        plans: &[PartPlan; 3],
        request: &ImageRequest,
    ) -> Result<ImagePrediction, Error> {
        let steps = Scheduler::new(&self.scheduler(request)?.0, request.steps)?.timesteps().len();
        let pictures = request.seeds.len();
        let seconds = |part: usize, passes: usize| {
            let prediction = &plans[part].prediction;
            prediction.first_pass_seconds
                + passes.saturating_sub(1) as f64 * prediction.decode.seconds
        };
        let [text, unet, vae] =
            [seconds(0, 1), seconds(1, steps.saturating_mul(pictures)), seconds(2, pictures)];
        Ok(ImagePrediction {
            text_encoder_seconds: text,
            seconds_per_step: plans[1].prediction.decode.seconds,
            steps,
            unet_seconds: unet,
            vae_seconds: vae,
            seconds: text + unet + vae,
        })
    }

    /// A pass of the text encoder and of the denoiser, and one of the autoencoder.
    fn passes(&self, request: &ImageRequest) -> Result<[PicturePass; 2], Error> {
        let [rows, columns] = self.latents(request)?;
        let tokens = self.text_encoder.config.config.sizes.positions;
        let of = |batch| PicturePass { latents: PictureSize { batch, rows, columns }, tokens };
        Ok([of(request.texts().len()), of(1)])
    }

    /// What each part needs besides its weights.
    fn needs(
        &self,
        settings: &ImageSettings,
        request: &ImageRequest,
    ) -> Result<[PartNeeds; 3], Error> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let [pass, one] = self.passes(request)?;
        let PicturePass { latents, tokens } = pass;
        let (texts, pictures) = (latents.batch, request.seeds.len() as u64);
        let hidden = self.text_encoder.config.config.sizes.hidden;
        let pixels = one.latents.pixels() * (self.scale() as u64).pow(2);
        // Eight copies of latents cover what schedulers remember and what goes in and out of the denoiser.
        let passed_on = 4 * (texts * tokens * hidden) as u64
            + 4 * (pictures + 8) * latents.pixels() * self.unet.config.config.in_channels as u64
            + pictures * pixels * COLOURS as u64;
        let process = settings.process.max(self.process);
        let process = process.saturating_add(self.tokenizer).saturating_add(passed_on);
        let convolutions = outsize_kernels::matmul::convolution_bytes() * threads as u64;
        // Matmuls of pixels are convolutions; what is left is the embedding of a time.
        let packed = [
            self.text_encoder.packed_bytes(settings, pass.all_tokens()),
            convolutions.saturating_add(self.unet.packed_bytes(settings, 1)),
            convolutions,
        ];
        let activations = [
            self.text_encoder.config.model().activation_bytes(texts, tokens, threads),
            self.unet.config.model().activation_bytes(latents, tokens, threads),
            // Beside a band, its pixels.
            self.vae.config.model().activation_bytes(one.latents, threads),
        ];
        let on_gpu = [
            activations[0],
            activations[1],
            self.vae.config.model().band_activation_bytes(one.latents),
        ];
        // Rows of tables, beside what is passed on, and bands.
        let beside_gpu = [4 * (texts * tokens * hidden) as u64, 0, activations[2]];
        let upload =
            upload_bytes(&settings.max_memory, outsize_core::Options::default().tile_bytes);
        let mut kept = 0;
        Ok([0, 1, 2].map(|part| {
            // Threads keep the memory of their largest product.
            kept = packed[part].max(kept);
            PartNeeds {
                alone: memory_overhead(process, activations[part].saturating_add(kept)),
                beside_gpu: memory_overhead(
                    process.saturating_add(upload),
                    beside_gpu[part].saturating_add(kept),
                ),
                gpu: gpu_overhead(on_gpu[part]).saturating_add(settings.gpu_context),
            }
        }))
    }
}

/// Of budgets that are too small, the refusal that asks for most, which does for all parts; before it, what else is wrong.
fn largest(errors: impl Iterator<Item = Error>) -> Error {
    let least = |error: &Error| match error {
        Error::Core(outsize_core::Error::Plan(outsize_plan::Error::TooSmall(shortfall))) => {
            shortfall.least
        }
        _ => u64::MAX,
    };
    let largest = errors.max_by_key(least);
    largest.expect("called with an error")
}
