//! What a pipeline's configurations and the headers of its weights say of it: what it can make, and
//! what that takes.

mod check;
mod size;

use std::path::{Path, PathBuf};

use outsize_checkpoint::{CONFIG_LIMIT, Checkpoint, read_optional_text};
use outsize_core::process_bytes;
use outsize_models::arch::{AutoencoderKl, AutoencoderKlEncoder};

use crate::adapter::AdapterFile;
use crate::denoiser::{Denoiser, Guidance};
use crate::error::Error;
use crate::files::{PartFiles, PipelineFiles, SCHEDULER_CONFIG};
use crate::kind::PipelineKind;
use crate::part::{AnyPart, Part, PartDescription};
use crate::pipeline_part::PipelinePart;
use crate::preview::PREVIEW_CHANNELS;
use crate::published::SingleFile;
use crate::schedulers::{Scheduler, SchedulerConfig};
use crate::settings::ImageRequest;
use crate::text_encoder::TextEncoder;
use crate::tokenizer::PromptTokenizerFiles;
use crate::vision::Vision;
use outsize_picture::{COLOURS, Picture};

/// Steps of a denoiser that was distilled to make pictures in few, if nobody says how many.
const FEW_STEPS: usize = 4;

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
    /// The text of the file that says how the text encoder sees pictures, if it does.
    pub image_processor: Option<String>,
    /// What the largest of its tokenizers takes, in bytes.
    pub tokenizer_bytes: u64,
}

/// A text-to-image model that is described and not placed.
#[derive(Debug)]
pub struct ImageModel {
    pub(crate) place: PathBuf,
    kind: PipelineKind,
    /// What the text encoder sees pictures by, if it does.
    pub(crate) vision: Option<Vision>,
    pub(crate) text_encoders: Vec<TextEncoder>,
    pub(crate) denoiser: Denoiser,
    /// What reads a picture to begin with, if the autoencoder has it.
    vae_encoder: Option<Part<AutoencoderKlEncoder>>,
    pub(crate) vae: Part<AutoencoderKl>,
    scheduler: String,
    has_safety_checker: bool,
    pub(crate) zeros_for_empty: bool,
    is_distilled: bool,
    /// What the process takes by itself, in bytes.
    pub(crate) process: u64,
    /// What the largest tokenizer takes, in bytes.
    pub(crate) tokenizer: u64,
}

impl ImageModel {
    /// Describes the pipeline in `folder`; of weights only headers are read. For `variant` see
    /// [`PipelineFiles::choose`].
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
        Self::described(folder, files, |_, files, _| open(folder, files))
    }

    /// Describes a checkpoint in one `file`, with the configurations, tokenizers and other parts in
    /// the folder `base`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_file(file: &SingleFile, base: &Path) -> Result<Self, Error> {
        Ok(Self::of_file(file, base)?.0)
    }

    /// The same with what holds the weights.
    pub(crate) fn of_file(
        file: &SingleFile,
        base: &Path,
    ) -> Result<(Self, Vec<Checkpoint>), Error> {
        let in_file = file.parts();
        let kind = PipelineFiles::kind_in(base)?;
        file.check(kind)?;
        let files = PipelineFiles::beside(base, &in_file).map_err(|error| file.beside(error))?;
        Self::described(base, files, |part, files, config| match in_file.contains(&part) {
            true => file.part(kind, part, &base.join(&files.config), config),
            false => open(base, files),
        })
    }

    /// A pipeline whose configurations are in `folder`, and whose weights `open` finds for each
    /// part with its configuration.
    fn described(
        folder: &Path,
        files: PipelineFiles,
        open: impl Fn(PipelinePart, &PartFiles, &str) -> Result<Checkpoint, Error>,
    ) -> Result<(Self, Vec<Checkpoint>), Error> {
        let text = |name: &str| {
            let text = read_optional_text(&folder.join(name), CONFIG_LIMIT)?;
            text.ok_or_else(|| Error::no_file(folder, name))
        };
        let (mut parts, mut checkpoints) = (Vec::new(), Vec::new());
        for (part, part_files) in files.kind.parts().iter().zip(&files.parts) {
            let config = text(&part_files.config)?;
            let checkpoint = open(*part, part_files, &config)?;
            let tensors = checkpoint.tensors().to_vec();
            parts.push(PartDescription { config, tensors });
            checkpoints.push(checkpoint);
        }
        let mut tokenizer_bytes = 0;
        for (name, _) in files.kind.tokenizers() {
            tokenizer_bytes =
                PromptTokenizerFiles::read(&folder.join(name))?.memory().max(tokenizer_bytes);
        }
        let model = Self::new(PipelineDescription {
            place: folder.to_owned(),
            parts,
            scheduler: text(SCHEDULER_CONFIG)?,
            image_processor: files.image_processor.as_deref().map(text).transpose()?,
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
        let PipelineDescription {
            place,
            files,
            parts,
            scheduler,
            image_processor,
            tokenizer_bytes,
        } = description;
        let seen = files.image_processor.as_deref().zip(image_processor.as_deref());
        let (mut vision, mut text_encoders) = (None, Vec::new());
        let (mut denoiser, mut vae_encoder, mut vae) = (None, None, None);
        for (part, description) in files.kind.parts().iter().zip(&parts) {
            match part {
                PipelinePart::VisionEncoder
                | PipelinePart::TextEncoder
                | PipelinePart::TextEncoder2
                | PipelinePart::TextEncoder3 => {
                    if let Some(processor) = seen {
                        vision = Some(Vision::new(&place, description, processor)?);
                    }
                    text_encoders.push(TextEncoder::new(files.kind, *part, &place, description)?);
                }
                PipelinePart::Unet | PipelinePart::Transformer => {
                    denoiser = Some(Denoiser::new(files.kind, *part, &place, description)?);
                }
                PipelinePart::VaeEncoder | PipelinePart::Vae => {
                    let mut tensors = description.tensors.iter();
                    if tensors.any(|tensor| tensor.name.starts_with("encoder.")) {
                        let part = PipelinePart::VaeEncoder;
                        vae_encoder = Some(Part::new(part, &place, description)?);
                    }
                    vae = Some(Part::new(*part, &place, description)?);
                }
            }
        }
        let (Some(denoiser), Some(vae)) = (denoiser, vae) else {
            return Err(Error::no_file(&place, "vae/config.json"));
        };
        let model = Self {
            vision,
            text_encoders,
            denoiser,
            vae_encoder,
            vae,
            place,
            kind: files.kind,
            scheduler,
            has_safety_checker: files.has_safety_checker,
            zeros_for_empty: files.zeros_for_empty,
            is_distilled: files.is_distilled,
            process: process_bytes(outsize_machine::begun_rss().unwrap_or(0)),
            tokenizer: tokenizer_bytes,
        };
        model.check()?;
        Ok(model)
    }

    /// Adds a LoRA adapter, a file or a [folder of one](crate::adapter_file()), to what layers
    /// give; `scale` says how much of it. Of several the sum is added.
    ///
    /// # Errors
    /// [`Error::Adapter`]: what is no such adapter, or has matrices that are not for this model.
    pub fn adapt(&mut self, path: &Path, scale: f64) -> Result<(), Error> {
        let file = AdapterFile::open(path, scale)?;
        let mut claimed = self.denoiser.adapt(&file)?;
        for encoder in &mut self.text_encoders {
            claimed.extend(encoder.adapt(&file)?);
        }
        file.refuse_others(&claimed)
    }

    /// What kind of pipeline it is.
    pub fn kind(&self) -> PipelineKind {
        self.kind
    }

    /// A request that says nothing: of a model that changes pictures, with one that is as large as
    /// those that it was trained with.
    pub fn usual_request(&self) -> ImageRequest {
        let side = self.denoiser.sample_size().unwrap_or_default() * self.scale();
        let blank = Picture { width: side, height: side, rgb: vec![0; COLOURS * side * side] };
        let references = if self.kind.needs_references() { vec![blank] } else { Vec::new() };
        ImageRequest { references, ..ImageRequest::new("") }
    }

    /// Its parts that a request takes, in the order of their turns.
    pub(crate) fn parts(&self, request: &ImageRequest) -> Result<Vec<&dyn AnyPart>, Error> {
        let mut parts: Vec<&dyn AnyPart> = Vec::new();
        parts.extend(self.vision.as_ref().map(|vision| &vision.part as &dyn AnyPart));
        parts.extend(self.text_encoders.iter().map(TextEncoder::any));
        if request.image.is_some() || !request.references.is_empty() {
            parts.push(self.vae_encoder()?);
        }
        parts.extend([self.denoiser.any(), &self.vae as &dyn AnyPart]);
        Ok(parts)
    }

    /// What reads a picture to begin with.
    pub(crate) fn vae_encoder(&self) -> Result<&Part<AutoencoderKlEncoder>, Error> {
        let none = || Error::NoEncoder { folder: self.place.join(PipelinePart::Vae.folder()) };
        self.vae_encoder.as_ref().ok_or_else(none)
    }

    /// Its parts, but for the encoders of pictures.
    fn all_parts(&self) -> impl Iterator<Item = &dyn AnyPart> {
        let text_encoders = self.text_encoders.iter().map(TextEncoder::any);
        text_encoders.chain([self.denoiser.any(), &self.vae as &dyn AnyPart])
    }

    /// The `config.json` of a part.
    pub(crate) fn config_path(&self, part: PipelinePart) -> PathBuf {
        self.place.join(part.folder()).join("config.json")
    }

    /// What a user should know of it, each a sentence without a full stop.
    pub fn notes(&self) -> Vec<String> {
        let unknown = self.all_parts().filter(|part| !part.unknown_fields().is_empty());
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
        let parts = self.all_parts();
        parts.filter(|one| one.part() == part).map(|part| part.parameter_count()).sum()
    }

    /// Steps of the scheduler.
    pub fn steps(&self, request: &ImageRequest) -> usize {
        let usual = match &self.denoiser {
            // It was distilled to need no guidance by a second pass, and few steps.
            Denoiser::Flux(_) if !self.denoiser.is_guided() => FEW_STEPS,
            Denoiser::Unet(_) if self.denoiser.is_guided() => FEW_STEPS,
            _ if self.is_distilled => FEW_STEPS,
            _ => self.kind.steps(),
        };
        request.steps.unwrap_or(usual)
    }

    /// How much more the prompt counts than the negative one.
    pub fn guidance_scale(&self, request: &ImageRequest) -> f32 {
        request.guidance_scale.unwrap_or(self.kind.guidance_scale())
    }

    /// Whether that makes a difference: some models were distilled to need no guidance.
    pub fn takes_guidance(&self) -> bool {
        self.denoiser.is_guided() || self.hears_negative()
    }

    /// Whether a few of its latents' channels show what a picture becomes.
    pub fn has_preview(&self) -> bool {
        self.vae.config.config.latent_channels == PREVIEW_CHANNELS
    }

    /// Whether it does nothing but fill in what a mask shows, so that a request needs a picture to
    /// begin with and a mask.
    pub fn fills_masks(&self) -> bool {
        self.mask_values().is_some()
    }

    /// Values that a denoiser which sees a mask has of it for each latent.
    pub(crate) fn mask_values(&self) -> Option<usize> {
        let latent = self.vae.config.config.latent_channels;
        match self.kind {
            PipelineKind::FluxFill => Some(self.scale().pow(2)),
            _ => (self.denoiser.channels() == with_mask(latent)).then_some(1),
        }
    }

    /// How much of a picture to begin with is lost in noise.
    pub fn strength(&self, request: &ImageRequest) -> f32 {
        let image = request.image.as_ref();
        let has_mask = image.is_some_and(|image| image.mask.is_some());
        image.and_then(|image| image.strength).unwrap_or(self.kind.strength(has_mask))
    }

    /// The scheduler as it begins.
    ///
    /// # Errors
    /// What is not built in, steps that it cannot make, and a strength beyond 0 to 1, or that
    /// leaves no step.
    pub(crate) fn begun_scheduler(&self, request: &ImageRequest) -> Result<Scheduler, Error> {
        let (mut config, _) = self.scheduler(request)?;
        let (steps, strength) = (self.steps(request), self.strength(request));
        let Some(image) = &request.image else {
            return Scheduler::new(&config, steps);
        };
        if !(0.0..=1.0).contains(&strength) {
            return Err(Error::Strength { strength, steps });
        }
        if self.kind == PipelineKind::LatentConsistency && image.mask.is_none() {
            // All steps are made, from less noise.
            if config.begin_at(decimal(strength)) {
                return Scheduler::new(&config, steps);
            }
        }
        let mut scheduler = Scheduler::new(&config, steps)?;
        scheduler.skip(self.skipped_steps(steps, strength)?);
        Ok(scheduler)
    }

    /// Steps that a picture to begin with leaves out.
    fn skipped_steps(&self, steps: usize, strength: f32) -> Result<usize, Error> {
        // In 64 bits and rounded as diffusers does.
        let made = steps as f64 * decimal(strength);
        let made = match self.kind {
            kind if kind.matches_flows() => made.ceil(),
            _ => made.floor(),
        } as usize;
        match made {
            0 => Err(Error::Strength { strength, steps }),
            _ => Ok(steps.saturating_sub(made)),
        }
    }

    /// Whether it can look at a negative prompt, in twice the work.
    pub(crate) fn hears_negative(&self) -> bool {
        self.denoiser.hears_negative() && !self.is_distilled
    }

    /// The same if both are looked at.
    pub(crate) fn guidance(&self, request: &ImageRequest) -> Option<Guidance> {
        let (least, from_prompt) = match self.denoiser {
            Denoiser::ZImage(_) => (0.0, true),
            _ => (1.0, false),
        };
        let scale = self.guidance_scale(request);
        let keeps_lengths = self.kind.is_qwen_image();
        let has_negative =
            !self.kind.needs_negative_prompt() || !request.negative_prompt.is_empty();
        let is_heard = self.hears_negative() && scale > least && has_negative;
        is_heard.then_some(Guidance { scale, from_prompt, keeps_lengths })
    }

    /// Whether a pass looks at the negative prompt too, which is twice the work.
    pub fn looks_at_negative_prompts(&self, request: &ImageRequest) -> bool {
        self.guidance(request).is_some()
    }

    /// Texts that the denoiser hears of at once: the negative prompt with guidance, and the prompt.
    pub(crate) fn texts(&self, request: &ImageRequest) -> usize {
        if self.looks_at_negative_prompts(request) { 2 } else { 1 }
    }

    /// The scheduler's configuration as it is run, and the names of fields whose values diffusers
    /// overrides for such a pipeline.
    ///
    /// # Errors
    /// What is not built in.
    pub fn scheduler(
        &self,
        request: &ImageRequest,
    ) -> Result<(SchedulerConfig, Vec<&'static str>), Error> {
        let path = self.place.join(SCHEDULER_CONFIG);
        let mut config = SchedulerConfig::from_json(&path, &self.scheduler, request.scheduler)?;
        if config.kind.is_flow_match() && !self.kind.matches_flows() {
            let class = config.kind.class_name();
            let reason = format!(
                "`_class_name` is \"{class}\", but a {} predicts noise: take the file from the model's own repository",
                self.kind.class_name()
            );
            return Err(Error::Field { path, reason });
        }
        let changed = match self.kind {
            PipelineKind::StableDiffusion => config.for_stable_diffusion(),
            PipelineKind::StableDiffusionXl | PipelineKind::LatentConsistency => Vec::new(),
            PipelineKind::StableDiffusion3
            | PipelineKind::Flux
            | PipelineKind::FluxFill
            | PipelineKind::FluxKontext
            | PipelineKind::ZImage
            | PipelineKind::Flux2
            | PipelineKind::Flux2Klein
            | PipelineKind::QwenImage
            | PipelineKind::QwenImageEdit
            | PipelineKind::QwenImageEditPlus => {
                let packing = self.denoiser.packing();
                let [rows, columns] = self.latents(request)?.map(|side| side / packing);
                match self.kind {
                    PipelineKind::StableDiffusion3 => {
                        config.for_stable_diffusion_3(rows * columns)?;
                    }
                    kind if kind.is_flux2() => {
                        config.for_flux2(rows * columns, self.steps(request))?;
                    }
                    _ => config.for_flux(rows * columns)?,
                }
                Vec::new()
            }
        };
        Ok((config, changed))
    }
}

/// The weights of a part.
fn open(folder: &Path, files: &PartFiles) -> Result<Checkpoint, Error> {
    let opened = Checkpoint::open(folder.join(&files.weights));
    Ok(opened.map_err(outsize_core::Error::from)?)
}

/// Channels that go into a denoiser which fills in masks: its own latents, the mask, and the
/// latents of what is kept.
fn with_mask(latent: usize) -> usize {
    2 * latent + 1
}

/// The number that somebody wrote who meant this one: 0.7, where as many bits are 0.699999988.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
