//! What can go wrong between a prompt and a picture.

use std::path::{Path, PathBuf};

use outsize_checkpoint::ConfigFileError;

/// Why no picture was made. Every message names the file, field or value at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that a pipeline needs is not there.
    #[error("{} has no {}, which a model of diffusers needs: take a complete copy of it, or another variant", folder.display(), file)]
    NoFile {
        /// The pipeline's folder.
        folder: PathBuf,
        /// The file, within it.
        file: String,
    },
    /// A file could not be read, or is not what it should be.
    #[error(transparent)]
    File(#[from] ConfigFileError),
    /// A field of a JSON file holds something that this software cannot run.
    #[error("{}: {reason}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field, its value, and what would be accepted.
        reason: String,
    },
    /// The tokenizer cannot be loaded, or refuses a prompt.
    #[error(transparent)]
    Tokenizer(#[from] outsize_generate::Error),
    /// The checkpoint, the plan or a read failed.
    #[error(transparent)]
    Core(#[from] outsize_core::Error),
    /// A picture cannot be read or written.
    #[error(transparent)]
    Picture(#[from] outsize_picture::Error),
    /// A device map is for models of one part.
    #[error(
        "a model of pictures has three parts, which no single device map describes: name a strategy instead"
    )]
    DeviceMap,
    /// A side of a picture that is not possible.
    #[error(
        "a {side} of {pixels} pixels is not possible: choose a multiple of {scale}, up to {most}"
    )]
    Size {
        /// `width` or `height`.
        side: &'static str,
        /// Pixels asked for.
        pixels: usize,
        /// Pixels of a latent's side.
        scale: usize,
        /// The most pixels.
        most: usize,
    },
    /// A guidance scale that is no number.
    #[error("a guidance scale of {scale} is not possible: choose a number, such as 7.5")]
    Guidance {
        /// What was asked for.
        scale: f32,
    },
    /// The autoencoder has no encoder, which a picture to begin with or to go by needs.
    #[error("{} has only the decoder of an autoencoder, which cannot read a picture: take a complete copy of the model", folder.display())]
    NoEncoder {
        /// The autoencoder's folder.
        folder: PathBuf,
    },
    /// A negative prompt for a model that does not look at one.
    #[error("the model does not look at a negative prompt: say in the prompt what is to be seen")]
    NegativePrompt,
    /// A picture to begin with, or a mask, for a model that takes pictures to go by.
    #[error(
        "the model goes by pictures, and begins with none: it takes neither a strength nor a mask"
    )]
    InitialImage,
    /// Pictures to go by for a model that takes one to begin with.
    #[error("the model begins with one picture, and does not go by several: give one")]
    References,
    /// Not as many pictures to go by as the model takes.
    #[error("the model changes pictures by the prompt: give {wanted}, not {given}")]
    ReferenceCount {
        /// Pictures given.
        given: usize,
        /// How many would do.
        wanted: &'static str,
    },
    /// A picture to go by that is not possible.
    #[error(
        "a picture of {width} x {height} pixels is nothing to go by: choose sides of at least {least} pixels, \
         neither more than {ratio} times as long as the other"
    )]
    Reference {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
        /// The least pixels of a side.
        least: usize,
        /// How much longer than the other one a side may be.
        ratio: usize,
    },
    /// A model that fills in a mask was not given one.
    #[error(
        "the model only fills in what a mask shows of a picture: give a picture to begin with, and a mask"
    )]
    NoMask,
    /// How much of a picture is lost in noise that is not possible.
    #[error(
        "a strength of {strength} is not possible with {steps} steps: choose more than 0, at most 1, so that a step is left"
    )]
    Strength {
        /// What was asked for.
        strength: f32,
        /// Steps asked for.
        steps: usize,
    },
    /// The text encoder refused the tokens of a prompt.
    #[error("{}: the text encoder cannot read the prompt: {reason}; it and the tokenizer do not belong together", path.display())]
    Prompt {
        /// The text encoder's configuration.
        path: PathBuf,
        /// What it said.
        reason: String,
    },
    /// The denoiser gave infinities, or what is no number.
    #[error(
        "the model's values are not finite at step {step}: the weights or the scheduler's configuration may be damaged, or not belong together"
    )]
    NotFinite {
        /// The step, from 1.
        step: usize,
    },
    /// Values could not be read back from the device.
    #[error("the model's values could not be read back: {reason}")]
    Values {
        /// Why.
        reason: String,
    },
    /// A scheduler for models that predict noise, of a model that was trained by flow matching.
    #[error(
        "{class} is for models that predict noise, and this one was trained by flow matching: take the \
         scheduler_config.json of its own repository"
    )]
    Scheduler {
        /// What diffusers calls the scheduler.
        class: &'static str,
    },
    /// An adapter that cannot be read, or that is not for this model.
    #[error("{}: {reason}", path.display())]
    Adapter {
        /// The adapter's file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A checkpoint in one file that cannot be run.
    #[error("{}: {reason}", path.display())]
    SingleFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A number of steps that the scheduler cannot make.
    #[error("{steps} steps are not possible: {reason}")]
    Steps {
        /// Steps asked for.
        steps: usize,
        /// Why, and what to choose.
        reason: String,
    },
}

impl Error {
    /// Whether it was stopped by [`ImageSettings::stop`](crate::ImageSettings::stop).
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Core(outsize_core::Error::Stopped))
    }

    /// What the pipeline in `folder` needs and has not.
    pub(crate) fn no_file(folder: &Path, file: &str) -> Self {
        Self::NoFile { folder: folder.to_owned(), file: file.to_owned() }
    }

    /// What is wrong with a configuration, said of the file at `path`.
    pub(crate) fn field(path: &Path, error: outsize_models::Error) -> Self {
        let reason = match error {
            outsize_models::Error::Field { field, value, expected } => {
                format!("`{field}` is {value}, but {expected}")
            }
            outsize_models::Error::MissingField { field } => {
                format!(
                    "the field `{field}` is missing; take the file from the model's own repository"
                )
            }
            other => other.to_string(),
        };
        Self::Field { path: path.to_owned(), reason }
    }
}
