//! What a pipeline's configurations and the headers of its weights say of it: what it can make, and what that takes.

use std::path::{Path, PathBuf};

use outsize_checkpoint::{CONFIG_LIMIT, Checkpoint, read_optional_text};
use outsize_core::process_bytes;
use outsize_models::arch::{AutoencoderKl, ClipTextModel, Unet2dConditionModel};

use crate::error::Error;
use crate::files::{PipelineFiles, SCHEDULER_CONFIG, TOKENIZER};
use crate::part::{Part, PartDescription, PipelinePart};
use crate::schedulers::SchedulerConfig;
use crate::settings::ImageRequest;
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
    /// Text encoder, denoiser and autoencoder.
    pub parts: [PartDescription; 3],
    /// The text of the `scheduler_config.json`.
    pub scheduler: String,
    /// What its tokenizer takes, in bytes.
    pub tokenizer_bytes: u64,
    /// Whether it has a safety checker, which is not run.
    pub has_safety_checker: bool,
}

/// A text-to-image model that is described and not placed.
#[derive(Debug)]
pub struct ImageModel {
    pub(crate) place: PathBuf,
    pub(crate) text_encoder: Part<ClipTextModel>,
    pub(crate) unet: Part<Unet2dConditionModel>,
    pub(crate) vae: Part<AutoencoderKl>,
    scheduler: String,
    has_safety_checker: bool,
    /// What the process takes by itself, in bytes.
    pub(crate) process: u64,
    /// What the tokenizer takes, in bytes.
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
    ) -> Result<(Self, [Checkpoint; 3]), Error> {
        let files = PipelineFiles::open(folder, variant)?;
        let text = |name: &str| {
            let text = read_optional_text(&folder.join(name), CONFIG_LIMIT)?;
            text.ok_or_else(|| Error::no_file(folder, name))
        };
        let mut parts = Vec::with_capacity(files.parts.len());
        for part in &files.parts {
            let checkpoint = Checkpoint::open(folder.join(&part.weights));
            parts.push((text(&part.config)?, checkpoint.map_err(outsize_core::Error::from)?));
        }
        let Ok([text_encoder, unet, vae]) = <[_; 3]>::try_from(parts) else {
            unreachable!("there are three parts");
        };
        let described = |(config, checkpoint): &(String, Checkpoint)| PartDescription {
            config: config.clone(),
            tensors: checkpoint.tensors().to_vec(),
        };
        let model = Self::new(PipelineDescription {
            place: folder.to_owned(),
            parts: [&text_encoder, &unet, &vae].map(described),
            scheduler: text(SCHEDULER_CONFIG)?,
            tokenizer_bytes: ClipTokenizerFiles::read(&folder.join(TOKENIZER))?.memory(),
            has_safety_checker: files.has_safety_checker,
        })?;
        Ok((model, [text_encoder, unet, vae].map(|(_, checkpoint)| checkpoint)))
    }

    /// Of a description. What the process holds by now is counted as its own.
    ///
    /// # Errors
    /// What is not built in, and parts that do not belong together.
    pub fn new(description: PipelineDescription) -> Result<Self, Error> {
        let place = description.place;
        let [text_encoder, unet, vae] = &description.parts;
        let model = Self {
            text_encoder: Part::new(PipelinePart::TextEncoder, &place, text_encoder)?,
            unet: Part::new(PipelinePart::Unet, &place, unet)?,
            vae: Part::new(PipelinePart::Vae, &place, vae)?,
            place,
            scheduler: description.scheduler,
            has_safety_checker: description.has_safety_checker,
            process: process_bytes(outsize_machine::current_rss().unwrap_or(0)),
            tokenizer: description.tokenizer_bytes,
        };
        model.check()?;
        Ok(model)
    }

    /// The `config.json` of a part.
    pub(crate) fn config_path(&self, part: PipelinePart) -> PathBuf {
        self.place.join(part.name()).join("config.json")
    }

    /// Whether the parts belong together.
    fn check(&self) -> Result<(), Error> {
        let (text, unet, vae) =
            (&self.text_encoder.config.config, &self.unet.config.config, &self.vae.config.config);
        let refused =
            |path: &Path, reason: String| Err(Error::Field { path: path.to_owned(), reason });
        let (unet_path, vae_path) =
            (&self.config_path(PipelinePart::Unet), &self.config_path(PipelinePart::Vae));
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

    /// What a user should know of it, each a sentence without a full stop.
    pub fn notes(&self) -> Vec<String> {
        let unknown = [
            (PipelinePart::TextEncoder, &self.text_encoder.config.unknown_fields),
            (PipelinePart::Unet, &self.unet.config.unknown_fields),
            (PipelinePart::Vae, &self.vae.config.unknown_fields),
        ];
        let unknown = unknown.iter().filter(|(_, fields)| !fields.is_empty());
        let unknown = unknown.map(|(part, fields)| {
            let (path, fields) = (self.config_path(*part), fields.join(", "));
            format!("{} has unknown fields, which are ignored: {fields}", path.display())
        });
        let checker = self.has_safety_checker.then(|| {
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
        let path = self.place.join(SCHEDULER_CONFIG);
        let mut config = SchedulerConfig::from_json(&path, &self.scheduler, request.scheduler)?;
        let changed = config.for_stable_diffusion();
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
        let usual = self.unet.config.config.sample_size.map_or(512, |side| side * scale);
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
