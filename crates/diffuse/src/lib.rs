//! Noise in, pictures out: schedulers, text-to-image pipelines.
//!
//! - [`ImageModel`] is such a model as its configurations and headers describe it: what it can
//!   make, and what that takes.
//! - [`ImagePipeline`] makes pictures of prompts with a model as diffusers saves it: its text
//!   encoders, denoiser and autoencoder take turns in memory, within one budget.
//! - [`Scheduler`] takes a sample from noise to a picture, step by step, as its [`SchedulerConfig`]
//!   says.
//! - [`Noise`] is what it begins with: the same as PyTorch's.
//! - [`PromptTokenizer`] turns prompts into the ids that the text encoder reads.
//! - [`Picture`] is what comes out, and can be written as a PNG.
#![forbid(unsafe_code)]

mod adapter;
mod begun;
mod byte_level_file;
mod denoiser;
mod denoising;
mod error;
mod files;
mod kind;
mod latent_tokens;
mod model;
mod noise;
mod part;
mod pipeline;
mod pipeline_part;
mod planning;
mod presets;
mod preview;
mod progress;
mod published;
mod qwen_image_prompt;
mod references;
mod schedulers;
mod settings;
mod task;
mod text_encoder;
mod tokenizer;
mod tokenizer_parts;
mod vision;

pub use adapter::{ADAPTER_FILES, adapter_file};
pub use error::Error;
pub use files::{MODEL_INDEX, PartFiles, PipelineFiles, SCHEDULER_CONFIG};
pub use kind::PipelineKind;
pub use model::{ImageModel, PipelineDescription};
pub use noise::Noise;
pub use outsize_picture::Picture;
pub use part::{PartDescription, PartPlan};
pub use pipeline::ImagePipeline;
pub use pipeline_part::PipelinePart;
pub use planning::ImagePrediction;
pub use presets::{PIPELINE_PRESETS, PipelinePreset, PresetPart};
pub use preview::preview;
pub use progress::ImageProgress;
pub use published::SingleFile;
pub use schedulers::{
    ChosenSteps, PredictionType, Scheduler, SchedulerChoice, SchedulerConfig, SchedulerKind,
};
pub use settings::{ImageRequest, ImageSettings, InitialImage};
pub use task::ImageTask;
pub use tokenizer::{ChatAround, EncodedPrompt, PromptTokenizer, PromptTokenizerFiles};
