//! From noise to latents, step by step.

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_models::Component;
use outsize_models::arch::{
    Flux2Transformer2dModel, FluxTransformer2dModel, QwenImageTransformer2dModel,
    Sd3Transformer2dModel, Unet2dConditionModel, ZImageTransformer2dModel,
};
use outsize_stream::Stats;

use crate::begun::{BegunLatents, Beside, scaled};
use crate::denoiser::{Conditions, Denoiser, Guidance, PACKING};
use crate::error::Error;
use crate::latent_tokens::TokenOrder::{Channels, Pixels};
use crate::latent_tokens::{latents_of, packed, scale_tokens, unpacked};
use crate::noise::Noise;
use crate::part::{Part, Turn};
use crate::progress::ImageProgress;
use crate::references::References;
use crate::schedulers::Scheduler;
use crate::settings::ImageRequest;

/// The pictures of a request, to be freed from noise.
pub(crate) struct Denoising<'a> {
    pub request: &'a ImageRequest,
    /// How much more the prompt counts than the negative one, which is the first of two texts.
    /// `None`: there is one text.
    pub guidance: Option<Guidance>,
    /// What a denoiser that is told how closely to follow the text is told.
    pub guidance_scale: f32,
    pub scheduler: Scheduler,
    /// What a picture to begin with has become.
    pub begun: Option<&'a BegunLatents>,
    /// What pictures to go by have become.
    pub references: &'a References,
    /// Whether noise is drawn in the order of tokens, not of latents.
    pub draws_tokens: bool,
    /// Rows and columns of latents.
    pub size: [usize; 2],
    /// Channels of latents.
    pub channels: usize,
    pub device: &'a Device,
}

/// The timestep of training at which all is noise.
const LAST_TIMESTEP: f32 = 1000.0;

impl Denoising<'_> {
    /// The latents of all pictures, when it is the denoiser's turn.
    pub fn run(
        &self,
        denoiser: &Denoiser,
        turn: &Turn<'_>,
        Conditions { context, lengths, added, pooled }: Conditions,
        observe: &mut dyn FnMut(ImageProgress<'_>),
    ) -> Result<(Vec<Vec<f32>>, Stats), Error> {
        match denoiser {
            Denoiser::Unet(part) => {
                let pass = |model: &Unet2dConditionModel, latents, timestep| {
                    let guidance = Some(self.guidance_scale);
                    model.forward(latents, timestep, guidance, context.clone(), added.as_ref())
                };
                self.run_module(part, turn, &pass, observe)
            }
            Denoiser::Flux(part) => {
                let pooled = pooled.expect("a transformer is told of texts as a whole");
                let references = self.reference_tokens();
                let pass = |model: &FluxTransformer2dModel, latents: Tensor<4>, timestep| {
                    let (latents, sizes) = self.beside_references(latents, references.as_ref());
                    let (pooled, context) = (pooled.clone(), context.clone());
                    let scale = Some(self.guidance_scale);
                    let made = model.forward(latents, &sizes, timestep, scale, pooled, context);
                    unpacked(made, sizes[0], Channels)
                };
                self.run_module(part, turn, &pass, observe)
            }
            Denoiser::Sd3(part) => {
                let pooled = pooled.expect("a transformer is told of texts as a whole");
                let pass = |model: &Sd3Transformer2dModel, latents: Tensor<4>, timestep| {
                    let [_, rows, columns, _] = latents.dims();
                    let size = [rows / PACKING, columns / PACKING];
                    let (pooled, context) = (pooled.clone(), context.clone());
                    let latents = packed(latents, Channels);
                    let made = model.forward(latents, size, timestep, pooled, context);
                    unpacked(made, size, Pixels)
                };
                self.run_module(part, turn, &pass, observe)
            }
            Denoiser::ZImage(part) => {
                let pass = |model: &ZImageTransformer2dModel, latents: Tensor<4>, timestep| {
                    let [_, rows, columns, _] = latents.dims();
                    let size = [rows / PACKING, columns / PACKING];
                    // As this model counts time, from noise to pictures.
                    let time = (LAST_TIMESTEP - timestep) / LAST_TIMESTEP;
                    let latents = packed(latents, Pixels);
                    let made = model.forward(latents, size, time, context.clone(), &lengths);
                    unpacked(made, size, Pixels).neg()
                };
                self.run_module(part, turn, &pass, observe)
            }
            Denoiser::QwenImage(part) => {
                let references = self.reference_tokens();
                let pass = |model: &QwenImageTransformer2dModel, latents: Tensor<4>, timestep| {
                    let (latents, sizes) = self.beside_references(latents, references.as_ref());
                    let context = context.clone();
                    let made = model.forward(latents, &sizes, timestep, context, &lengths);
                    unpacked(made, sizes[0], Channels)
                };
                self.run_module(part, turn, &pass, observe)
            }
            Denoiser::Flux2(part, _) => {
                let references = self.reference_tokens();
                let scale = denoiser.is_guided().then_some(self.guidance_scale);
                let pass = |model: &Flux2Transformer2dModel, latents: Tensor<4>, timestep| {
                    let (latents, sizes) = self.beside_references(latents, references.as_ref());
                    let made = model.forward(latents, &sizes, timestep, scale, context.clone());
                    unpacked(made, sizes[0], Channels)
                };
                self.run_module(part, turn, &pass, observe)
            }
        }
    }

    /// The tokens of pictures to go by, once for each text: `[texts, tokens, values]` f32.
    fn reference_tokens(&self) -> Option<Tensor<3>> {
        let (tokens, values) = (&self.references.tokens, PACKING * PACKING * self.channels);
        if tokens.is_empty() {
            return None;
        }
        let texts = self.texts();
        let data = TensorData::new(tokens.repeat(texts), [texts, tokens.len() / values, values]);
        Some(Tensor::from_data(data, (self.device, DType::F32)))
    }

    /// Latents as tokens, with those of pictures to go by behind them; and rows and columns of each
    /// in tokens.
    fn beside_references(
        &self,
        latents: Tensor<4>,
        references: Option<&Tensor<3>>,
    ) -> (Tensor<3>, Vec<[usize; 2]>) {
        let [_, rows, columns, _] = latents.dims();
        let own = [rows / PACKING, columns / PACKING];
        let tokens = std::iter::once(packed(latents, Channels)).chain(references.cloned());
        let sizes = [&[own], &*self.references.sizes].concat();
        (Tensor::cat(tokens.collect(), 1), sizes)
    }

    /// Texts that a pass looks at.
    fn texts(&self) -> usize {
        if self.guidance.is_some() { 2 } else { 1 }
    }

    /// The same by a module, of which `pass` runs one: see [`latents`](Self::latents).
    fn run_module<C: Component + Send + 'static>(
        &self,
        part: &Part<C>,
        turn: &Turn<'_>,
        pass: &dyn Fn(&C, Tensor<4>, f32) -> Tensor<4>,
        observe: &mut dyn FnMut(ImageProgress<'_>),
    ) -> Result<(Vec<Vec<f32>>, Stats), Error> {
        let module = turn.module(part);
        let latents = (0..self.request.seeds.len()).map(|picture| {
            let pass = |latents: Tensor<4>, timestep: f32| {
                module.run(|module| module.run(|model| pass(model, latents, timestep)))?
            };
            self.latents(picture, &pass, observe)
        });
        let latents = latents.collect::<Result<Vec<_>, _>>()?;
        Ok((latents, module.run(|module| module.stats())?))
    }

    /// The latents of one of the pictures, `[rows, columns, channels]`. `pass` is one of the
    /// denoiser: of latents `[texts, rows, columns, channels]` at a time of the training's schedule
    /// to what the scheduler takes.
    fn latents(
        &self,
        picture: usize,
        pass: &dyn Fn(Tensor<4>, f32) -> Result<Tensor<4>, outsize_core::Error>,
        observe: &mut dyn FnMut(ImageProgress<'_>),
    ) -> Result<Vec<f32>, Error> {
        let (size @ [rows, columns], channels) = (self.size, self.channels);
        let mut scheduler = self.scheduler.clone();
        let mut noise = Noise::new(self.request.seeds[picture]);
        let mut draw = || match self.draws_tokens {
            true => {
                let tokens = [rows / PACKING, columns / PACKING];
                let values = PACKING * PACKING * channels;
                latents_of(&drawn(&mut noise, [tokens[0], tokens[1], values]), tokens)
            }
            false => drawn(&mut noise, [rows, columns, channels]),
        };
        let (mut latents, beside) = match self.begun {
            Some(begun) => begun.start(&scheduler, &mut draw),
            None => (scaled(draw(), scheduler.initial_scale()), Beside::Nothing),
        };
        let texts = self.texts();
        let timesteps = scheduler.timesteps().to_vec();
        for (step, &timestep) in timesteps.iter().enumerate() {
            let divisor = scheduler.input_divisor();
            let input = beside.input(latents.iter().map(|value| value / divisor).collect());
            let inputs = input.len() / (rows * columns);
            let data = TensorData::new(input.repeat(texts), [texts, rows, columns, inputs]);
            let input = Tensor::<4>::from_data(data, (self.device, DType::F32));
            let mut output = values(pass(input, timestep)?)?;
            if let Some(Guidance { scale, from_prompt, keeps_lengths }) = self.guidance {
                let (without, with) = output.split_at_mut(latents.len());
                for (without, with) in without.iter_mut().zip(&*with) {
                    let from = if from_prompt { *with } else { *without };
                    *without = from + scale * (*with - *without);
                }
                if keeps_lengths {
                    scale_tokens(without, with, [rows, columns, channels]);
                }
            }
            output.truncate(latents.len());
            scheduler.step(&output, &mut latents, &mut draw);
            beside.keep(&scheduler, &mut latents);
            if latents.iter().any(|value| !value.is_finite()) {
                return Err(Error::NotFinite { step: step + 1 });
            }
            let (done, steps) = (step + 1, timesteps.len());
            observe(ImageProgress::Step { picture, done, steps, size, latents: &latents });
        }
        Ok(latents)
    }
}

/// Noise in the order of `[rows, columns, channels]`, drawn in the order of
/// `[channels, rows, columns]` as diffusers does.
fn drawn(noise: &mut Noise, [rows, columns, channels]: [usize; 3]) -> Vec<f32> {
    let pixels = rows * columns;
    let mut drawn = vec![0.0; pixels * channels];
    noise.fill(&mut drawn);
    let value = |index: usize| drawn[index % channels * pixels + index / channels];
    (0..drawn.len()).map(value).collect()
}

/// The values of a tensor.
pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, Error> {
    let values = tensor.into_data().try_into_vec();
    values.map_err(|error| Error::Values { reason: format!("{error:?}") })
}
