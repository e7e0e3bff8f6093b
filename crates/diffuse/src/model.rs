//! What a pipeline's configurations and the headers of its weights say of it: what it can make, and what that takes.

use std::path::{Path, PathBuf};

use outsize_checkpoint::{CONFIG_LIMIT, Checkpoint, read_optional_text};
use outsize_core::process_bytes;
use outsize_models::arch::{AutoencoderKl, TIME_IDS};

use crate::denoiser::Denoiser;
use crate::error::Error;
use crate::files::{PipelineFiles, SCHEDULER_CONFIG};
use crate::kind::PipelineKind;
use crate::part::{AnyPart, Part, PartDescription, PipelinePart};
use crate::schedulers::SchedulerConfig;
use crate::settings::ImageRequest;
use crate::text_encoder::TextEncoder;
use crate::tokenizer::ClipTokenizerFiles;

/// The most rows and columns of a picture.
const MAX_SIDE: usize = 1 << 14;

/// Colours of a pixel.
pub(crate) const COLOURS: usize = 3;

/// What a pipeline's files say, wherever they are.
#[derive(Debug)]
pub struct PipelineDescription {
    /// Where messages say that it is.
    pub place: PathBuf,
    /// Its files.
    pub files: PipelineFiles,
    /// What those of its [parts](PipelineKind::parts) say.
    pub parts: Vec<PartDescription>,
    /// The text of the `scheduler_config.json`.
    pub scheduler: String,
    /// What the largest of its tokenizers takes, in bytes.
    pub tokenizer_bytes: u64,
}

/// A text-to-image model that is described and not placed.
#[derive(Debug)]
pub struct ImageModel {
    pub(crate) place: PathBuf,
    kind: PipelineKind,
    pub(crate) text_encoders: Vec<TextEncoder>,
    pub(crate) denoiser: Denoiser,
    pub(crate) vae: Part<AutoencoderKl>,
    scheduler: String,
    has_safety_checker: bool,
    pub(crate) zeros_for_empty: bool,
    /// What the process takes by itself, in bytes.
    pub(crate) process: u64,
    /// What the largest tokenizer takes, in bytes.
    pub(crate) tokenizer: u64,
}

impl ImageModel {
    /// Describes the pipeline in `folder`; of weights only headers are read. For `variant` see [`PipelineFiles::choose`].
    ///
    /// # Errors
    /// What is missing, damaged or not built in, and parts that do not belong together.
    pub fn open(folder: &Path, variant: Option<&str>) -> Result<Self, Error> {
        Ok(Self::with_checkpoints(folder, variant)?.0)
    }

    /// The same with what holds the weights.
    pub(crate) fn with_checkpoints(
        folder: &Path,
        variant: Option<&str>,
    ) -> Result<(Self, Vec<Checkpoint>), Error> {
        let files = PipelineFiles::open(folder, variant)?;
        let text = |name: &str| {
            let text = read_optional_text(&folder.join(name), CONFIG_LIMIT)?;
            text.ok_or_else(|| Error::no_file(folder, name))
        };
        let (mut parts, mut checkpoints) = (Vec::new(), Vec::new());
        for part in &files.parts {
            let checkpoint = Checkpoint::open(folder.join(&part.weights));
            let checkpoint = checkpoint.map_err(outsize_core::Error::from)?;
            let tensors = checkpoint.tensors().to_vec();
            parts.push(PartDescription { config: text(&part.config)?, tensors });
            checkpoints.push(checkpoint);
        }
        let mut tokenizer_bytes = 0;
        for (name, _) in files.kind.tokenizers() {
            tokenizer_bytes =
                ClipTokenizerFiles::read(&folder.join(name))?.memory().max(tokenizer_bytes);
        }
        let model = Self::new(PipelineDescription {
            place: folder.to_owned(),
            parts,
            scheduler: text(SCHEDULER_CONFIG)?,
            tokenizer_bytes,
            files,
        })?;
        Ok((model, checkpoints))
    }

    /// Of a description. What the process holds by now is counted as its own.
    ///
    /// # Errors
    /// What is not built in, and parts that do not belong together.
    pub fn new(description: PipelineDescription) -> Result<Self, Error> {
        let PipelineDescription { place, files, parts, scheduler, tokenizer_bytes } = description;
        let mut text_encoders = Vec::new();
        let (mut denoiser, mut vae) = (None, None);
        for (part, description) in files.kind.parts().iter().zip(&parts) {
            match part {
                PipelinePart::TextEncoder | PipelinePart::TextEncoder2 => {
                    text_encoders.push(TextEncoder::new(*part, &place, description)?);
                }
                PipelinePart::Unet => denoiser = Some(Denoiser::new(*part, &place, description)?),
                PipelinePart::Vae => vae = Some(Part::new(*part, &place, description)?),
            }
        }
        let (Some(denoiser), Some(vae)) = (denoiser, vae) else {
            return Err(Error::no_file(&place, "vae/config.json"));
        };
        let model = Self {
            text_encoders,
            denoiser,
            vae,
            place,
            kind: files.kind,
            scheduler,
            has_safety_checker: files.has_safety_checker,
            zeros_for_empty: files.zeros_for_empty,
            process: process_bytes(outsize_machine::current_rss().unwrap_or(0)),
            tokenizer: tokenizer_bytes,
        };
        model.check()?;
        Ok(model)
    }

    /// What kind of pipeline it is.
    pub fn kind(&self) -> PipelineKind {
        self.kind
    }

    /// Its parts, in the order in which they take turns.
    pub(crate) fn parts(&self) -> Vec<&dyn AnyPart> {
        let text_encoders = self.text_encoders.iter().map(TextEncoder::any);
        text_encoders.chain([self.denoiser.any(), &self.vae]).collect()
    }

    /// The `config.json` of a part.
    pub(crate) fn config_path(&self, part: PipelinePart) -> PathBuf {
        self.place.join(part.name()).join("config.json")
    }

    /// Whether the parts belong together.
    fn check(&self) -> Result<(), Error> {
        let Denoiser::Unet(unet) = &self.denoiser;
        let (unet, vae) = (&unet.config.config, &self.vae.config.config);
        let refused =
            |part, reason: String| Err(Error::Field { path: self.config_path(part), reason });
        let widths = self.text_encoders.iter().map(TextEncoder::width);
        let width: usize = widths.clone().sum();
        if unet.cross_attention_dim != width {
            let widths: Vec<_> = widths.map(|width| width.to_string()).collect();
            return refused(
                PipelinePart::Unet,
                format!(
                    "`cross_attention_dim` is {}, but the text encoder's `hidden_size` is {}",
                    unet.cross_attention_dim,
                    widths.join(" and that of the second one ")
                ),
            );
        }
        let pooled = self.text_encoders.last().map_or(0, TextEncoder::pooled_width);
        let wanted = (self.kind == PipelineKind::StableDiffusionXl).then_some(pooled);
        let found = unet.addition.map(|one| (one.inputs, pooled + TIME_IDS * one.size_channels));
        match (wanted, found) {
            (None, None) => {}
            (Some(_), Some((inputs, told))) if inputs == told => {}
            (Some(_), Some((inputs, told))) => {
                return refused(
                    PipelinePart::Unet,
                    format!(
                        "`projection_class_embeddings_input_dim` is {inputs}, but a text's {pooled} values and six \
                         sizes are {told}: refiners are not built in"
                    ),
                );
            }
            (wanted, _) => {
                let (value, expected) = match wanted {
                    Some(_) => ("unset", "\"text_time\""),
                    None => ("set", "nothing"),
                };
                return refused(
                    PipelinePart::Unet,
                    format!(
                        "`addition_embed_type` is {value}, but a {} has {expected} there",
                        self.kind.class_name()
                    ),
                );
            }
        }
        for (field, channels) in
            [("in_channels", unet.in_channels), ("out_channels", unet.out_channels)]
        {
            if channels != vae.latent_channels {
                return refused(
                    PipelinePart::Unet,
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
            n => {
                refused(PipelinePart::Vae, format!("`out_channels` is {n}, but only 3 is built in"))
            }
        }
    }

    /// What a user should know of it, each a sentence without a full stop.
    pub fn notes(&self) -> Vec<String> {
        let unknown = self.parts().into_iter().filter(|part| !part.unknown_fields().is_empty());
        let unknown = unknown.map(|part| {
            let (path, fields) = (self.config_path(part.part()), part.unknown_fields().join(", "));
            format!("{} has unknown fields, which are ignored: {fields}", path.display())
        });
        let checker = self.has_safety_checker.then(|| {
            "the model's safety checker is not run: pictures are not checked for what some may not want to see"
                .to_owned()
        });
        unknown.chain(checker).collect()
    }

    /// Values in all parameters of a part; none of one that it does not have.
    pub fn parameter_count(&self, part: PipelinePart) -> u64 {
        let parts = self.parts().into_iter();
        parts.filter(|one| one.part() == part).map(|part| part.parameter_count()).sum()
    }

    /// Steps of the scheduler.
    pub fn steps(&self, request: &ImageRequest) -> usize {
        request.steps.unwrap_or(self.kind.steps())
    }

    /// How much more the prompt counts than the negative one.
    pub fn guidance_scale(&self, request: &ImageRequest) -> f32 {
        request.guidance_scale.unwrap_or(self.kind.guidance_scale())
    }

    /// The same if both are looked at.
    pub(crate) fn guidance(&self, request: &ImageRequest) -> Option<f32> {
        Some(self.guidance_scale(request)).filter(|scale| *scale > 1.0)
    }

    /// Texts that the denoiser hears of at once: the negative prompt with guidance, and the prompt.
    pub(crate) fn texts(&self, request: &ImageRequest) -> usize {
        if self.guidance(request).is_some() { 2 } else { 1 }
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
        let path = self.place.join(SCHEDULER_CONFIG);
        let mut config = SchedulerConfig::from_json(&path, &self.scheduler, request.scheduler)?;
        let changed = match self.kind {
            PipelineKind::StableDiffusion => config.for_stable_diffusion(),
            PipelineKind::StableDiffusionXl => Vec::new(),
        };
        Ok((config, changed))
    }

    /// Pixels of a latent's side.
    pub(crate) fn scale(&self) -> usize {
        1 << (self.vae.config.config.channels.len() - 1)
    }

    /// Width and height of the pictures.
    ///
    /// # Errors
    /// [`Error::Size`]: sides that are not multiples of a latent's, or too long.
    pub fn size(&self, request: &ImageRequest) -> Result<[usize; 2], Error> {
        let scale = self.scale();
        let usual = self.denoiser.sample_size().map_or(512, |side| side * scale);
        for (side, given) in [("width", request.width), ("height", request.height)] {
            let side_pixels = given.unwrap_or(usual);
            if !(1..=MAX_SIDE).contains(&side_pixels) || !side_pixels.is_multiple_of(scale) {
                return Err(Error::Size { side, pixels: side_pixels, scale, most: MAX_SIDE });
            }
        }
        Ok([request.width.unwrap_or(usual), request.height.unwrap_or(usual)])
    }

    /// Rows and columns of their latents.
    ///
    /// # Errors
    /// As [`size`](Self::size).
    pub(crate) fn latents(&self, request: &ImageRequest) -> Result<[usize; 2], Error> {
        let [width, height] = self.size(request)?;
        Ok([height, width].map(|side| side / self.scale()))
    }
}
