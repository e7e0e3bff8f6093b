//! Text to pictures: three parts that take turns in memory, within one budget.

use std::path::Path;

use burn::tensor::{DType, Tensor, TensorData};
use outsize_core::{InTurn, Turns, memory_overhead, process_bytes};
use outsize_models::PictureSize;
use outsize_models::arch::{AutoencoderKl, ClipTextModel, Unet2dConditionModel};
use outsize_plan::{DeviceMap, Estimate, MemoryOverhead};
use outsize_stream::Stats;

use crate::error::Error;
use crate::folder::PipelineFolder;
use crate::json_file::read_config;
use crate::noise::randn;
use crate::part::{OpenedPart, PartPlan, PipelinePart};
use crate::picture::{Picture, byte};
use crate::schedulers::{Scheduler, SchedulerConfig};
use crate::settings::{ImageRequest, ImageSettings};
use crate::tokenizer::ClipTokenizerFiles;

/// The most rows and columns of a picture.
const MAX_SIDE: usize = 1 << 14;

/// Colours of a pixel.
const COLOURS: usize = 3;

/// What is being done, for those who want to watch.
#[derive(Debug)]
pub enum ImageProgress<'a> {
    /// There was no room for the end of a prompt.
    Cut {
        /// The text that is not heard.
        text: &'a str,
    },
    /// It is a part's turn.
    Began {
        /// Which.
        part: PipelinePart,
        /// Where its weights live.
        map: &'a DeviceMap,
    },
    /// A step is done.
    Step {
        /// The picture, from 0.
        picture: usize,
        /// Steps that are done of it.
        done: usize,
        /// Steps of each picture: of some schedulers one more than were asked for.
        steps: usize,
        /// Rows and columns of the latents.
        size: [usize; 2],
        /// The latents, `[rows, columns, channels]`.
        latents: &'a [f32],
    },
    /// A part is done.
    Ended {
        /// Which.
        part: PipelinePart,
        /// What it read and waited for.
        stats: Stats,
    },
}

/// A text-to-image pipeline that is opened and not placed: its configurations and the headers of its weights are read.
#[derive(Debug)]
pub struct ImagePipeline {
    folder: PipelineFolder,
    text_encoder: OpenedPart<ClipTextModel>,
    unet: OpenedPart<Unet2dConditionModel>,
    vae: OpenedPart<AutoencoderKl>,
    scheduler: String,
    /// What the process takes by itself, in bytes.
    process: u64,
    /// What the tokenizer takes, in bytes.
    tokenizer: u64,
}

impl ImagePipeline {
    /// Opens the pipeline in `folder`; of weights only headers are read. For `variant` see [`PipelineFolder::open`].
    ///
    /// # Errors
    /// What is missing, damaged or not built in, and parts that do not belong together.
    pub fn open(folder: &Path, variant: Option<&str>) -> Result<Self, Error> {
        let folder = PipelineFolder::open(folder, variant)?;
        let process = process_bytes(outsize_machine::current_rss().unwrap_or(0));
        let scheduler = read_config(&folder.scheduler)?.unwrap_or_default();
        let pipeline = Self {
            text_encoder: OpenedPart::open(PipelinePart::TextEncoder, &folder.text_encoder)?,
            unet: OpenedPart::open(PipelinePart::Unet, &folder.unet)?,
            vae: OpenedPart::open(PipelinePart::Vae, &folder.vae)?,
            tokenizer: ClipTokenizerFiles::read(&folder.tokenizer)?.memory(),
            scheduler,
            process,
            folder,
        };
        pipeline.check()?;
        Ok(pipeline)
    }

    /// Whether the parts belong together.
    fn check(&self) -> Result<(), Error> {
        let (text, unet, vae) =
            (&self.text_encoder.config.config, &self.unet.config.config, &self.vae.config.config);
        let refused =
            |path: &Path, reason: String| Err(Error::Field { path: path.to_owned(), reason });
        let (unet_path, vae_path) = (&self.folder.unet.config, &self.folder.vae.config);
        if unet.cross_attention_dim != text.sizes.hidden {
            return refused(
                unet_path,
                format!(
                    "`cross_attention_dim` is {}, but the text encoder's `hidden_size` is {}",
                    unet.cross_attention_dim, text.sizes.hidden
                ),
            );
        }
        for (field, channels) in
            [("in_channels", unet.in_channels), ("out_channels", unet.out_channels)]
        {
            if channels != vae.latent_channels {
                return refused(
                    unet_path,
                    format!(
                        "`{field}` is {channels}, but the autoencoder's `latent_channels` is {}: models that \
                         change pictures are not built in",
                        vae.latent_channels
                    ),
                );
            }
        }
        match vae.out_channels {
            COLOURS => Ok(()),
            n => refused(vae_path, format!("`out_channels` is {n}, but only 3 is built in")),
        }
    }

    /// The folder, with the files that were found.
    pub fn folder(&self) -> &PipelineFolder {
        &self.folder
    }

    /// What a user should know of it, each a sentence without a full stop.
    pub fn notes(&self) -> Vec<String> {
        let unknown = [
            (&self.folder.text_encoder, &self.text_encoder.config.unknown_fields),
            (&self.folder.unet, &self.unet.config.unknown_fields),
            (&self.folder.vae, &self.vae.config.unknown_fields),
        ];
        let unknown = unknown.iter().filter(|(_, fields)| !fields.is_empty());
        let unknown = unknown.map(|(files, fields)| {
            let (path, fields) = (files.config.display(), fields.join(", "));
            format!("{path} has unknown fields, which are ignored: {fields}")
        });
        let checker = self.folder.has_safety_checker.then(|| {
            "the model's safety checker is not run: pictures are not checked for what some may not want to see"
                .to_owned()
        });
        unknown.chain(checker).collect()
    }

    /// Values in all parameters of a part.
    pub fn parameter_count(&self, part: PipelinePart) -> u64 {
        match part {
            PipelinePart::TextEncoder => self.text_encoder.config.parameter_count(),
            PipelinePart::Unet => self.unet.config.parameter_count(),
            PipelinePart::Vae => self.vae.config.parameter_count(),
        }
    }

    /// The scheduler's configuration as it is run, and the names of fields whose values diffusers overrides for such a
    /// pipeline.
    ///
    /// # Errors
    /// What is not built in.
    pub fn scheduler(
        &self,
        request: &ImageRequest,
    ) -> Result<(SchedulerConfig, Vec<&'static str>), Error> {
        let path = &self.folder.scheduler;
        let mut config = SchedulerConfig::from_json(path, &self.scheduler, request.scheduler)?;
        let changed = config.for_stable_diffusion();
        Ok((config, changed))
    }

    /// Pixels of a latent's side.
    fn scale(&self) -> usize {
        1 << (self.vae.config.config.channels.len() - 1)
    }

    /// Width and height of the pictures.
    ///
    /// # Errors
    /// [`Error::Size`]: sides that are not multiples of a latent's, or too long.
    pub fn size(&self, request: &ImageRequest) -> Result<[usize; 2], Error> {
        let scale = self.scale();
        let usual = self.unet.config.config.sample_size.map_or(512, |side| side * scale);
        for (side, given) in [("width", request.width), ("height", request.height)] {
            let side_pixels = given.unwrap_or(usual);
            if !(1..=MAX_SIDE).contains(&side_pixels) || !side_pixels.is_multiple_of(scale) {
                return Err(Error::Size { side, pixels: side_pixels, scale, most: MAX_SIDE });
            }
        }
        Ok([request.width.unwrap_or(usual), request.height.unwrap_or(usual)])
    }

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
        Ok([
            self.text_encoder.plan(settings, text_encoder)?,
            self.unet.plan(settings, unet)?,
            self.vae.plan(settings, vae)?,
        ])
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
            self.text_encoder.estimate(settings, text_encoder)?,
            self.unet.estimate(settings, unet)?,
            self.vae.estimate(settings, vae)?,
        ])
    }

    /// What each part needs besides its weights.
    fn needs(
        &self,
        settings: &ImageSettings,
        request: &ImageRequest,
    ) -> Result<[MemoryOverhead; 3], Error> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let [width, height] = self.size(request)?;
        let [rows, columns] = [height, width].map(|side| side / self.scale());
        let (texts, pictures) = (request.texts().len(), request.seeds.len() as u64);
        let text = &self.text_encoder.config.config.sizes;
        let latents = PictureSize { batch: texts, rows, columns };
        let pixels = (width * height) as u64;
        // Eight copies of latents cover what schedulers remember and what goes in and out of the denoiser.
        let passed_on = 4 * (texts * text.positions * text.hidden) as u64
            + 4 * (pictures + 8) * latents.pixels() * self.unet.config.config.in_channels as u64
            + pictures * pixels * COLOURS as u64;
        let process = settings.process.max(self.process);
        let process = process.saturating_add(self.tokenizer).saturating_add(passed_on);
        let token_rows = (texts * text.positions) as u64;
        let convolutions = outsize_kernels::matmul::convolution_bytes() * threads as u64;
        // Matmuls of pixels are convolutions; what is left is the embedding of a time.
        let packed = [
            self.text_encoder.packed_bytes(settings, token_rows),
            convolutions.saturating_add(self.unet.packed_bytes(settings, 1)),
            convolutions,
        ];
        let one = PictureSize { batch: 1, ..latents };
        let activations = [
            self.text_encoder.config.model().activation_bytes(texts, text.positions, threads),
            self.unet.config.model().activation_bytes(latents, text.positions, threads),
            // Beside a band, its pixels.
            self.vae.config.model().activation_bytes(one, threads),
        ];
        let mut kept = 0;
        Ok([0, 1, 2].map(|part| {
            // Threads keep the memory of their largest product.
            kept = packed[part].max(kept);
            memory_overhead(process, activations[part].saturating_add(kept))
        }))
    }

    /// Makes the pictures that are asked for, in the order of their seeds. `observe` is told what is being done.
    ///
    /// # Errors
    /// What is wrong with the request, how many bytes of budget would do, and what a read says. See [`Error::is_stopped`].
    pub fn generate(
        &self,
        settings: &ImageSettings,
        request: &ImageRequest,
        mut observe: impl FnMut(ImageProgress<'_>),
    ) -> Result<Vec<Picture>, Error> {
        if !request.guidance_scale.is_finite() {
            return Err(Error::Guidance { scale: request.guidance_scale });
        }
        let (config, _) = self.scheduler(request)?;
        let scheduler = Scheduler::new(&config, request.steps)?;
        let plans = self.plan(settings, request)?;
        let [text_plan, unet_plan, vae_plan] = &plans;
        let turns = Turns::default();
        let text_encoder = turns.module(|| self.text_encoder.dispatch(settings, text_plan));
        let unet = turns.module(|| self.unet.dispatch(settings, unet_plan));
        let vae = turns.module(|| self.vae.dispatch(settings, vae_plan));

        let began = |plan: &'_ PartPlan, observe: &mut dyn FnMut(ImageProgress<'_>)| {
            // What the part before worked with.
            outsize_kernels::free_buffers();
            observe(ImageProgress::Began { part: plan.part, map: &plan.map });
        };
        began(text_plan, &mut observe);
        let context = self.encode(request, &text_encoder, &mut observe)?;
        began(unet_plan, &mut observe);
        let mut latents = Vec::with_capacity(request.seeds.len());
        for (picture, seed) in request.seeds.iter().enumerate() {
            let job = Denoising { picture, seed: *seed, scheduler: scheduler.clone() };
            latents.push(self.denoise(request, job, &context, &unet, settings, &mut observe)?);
        }
        drop(context);
        let stats = unet.run(|unet| unet.stats())?;
        observe(ImageProgress::Ended { part: PipelinePart::Unet, stats });
        began(vae_plan, &mut observe);
        let pictures =
            latents.into_iter().map(|latents| self.decode(request, latents, &vae, settings));
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
        let tokenizer = ClipTokenizerFiles::read(&self.folder.tokenizer)?.load()?;
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
            path: self.folder.text_encoder.config.clone(),
            reason: error.to_string(),
        })?;
        observe(ImageProgress::Ended { part: PipelinePart::TextEncoder, stats });
        Ok(context)
    }

    /// The latents of one picture, `[rows, columns, channels]`.
    fn denoise(
        &self,
        request: &ImageRequest,
        job: Denoising,
        context: &Tensor<3>,
        unet: &InTurn<'_, Unet2dConditionModel>,
        settings: &ImageSettings,
        observe: &mut dyn FnMut(ImageProgress<'_>),
    ) -> Result<Vec<f32>, Error> {
        let Denoising { picture, seed, mut scheduler } = job;
        let [width, height] = self.size(request)?;
        let [rows, columns] = [height, width].map(|side| side / self.scale());
        let channels = self.unet.config.config.in_channels;
        let mut latents = initial_noise(seed, [rows, columns, channels]);
        let scale = scheduler.initial_scale();
        latents.iter_mut().for_each(|value| *value *= scale);
        let texts = request.texts().len();
        let timesteps = scheduler.timesteps().to_vec();
        for (step, &timestep) in timesteps.iter().enumerate() {
            let divisor = scheduler.input_divisor();
            let scaled = latents.iter().map(|value| value / divisor);
            let input: Vec<f32> = match texts {
                1 => scaled.collect(),
                _ => scaled.clone().chain(scaled).collect(),
            };
            let data = TensorData::new(input, [texts, rows, columns, channels]);
            let input = Tensor::<4>::from_data(data, (&settings.device, DType::F32));
            let output = unet
                .run(|unet| unet.run(|model| model.forward(input, timestep, context.clone())))??;
            let mut output = values(output)?;
            if request.guides() {
                let (without, with) = output.split_at_mut(latents.len());
                for (without, with) in without.iter_mut().zip(with) {
                    *without += request.guidance_scale * (*with - *without);
                }
            }
            output.truncate(latents.len());
            scheduler.step(&output, &mut latents);
            if latents.iter().any(|value| !value.is_finite()) {
                return Err(Error::NotFinite { step: step + 1 });
            }
            let (done, steps) = (step + 1, timesteps.len());
            let size = [rows, columns];
            observe(ImageProgress::Step { picture, done, steps, size, latents: &latents });
        }
        Ok(latents)
    }

    fn decode(
        &self,
        request: &ImageRequest,
        mut latents: Vec<f32>,
        vae: &InTurn<'_, AutoencoderKl>,
        settings: &ImageSettings,
    ) -> Result<Picture, Error> {
        let [width, height] = self.size(request)?;
        let [rows, columns] = [height, width].map(|side| side / self.scale());
        let config = &self.vae.config.config;
        let factor = config.scaling_factor as f32;
        latents.iter_mut().for_each(|value| *value /= factor);
        let data = TensorData::new(latents, [1, rows, columns, config.latent_channels]);
        let latents = Tensor::<4>::from_data(data, (&settings.device, DType::F32));
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

/// A picture to be freed from noise.
struct Denoising {
    picture: usize,
    seed: u64,
    scheduler: Scheduler,
}

/// Noise in the order of `[rows, columns, channels]`, drawn in the order of `[channels, rows, columns]` as diffusers does.
fn initial_noise(seed: u64, [rows, columns, channels]: [usize; 3]) -> Vec<f32> {
    let pixels = rows * columns;
    let mut drawn = vec![0.0; pixels * channels];
    randn(seed, &mut drawn);
    let value = |index: usize| drawn[index % channels * pixels + index / channels];
    (0..drawn.len()).map(value).collect()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, Error> {
    let values = tensor.into_data().try_into_vec();
    values.map_err(|error| Error::Values { reason: format!("{error:?}") })
}
