//! Text to pictures: three parts that take turns in memory, within one budget.

use std::path::{Path, PathBuf};

use burn::tensor::{DType, Tensor, TensorData};
use outsize_checkpoint::Checkpoint;
use outsize_core::{InTurn, Turns, process_bytes};
use outsize_generate::gpu_contexts;
use outsize_kernels::{BufferReuse, free_buffers};
use outsize_models::arch::{AutoencoderKl, ClipTextModel};

use crate::denoising::{Denoising, values};
use crate::error::Error;
use crate::files::TOKENIZER;
use crate::model::{COLOURS, ImageModel};
use crate::part::{PartPlan, PipelinePart};
use crate::picture::{Picture, byte};
use crate::progress::ImageProgress;
use crate::schedulers::Scheduler;
use crate::settings::{ImageRequest, ImageSettings};
use crate::tokenizer::ClipTokenizerFiles;

/// A text-to-image model within a memory budget. Between two calls it holds no weights.
#[derive(Debug)]
pub struct ImagePipeline {
    model: ImageModel,
    /// Text encoder, denoiser and autoencoder.
    checkpoints: [Checkpoint; 3],
    /// The folder of the tokenizer.
    tokenizer: PathBuf,
    settings: ImageSettings,
}

impl ImagePipeline {
    /// Opens the model in `folder`; of weights only headers are read. For `variant` see
    /// [`PipelineFiles::choose`](crate::PipelineFiles::choose).
    ///
    /// # Errors
    /// What is missing, damaged or not built in, and parts that do not belong together.
    pub fn open(
        folder: &Path,
        variant: Option<&str>,
        settings: ImageSettings,
    ) -> Result<Self, Error> {
        let (model, checkpoints) = ImageModel::with_checkpoints(folder, variant)?;
        Ok(Self { model, checkpoints, tokenizer: folder.join(TOKENIZER), settings })
    }

    /// The model: what it can make, and what that takes.
    pub fn model(&self) -> &ImageModel {
        &self.model
    }

    /// What it is run with.
    pub fn settings(&self) -> &ImageSettings {
        &self.settings
    }

    /// Makes the pictures that are asked for, in the order of their seeds.
    ///
    /// # Errors
    /// What is wrong with the request, how many bytes of budget would do, and what a read says. See [`Error::is_stopped`].
    pub fn generate(&self, request: &ImageRequest) -> Result<Vec<Picture>, Error> {
        self.generate_watched(request, |_| {})
    }

    /// The same; `observe` is told what is being done.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_watched(
        &self,
        request: &ImageRequest,
        mut observe: impl FnMut(ImageProgress<'_>),
    ) -> Result<Vec<Picture>, Error> {
        if !request.guidance_scale.is_finite() {
            return Err(Error::Guidance { scale: request.guidance_scale });
        }
        let (model, settings) = (&self.model, &self.settings);
        let scheduler = Scheduler::new(&model.scheduler(request)?.0, request.steps)?;
        let mut settings = settings.clone();
        for number in settings.gpus().collect::<Vec<_>>() {
            // Before the GPU is opened.
            let context = gpu_contexts().get(&number).copied().unwrap_or(0);
            outsize_core::gpu(number)?;
            settings.gpu_context = settings.gpu_context.max(context);
        }
        if settings.gpus().next().is_some() {
            // With what drivers take of the process's memory.
            let held = outsize_machine::current_rss().unwrap_or(0);
            settings.process = settings.process.max(process_bytes(held));
        }
        let settings = &settings;
        let plans = model.plan(settings, request)?;
        let prediction = model.predict(&plans, request)?;
        observe(ImageProgress::Planned { plans: &plans, prediction: &prediction });
        let [text_plan, unet_plan, vae_plan] = &plans;
        let [of_text, of_unet, of_vae] = &self.checkpoints;
        let turns = Turns::default();
        let text_encoder =
            turns.module(|| model.text_encoder.dispatch(of_text, settings, text_plan));
        let unet = turns.module(|| model.unet.dispatch(of_unet, settings, unet_plan));
        let vae = turns.module(|| model.vae.dispatch(of_vae, settings, vae_plan));

        let _reuse = BufferReuse::begin();
        let began = |plan: &'_ PartPlan, observe: &mut dyn FnMut(ImageProgress<'_>)| {
            // What the part before worked with.
            free_buffers();
            observe(ImageProgress::Began { part: plan.part, map: &plan.map });
        };
        began(text_plan, &mut observe);
        let context = self.encode(request, &text_encoder, &mut observe)?;
        began(unet_plan, &mut observe);
        let denoising = Denoising {
            request,
            context,
            scheduler,
            size: model.latents(request)?,
            channels: model.unet.config.config.in_channels,
            device: &settings.device,
        };
        let latents = (0..request.seeds.len())
            .map(|picture| denoising.latents(picture, &unet, &mut observe))
            .collect::<Result<Vec<_>, _>>()?;
        drop(denoising);
        let stats = unet.run(|unet| unet.stats())?;
        observe(ImageProgress::Ended { part: PipelinePart::Unet, stats });
        began(vae_plan, &mut observe);
        let pictures = latents.into_iter().map(|latents| self.decode(request, latents, &vae));
        let pictures = pictures.collect::<Result<Vec<_>, _>>()?;
        let stats = vae.run(|vae| vae.stats())?;
        observe(ImageProgress::Ended { part: PipelinePart::Vae, stats });
        Ok(pictures)
    }

    /// The prompts as the denoiser reads them: `[texts, tokens, width]`.
    fn encode(
        &self,
        request: &ImageRequest,
        text_encoder: &InTurn<'_, ClipTextModel>,
        observe: &mut dyn FnMut(ImageProgress<'_>),
    ) -> Result<Tensor<3>, Error> {
        let tokenizer = ClipTokenizerFiles::read(&self.tokenizer)?.load()?;
        let texts = request.texts();
        let mut ids = Vec::with_capacity(texts.len() * tokenizer.length());
        for text in &texts {
            let encoded = tokenizer.encode(text)?;
            if let Some(cut) = &encoded.cut {
                observe(ImageProgress::Cut { text: cut });
            }
            ids.extend(encoded.ids);
        }
        drop(tokenizer);
        let (context, stats) = text_encoder.run(|module| {
            let context = module.run(|model| model.forward(&ids, texts.len()))?;
            Ok::<_, outsize_core::Error>((context, module.stats()))
        })??;
        let context = context.map_err(|error| Error::Prompt {
            path: self.model.config_path(PipelinePart::TextEncoder),
            reason: error.to_string(),
        })?;
        observe(ImageProgress::Ended { part: PipelinePart::TextEncoder, stats });
        Ok(context)
    }

    fn decode(
        &self,
        request: &ImageRequest,
        mut latents: Vec<f32>,
        vae: &InTurn<'_, AutoencoderKl>,
    ) -> Result<Picture, Error> {
        let [width, height] = self.model.size(request)?;
        let [rows, columns] = self.model.latents(request)?;
        let config = &self.model.vae.config.config;
        let factor = config.scaling_factor as f32;
        latents.iter_mut().for_each(|value| *value /= factor);
        let data = TensorData::new(latents, [1, rows, columns, config.latent_channels]);
        let latents = Tensor::<4>::from_data(data, (&self.settings.device, DType::F32));
        let mut rgb = Vec::with_capacity(COLOURS * width * height);
        let mut failed = None;
        vae.run(|vae| {
            vae.run(|model| {
                model.decode(latents, |rows| match values(rows) {
                    Ok(values) => rgb.extend(values.into_iter().map(byte)),
                    Err(error) => failed = Some(error),
                });
            })
        })??;
        match failed {
            Some(error) => Err(error),
            None => Ok(Picture { width, height, rgb }),
        }
    }
}
