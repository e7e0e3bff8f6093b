//! Text to pictures: parts that take turns in memory, within one budget.

use std::path::Path;

use burn::tensor::{DType, Tensor, TensorData};
use outsize_checkpoint::Checkpoint;
use outsize_core::{InTurn, Turns, process_bytes};
use outsize_generate::{ImageIds, gpu_contexts, place_images};
use outsize_kernels::{BufferReuse, free_buffers};
use outsize_models::arch::{AddedConditions, AutoencoderKl};

use crate::begun::{BegunLatents, LatentDistribution, ResizedImage};
use crate::denoiser::{Conditions, PACKING};
use crate::denoising::{Denoising, values};
use crate::error::Error;
use crate::kind::PipelineKind;
use crate::latent_tokens::{TokenOrder, packed};
use crate::model::ImageModel;
use crate::part::Turn;
use crate::pipeline_part::PipelinePart;
use crate::progress::ImageProgress;
use crate::published::SingleFile;
use crate::references::References;
use crate::settings::{ImageRequest, ImageSettings};
use crate::text_encoder::TextStates;
use crate::tokenizer::PromptTokenizerFiles;
use crate::vision::SeenPicture;
use outsize_picture::{COLOURS, Picture, byte};

/// A text-to-image model within a memory budget. Between two calls it holds no weights.
#[derive(Debug)]
pub struct ImagePipeline {
    model: ImageModel,
    /// Those of its parts.
    checkpoints: Vec<Checkpoint>,
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
        Ok(Self { model, checkpoints, settings })
    }

    /// Opens a checkpoint in one file, as it is published for other software; configurations,
    /// tokenizers and parts that it does not have are those in the folder `base`, as diffusers
    /// saves a model of the same kind: see [`SingleFile::usual_base`].
    ///
    /// # Errors
    /// What is missing, damaged or not built in, and what does not belong together.
    pub fn open_file(
        file: &SingleFile,
        base: &Path,
        settings: ImageSettings,
    ) -> Result<Self, Error> {
        let (model, checkpoints) = ImageModel::of_file(file, base)?;
        Ok(Self { model, checkpoints, settings })
    }

    /// Adds an adapter: see [`ImageModel::adapt`].
    ///
    /// # Errors
    /// As there.
    pub fn adapt(&mut self, path: &Path, scale: f64) -> Result<(), Error> {
        self.model.adapt(path, scale)
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
    /// What is wrong with the request, how many bytes of budget would do, and what a read says. See
    /// [`Error::is_stopped`].
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
        let (model, settings) = (&self.model, &self.settings);
        let scale = model.guidance_scale(request);
        if !scale.is_finite() {
            return Err(Error::Guidance { scale });
        }
        if !model.hears_negative() && !request.negative_prompt.is_empty() {
            return Err(Error::NegativePrompt);
        }
        let mask = request.image.as_ref().and_then(|image| image.mask.as_ref());
        if model.fills_masks() && mask.is_none() {
            return Err(Error::NoMask);
        }
        // Pictures that are not possible are named before what is made of them.
        model.size(request)?;
        let scheduler = model.begun_scheduler(request)?;
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
        let (size, of_latent) = (model.size(request)?, model.scale());
        let resize = |image| ResizedImage::new(image, size, of_latent, model.mask_values());
        let image = request.image.as_ref().map(resize);
        let sizes = model.seen_references(request)?;
        let given = || sizes.iter().zip(&request.references);
        let seen: Vec<_> = given().map(|(size, one)| (size.seen, size.values(one))).collect();
        let told: Vec<_> = given().filter_map(|(size, one)| size.told(one)).collect();
        let (turns, _reuse) = (Turns::default(), BufferReuse::begin());
        let mut plans = plans.iter();
        let mut next = |observe: &mut dyn FnMut(ImageProgress<'_>)| {
            let plan = plans.next().expect("each part has a plan");
            let mut parts = model.kind().parts().iter().zip(&self.checkpoints);
            let checkpoint = parts.find(|(part, _)| part.folder() == plan.part.folder());
            let (_, checkpoint) = checkpoint.expect("each part has a folder");
            // What the part before worked with.
            free_buffers();
            observe(ImageProgress::Began { part: plan.part, map: &plan.map });
            Turn { turns: &turns, settings, plan, checkpoint }
        };
        let mut pictures = Vec::new();
        if let Some(vision) = &model.vision {
            let turn = next(&mut observe);
            let stats;
            (pictures, stats) = vision.see(&turn, &told)?;
            observe(ImageProgress::Ended { part: turn.plan.part, stats });
        }
        drop(told);
        let read = self.read(request);
        let mut states = Vec::with_capacity(model.text_encoders.len());
        for index in 0..model.text_encoders.len() {
            let turn = next(&mut observe);
            states.push(self.encode(index, (&read, &pictures), &turn, &mut observe)?);
        }
        drop(pictures);
        let conditions = self.conditions(request, states)?;
        let mut begun = None;
        if let Some(image) = image {
            let turn = next(&mut observe);
            begun = Some(self.begin(request, image, &turn, &mut observe)?);
        }
        let mut references = References::default();
        if !seen.is_empty() {
            let turn = next(&mut observe);
            references = self.refer(seen, &turn, &mut observe)?;
        }
        let turn = next(&mut observe);
        let denoising = Denoising {
            request,
            guidance: model.guidance(request),
            guidance_scale: scale,
            scheduler,
            begun: begun.as_ref(),
            references: &references,
            draws_tokens: model.kind().is_flux2(),
            size: model.latents(request)?,
            channels: model.vae.config.config.latent_channels,
            device: &settings.device,
        };
        let (latents, stats) = denoising.run(&model.denoiser, &turn, conditions, &mut observe)?;
        observe(ImageProgress::Ended { part: turn.plan.part, stats });
        let turn = next(&mut observe);
        let vae = turn.module(&model.vae);
        let pictures = latents.into_iter().map(|latents| self.decode(request, latents, &vae));
        let pictures = pictures.collect::<Result<Vec<_>, _>>()?;
        let stats = vae.run(|vae| vae.stats())?;
        observe(ImageProgress::Ended { part: PipelinePart::Vae, stats });
        Ok(pictures)
    }

    /// The texts that are read: of an empty negative prompt that is told as zeros, none.
    fn read<'a>(&self, request: &'a ImageRequest) -> Vec<&'a str> {
        let negative = self.model.texts(request) > 1
            && !(self.model.zeros_for_empty && request.negative_prompt.is_empty());
        let negative = negative.then_some(&*request.negative_prompt);
        negative.into_iter().chain([&*request.prompt]).collect()
    }

    /// What one of the text encoders makes of the texts, all of which have these pictures.
    fn encode(
        &self,
        index: usize,
        (texts, pictures): (&[&str], &[SeenPicture]),
        turn: &Turn<'_>,
        observe: &mut dyn FnMut(ImageProgress<'_>),
    ) -> Result<TextStates, Error> {
        let (folder, _) = self.model.kind().tokenizers()[index];
        let encoder = &self.model.text_encoders[index];
        let files = PromptTokenizerFiles::read(&self.model.place.join(folder))?;
        let tokenizer = encoder.tokenizer(files, pictures.len())?;
        let (mut ids, filling) = (Vec::with_capacity(texts.len()), tokenizer.filling());
        let mut places = ImageIds::default();
        let places = pictures.iter().map(|picture| places.take(picture.features.tokens()));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        for text in texts {
            let encoded = tokenizer.encode(text)?;
            // Of several tokenizers the last one says what is not heard by any.
            if let Some(cut) = encoded.cut.filter(|_| index + 1 == self.model.text_encoders.len()) {
                observe(ImageProgress::Cut { text: &cut });
            }
            ids.push(match &self.model.vision {
                Some(vision) => {
                    let images = places.iter().cloned().zip(pictures.iter().map(|one| one.tokens));
                    place_images(&encoded.ids, images, &vision.layout, tokenizer.inner())?
                }
                None => encoded.ids,
            });
        }
        drop(tokenizer);
        let features = pictures.iter().map(|picture| picture.features.clone());
        let pictures: Vec<_> = places.iter().map(|ids| ids.start).zip(features).collect();
        let (states, stats) = encoder.encode(turn, &ids, filling, &pictures)?;
        let states = states.map_err(|error| Error::Prompt {
            path: self.model.config_path(turn.plan.part),
            reason: error.to_string(),
        })?;
        observe(ImageProgress::Ended { part: turn.plan.part, stats });
        Ok(states)
    }

    /// What the autoencoder makes of a picture to begin with.
    fn begin(
        &self,
        request: &ImageRequest,
        image: ResizedImage,
        turn: &Turn<'_>,
        observe: &mut dyn FnMut(ImageProgress<'_>),
    ) -> Result<BegunLatents, Error> {
        let model = &self.model;
        let [width, height] = model.size(request)?;
        let part = model.vae_encoder()?;
        let module = turn.module(part);
        let config = &part.config.config;
        let encode = |picture: Vec<f32>| {
            let data = TensorData::new(picture, [1, height, width, COLOURS]);
            let picture = Tensor::<4>::from_data(data, (&turn.settings.device, DType::F32));
            let moments = module.run(|module| module.run(|model| model.encode(picture)))??;
            Ok::<_, Error>(LatentDistribution {
                moments: values(moments)?,
                channels: config.latent_channels,
                scaling_factors: config.scaling_factors.iter().map(|n| *n as f32).collect(),
                shift_factors: config.shift_factors.iter().map(|n| *n as f32).collect(),
            })
        };
        let is_fill = model.kind() == PipelineKind::FluxFill;
        let begun = BegunLatents {
            image: encode(image.picture)?,
            kept: image.kept.map(encode).transpose()?,
            // In diffusers that one begins with the picture, lost in noise as it is.
            all_noise: image.mask.is_some() && model.strength(request) == 1.0 && !is_fill,
            mask_last: is_fill,
            mask: image.mask,
        };
        let stats = module.run(|module| module.stats())?;
        observe(ImageProgress::Ended { part: turn.plan.part, stats });
        Ok(begun)
    }

    /// What the autoencoder makes of pictures to go by, of which width, height and values are
    /// given.
    fn refer(
        &self,
        pictures: Vec<([usize; 2], Vec<f32>)>,
        turn: &Turn<'_>,
        observe: &mut dyn FnMut(ImageProgress<'_>),
    ) -> Result<References, Error> {
        let part = self.model.vae_encoder()?;
        let (module, config) = (turn.module(part), &part.config.config);
        let mut references = References::default();
        for ([width, height], picture) in pictures {
            let data = TensorData::new(picture, [1, height, width, COLOURS]);
            let picture = Tensor::<4>::from_data(data, (&turn.settings.device, DType::F32));
            let mean = module.run(|module| module.run(|model| model.encode_mean(picture)))??;
            let [_, rows, columns, channels] = mean.dims();
            let mut latents = values(mean)?;
            let factors = config.scaling_factors.iter().zip(&config.shift_factors);
            for (value, (scale, shift)) in latents.iter_mut().zip(factors.cycle()) {
                *value = (*value - *shift as f32) * *scale as f32;
            }
            let data = TensorData::new(latents, [1, rows, columns, channels]);
            let latents = Tensor::<4>::from_data(data, (&turn.settings.device, DType::F32));
            references.tokens.extend(values(packed(latents, TokenOrder::Channels))?);
            references.sizes.push([rows / PACKING, columns / PACKING]);
        }
        let stats = module.run(|module| module.stats())?;
        observe(ImageProgress::Ended { part: turn.plan.part, stats });
        Ok(references)
    }

    /// What the denoiser is told of what the text encoders made.
    fn conditions(
        &self,
        request: &ImageRequest,
        states: Vec<TextStates>,
    ) -> Result<Conditions, Error> {
        let model = &self.model;
        match model.kind() {
            PipelineKind::StableDiffusion | PipelineKind::LatentConsistency => {
                let context = states.into_iter().map(|states| states.last).collect();
                let context = Tensor::cat(context, 2);
                Ok(Conditions { context, lengths: Vec::new(), added: None, pooled: None })
            }
            PipelineKind::StableDiffusionXl => {
                let mut pooled = Vec::with_capacity(2);
                let mut context = Vec::with_capacity(2);
                for states in states {
                    context.extend(states.penultimate);
                    pooled = states.pooled.into_iter().collect();
                }
                let mut context = vec![Tensor::cat(context, 2)];
                if model.texts(request) > context[0].dims()[0] {
                    context.insert(0, context[0].zeros_like());
                    pooled.insert(0, pooled[0].zeros_like());
                }
                let [width, height] = model.size(request)?.map(|side| side as f32);
                let added = AddedConditions {
                    text_embeds: Tensor::cat(pooled, 0),
                    time_ids: [height, width, 0.0, 0.0, height, width],
                };
                let context = Tensor::cat(context, 0);
                let lengths = Vec::new();
                Ok(Conditions { context, lengths, added: Some(added), pooled: None })
            }
            PipelineKind::StableDiffusion3 => {
                let (mut pooled, mut clip, mut context) = (Vec::new(), Vec::new(), Vec::new());
                for states in states {
                    match (states.penultimate, states.pooled) {
                        (Some(tokens), Some(whole)) => {
                            clip.push(tokens);
                            pooled.push(whole);
                        }
                        _ => context.push(states.last),
                    }
                }
                let clip = Tensor::cat(clip, 2);
                let ([texts, tokens, width], [_, _, wider]) = (clip.dims(), context[0].dims());
                // Filled up with zeros.
                let rest = [texts, tokens, wider - width];
                let rest = Tensor::<3>::zeros(rest, (&clip.device(), DType::F32));
                context.insert(0, Tensor::cat(vec![clip, rest], 2));
                let pooled = Some(Tensor::cat(pooled, 1));
                let context = Tensor::cat(context, 1);
                Ok(Conditions { context, lengths: Vec::new(), added: None, pooled })
            }
            PipelineKind::Flux | PipelineKind::FluxFill | PipelineKind::FluxKontext => {
                let (mut pooled, mut context) = (None, Vec::new());
                for states in states {
                    // The tokens are those of the second encoder.
                    context = vec![states.last];
                    pooled = states.pooled.or(pooled);
                }
                let context = Tensor::cat(context, 0);
                Ok(Conditions { context, lengths: Vec::new(), added: None, pooled })
            }
            PipelineKind::ZImage
            | PipelineKind::Flux2
            | PipelineKind::Flux2Klein
            | PipelineKind::QwenImage
            | PipelineKind::QwenImageEdit
            | PipelineKind::QwenImageEditPlus => {
                let mut states = states.into_iter();
                let TextStates { last: context, lengths, .. } =
                    states.next().expect("it has a text encoder");
                Ok(Conditions { context, lengths, added: None, pooled: None })
            }
        }
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
        let factors = config.scaling_factors.iter().zip(&config.shift_factors);
        for (value, (scale, shift)) in latents.iter_mut().zip(factors.cycle()) {
            *value = *value / *scale as f32 + *shift as f32;
        }
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
