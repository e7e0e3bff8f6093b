//! What pictures take: memory part by part, and time.

use outsize_core::{gpu_overhead, memory_overhead, upload_bytes};
use outsize_models::{PicturePass, PictureSize};
use outsize_plan::Estimate;
use serde::Serialize;

use crate::error::Error;
use crate::kind::PipelineKind;
use crate::model::ImageModel;
use crate::part::{PartNeeds, PartPlan, PassBytes};
use crate::pipeline_part::PipelinePart;
use crate::references::ReferenceSize;
use crate::settings::{ImageRequest, ImageSettings};
use outsize_picture::COLOURS;

/// How long pictures are predicted to take, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ImagePrediction {
    /// The text encoders, their weights read, and what they see of pictures.
    pub text_encoder_seconds: f64,
    /// A pass of the denoiser, but for the first, which also reads the weights that stay in memory.
    pub seconds_per_step: f64,
    /// Passes for each picture: of some schedulers more than the steps that are asked for.
    pub steps: usize,
    /// All passes for all pictures.
    pub denoiser_seconds: f64,
    /// All pictures decoded, and that to begin with encoded.
    pub vae_seconds: f64,
    /// All of it.
    pub seconds: f64,
}

impl ImageModel {
    /// Where the weights of each part live while it is its turn. Each has the whole budget, but for
    /// what is kept beside it: the process, the tokenizer, what the parts pass on, and the
    /// pictures.
    ///
    /// # Errors
    /// How many bytes of budget would do, and what is wrong with the request.
    pub fn plan(
        &self,
        settings: &ImageSettings,
        request: &ImageRequest,
    ) -> Result<Vec<PartPlan>, Error> {
        let (needs, passes) = (self.needs(settings, request)?, self.passes(request)?);
        let parts = self.parts(request)?.into_iter().zip(&needs).zip(&passes);
        let plans = parts.map(|((part, needs), pass)| part.plan(settings, needs, pass));
        let (plans, refused): (Vec<_>, Vec<_>) = plans.partition(Result::is_ok);
        match refused.is_empty() {
            true => Ok(plans.into_iter().flatten().collect()),
            false => Err(largest(refused.into_iter().filter_map(Result::err))),
        }
    }

    /// What each part takes for such a request, with weights as they are stored: all in memory, and
    /// the least with which it runs.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub fn estimate(
        &self,
        settings: &ImageSettings,
        request: &ImageRequest,
    ) -> Result<Vec<(PipelinePart, Estimate)>, Error> {
        let needs = self.needs(settings, request)?;
        let parts = self.parts(request)?.into_iter().zip(&needs);
        parts
            .map(|(part, needs)| Ok((part.part(), part.estimate(settings, needs.alone)?)))
            .collect()
    }

    /// How long the pictures of a request take that is placed like that.
    ///
    /// # Errors
    /// A scheduler that is not built in, or steps that it cannot make.
    pub fn predict(
        &self,
        plans: &[PartPlan],
        request: &ImageRequest,
    ) -> Result<ImagePrediction, Error> {
        let steps = self.begun_scheduler(request)?.timesteps().len();
        let pictures = request.seeds.len();
        let (mut text, mut denoiser, mut vae, mut seconds_per_step) = (0.0, 0.0, 0.0, 0.0);
        for PartPlan { part, prediction, .. } in plans {
            let seconds = |passes: usize| {
                prediction.first_pass_seconds
                    + passes.saturating_sub(1) as f64 * prediction.decode.seconds
            };
            match part {
                PipelinePart::VisionEncoder => text += seconds(request.references.len()),
                PipelinePart::TextEncoder
                | PipelinePart::TextEncoder2
                | PipelinePart::TextEncoder3 => {
                    text += seconds(self.texts(request) / self.texts_together(request));
                }
                PipelinePart::Unet | PipelinePart::Transformer => {
                    denoiser = seconds(steps.saturating_mul(pictures));
                    seconds_per_step = prediction.decode.seconds;
                }
                PipelinePart::VaeEncoder => vae += seconds(request.references.len().max(1)),
                PipelinePart::Vae => vae += seconds(pictures),
            }
        }
        Ok(ImagePrediction {
            text_encoder_seconds: text,
            seconds_per_step,
            steps,
            denoiser_seconds: denoiser,
            vae_seconds: vae,
            seconds: text + denoiser + vae,
        })
    }

    /// Texts that a pass of a text encoder reads: one if it sees pictures.
    fn texts_together(&self, request: &ImageRequest) -> usize {
        if self.vision.is_some() { 1 } else { self.texts(request) }
    }

    /// A pass of each part.
    fn passes(&self, request: &ImageRequest) -> Result<Vec<PicturePass>, Error> {
        let [rows, columns] = self.latents(request)?;
        let of =
            |batch, tokens| PicturePass { latents: PictureSize { batch, rows, columns }, tokens };
        let (texts, together) = (self.texts(request), self.texts_together(request));
        let references = self.seen_references(request)?;
        let told = told(&references);
        let vision = self.vision.as_ref().map(|vision| vision.pass(&told)).transpose()?;
        let told = self.vision.as_ref().map_or(Ok(0), |vision| vision.tokens(&told))?;
        let tokens = self.text_encoders.iter().map(|encoder| encoder.tokens() + told);
        let longest = tokens.clone().max().unwrap_or(0);
        let seen = match self.kind() {
            // Tokens of the third text encoder behind those of the others.
            PipelineKind::StableDiffusion3 => longest + tokens.clone().min().unwrap_or(0),
            _ => longest,
        };
        let text_passes = tokens.map(|tokens| of(together, tokens));
        let begun = request.image.is_some().then(|| of(1, seen));
        let scale = self.scale();
        let largest = references.iter().max_by_key(|size| size.pixels()).map(|size| {
            let [columns, rows] = size.seen.map(|side| side / scale);
            PicturePass { latents: PictureSize { batch: 1, rows, columns }, tokens: seen }
        });
        let mut denoiser = of(texts, seen);
        let PictureSize { rows, columns, .. } = &mut denoiser.latents;
        *rows /= self.denoiser.packing();
        *columns /= self.denoiser.packing();
        if !references.is_empty() {
            // All tokens count, in whatever rows.
            let pixels = (scale * self.denoiser.packing()).pow(2) as u64;
            let more: u64 = references.iter().map(|size| size.pixels() / pixels).sum();
            (*rows, *columns) = (*rows * *columns + more as usize, 1);
        }
        let passes = vision.into_iter().chain(text_passes).chain(begun).chain(largest);
        Ok(passes.chain([denoiser, of(1, seen)]).collect())
    }

    /// What each part needs besides its weights.
    fn needs(
        &self,
        settings: &ImageSettings,
        request: &ImageRequest,
    ) -> Result<Vec<PartNeeds>, Error> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let passes = self.passes(request)?;
        let pictures = request.seeds.len() as u64;
        let mut all = Vec::with_capacity(passes.len());
        let references = self.seen_references(request)?;
        // What text encoders pass on, and what they see.
        let mut passed_on = 0;
        if let Some(vision) = &self.vision {
            let told = told(&references);
            all.push(vision.pass_bytes(settings, &told, threads)?);
            passed_on += vision.held_bytes(&told)?;
        }
        let texts = self.texts(request) as u64;
        let text_passes = &passes[all.len()..];
        for (encoder, pass) in self.text_encoders.iter().zip(text_passes) {
            let tokens = texts * pass.tokens as u64;
            passed_on += 4
                * (encoder.copies() * tokens * encoder.width() as u64
                    + texts * encoder.pooled_width() as u64);
            all.push(encoder.pass_bytes(settings, pass, threads));
        }
        let [.., denoiser, decoder] = &passes[..] else { unreachable!("each part has a pass") };
        let in_bands = |activations, on_gpu| PassBytes {
            activations,
            on_gpu,
            beside_gpu: activations,
            packed: outsize_kernels::matmul::convolution_bytes() * threads as u64,
        };
        let pixels = decoder.latents.pixels() * (self.scale() as u64).pow(2);
        if let Some(image) = &request.image {
            let vae = self.vae_encoder()?.config.model();
            let bands = vae.activation_bytes(decoder.latents, threads);
            all.push(in_bands(bands, vae.band_activation_bytes(decoder.latents)));
            let first = &mut all[0];
            // The pictures are resized before any part has its turn.
            let [width, height] = self.size(request)?;
            let pictures = [Some(&image.picture), image.mask.as_ref()].into_iter().flatten();
            for picture in pictures {
                let work = picture.resizing_bytes(width, height);
                first.activations = first.activations.max(work);
                first.beside_gpu = first.beside_gpu.max(work);
                passed_on += picture.rgb.len() as u64;
            }
            // As values, once more where a mask is painted over, and what of it is bright.
            passed_on += (2 * 4 * COLOURS as u64 + 1) * pixels;
        }
        if !references.is_empty() {
            let vae = self.vae_encoder()?.config.model();
            let largest = passes[all.len()].latents;
            let bands = vae.activation_bytes(largest, threads);
            all.push(in_bands(bands, vae.band_activation_bytes(largest)));
            let first = &mut all[0];
            let texts = denoiser.latents.batch as u64;
            for (size, picture) in references.iter().zip(&request.references) {
                // They are resized before any part has its turn.
                let work = size.work_bytes(picture);
                first.activations = first.activations.max(work);
                first.beside_gpu = first.beside_gpu.max(work);
                // As values, and as tokens: those that are kept, and for each text what goes in.
                let latents =
                    size.pixels() / (self.scale() as u64).pow(2) * self.denoiser.channels() as u64;
                passed_on += picture.rgb.len() as u64
                    + 4 * COLOURS as u64 * size.pixels()
                    + 4 * (1 + 3 * texts) * latents;
            }
        }
        all.push(self.denoiser.pass_bytes(settings, denoiser, threads));
        let vae = self.vae.config.model();
        // Beside a band, its pixels.
        let bands = vae.activation_bytes(decoder.latents, threads);
        all.push(in_bands(bands, vae.band_activation_bytes(decoder.latents)));
        // Eight copies of latents cover what schedulers remember and what goes in and out of the
        // denoiser.
        let texts = denoiser.latents.batch as u64;
        let latents = decoder.latents.pixels() * self.denoiser.channels() as u64;
        passed_on +=
            4 * (texts * pictures + 8 * texts) * latents + pictures * pixels * COLOURS as u64;
        let process = settings.process.max(self.process);
        let process = process.saturating_add(self.tokenizer).saturating_add(passed_on);
        let upload =
            upload_bytes(&settings.max_memory, outsize_core::Options::default().tile_bytes);
        let mut kept = 0;
        let needs = all.into_iter().map(|part| {
            // Threads keep the memory of their largest product.
            kept = part.packed.max(kept);
            PartNeeds {
                alone: memory_overhead(process, part.activations.saturating_add(kept)),
                beside_gpu: memory_overhead(
                    process.saturating_add(upload),
                    part.beside_gpu.saturating_add(kept),
                ),
                gpu: gpu_overhead(part.on_gpu).saturating_add(settings.gpu_context),
            }
        });
        Ok(needs.collect())
    }
}

/// The sizes in which a text encoder sees pictures, if it does.
fn told(references: &[ReferenceSize]) -> Vec<[usize; 2]> {
    references.iter().filter_map(|size| size.told).collect()
}

/// Of budgets that are too small, the refusal that asks for most, which does for all parts; before
/// it, what else is wrong.
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
