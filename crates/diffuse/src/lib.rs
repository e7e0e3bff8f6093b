//! Noise in, pictures out: schedulers, text-to-image pipelines.
//!
//! - [`ImagePipeline`] makes pictures of prompts with a model as diffusers saves it: its text encoder, denoiser and autoencoder
//!   take turns in memory, within one budget.
//! - [`Scheduler`] takes a sample from noise to a picture, step by step, as its [`SchedulerConfig`] says.
//! - [`randn`] is the noise that it begins with: the same as PyTorch's.
//! - [`ClipTokenizer`] turns prompts into the ids that the text encoder reads.
//! - [`Picture`] is what comes out, and can be written as a PNG.
#![forbid(unsafe_code)]

mod error;
mod folder;
mod json_file;
mod noise;
mod part;
mod picture;
mod pipeline;
mod presets;
mod schedulers;
mod settings;
mod tokenizer;

pub use error::Error;
pub use folder::{MODEL_INDEX, PartFiles, PipelineFolder};
pub use noise::randn;
pub use part::{PartPlan, PipelinePart};
pub use picture::Picture;
pub use pipeline::{ImagePipeline, ImageProgress};
pub use presets::{PIPELINE_PRESETS, PipelinePreset, PresetPart};
pub use schedulers::{PredictionType, Scheduler, SchedulerChoice, SchedulerConfig, SchedulerKind};
pub use settings::{ImageRequest, ImageSettings};
pub use tokenizer::{ClipTokenizer, ClipTokenizerFiles, EncodedPrompt};
