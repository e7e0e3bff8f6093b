//! What a pipeline is run with, and what it is asked for.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::Device;
use outsize_core::{PROCESS_BYTES, Planning};
use outsize_models::ActivationDtype;
use outsize_plan::{Budget, Tier};

use crate::schedulers::SchedulerChoice;
use outsize_picture::Picture;

/// What a pipeline is run with.
#[derive(Debug, Clone)]
pub struct ImageSettings {
    /// The most that may be held, in bytes. For `cpu` it counts the whole process: its peak
    /// resident set. A GPU is only used if it is named.
    pub max_memory: Budget,
    /// The type in which activations are multiplied with weights.
    pub compute: ActivationDtype,
    /// What the process takes by itself, in bytes; what it is found to take counts if that is more.
    pub process: u64,
    /// What drivers take of a GPU's memory, in bytes; what they are found to take counts if that is
    /// more.
    pub gpu_context: u64,
    /// How places are chosen.
    pub planning: Planning,
    /// Once another thread or a signal sets it, the pass under way ends in the middle.
    pub stop: Option<Arc<AtomicBool>>,
    /// Where the modules are, and compute what no GPU does.
    pub device: Device,
}

impl ImageSettings {
    /// Exact activations on the CPU, in the command's own process.
    pub fn new(max_memory: Budget) -> Self {
        Self {
            max_memory,
            compute: ActivationDtype::F32,
            process: PROCESS_BYTES,
            gpu_context: 0,
            planning: Planning::default(),
            stop: None,
            device: Device::flex(),
        }
    }
}

impl ImageSettings {
    /// The numbers of the GPUs that may be used.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = usize> {
        self.max_memory.iter().filter_map(|(tier, bytes)| match tier {
            Tier::Gpu(number) if bytes > 0 => Some(number),
            _ => None,
        })
    }
}

/// What pictures to make.
#[derive(Debug, Clone)]
pub struct ImageRequest {
    /// What is to be seen.
    pub prompt: String,
    /// What is not to be seen; heard with guidance only.
    pub negative_prompt: String,
    /// How much more the prompt counts than the negative one; what is usual for the
    /// [kind](crate::PipelineKind) if it is not said. Up to 1 there is no guidance, and half of the
    /// work; for Z-Image at 0, for Qwen-Image without a negative prompt. Of a distilled FLUX.2
    /// there never is.
    pub guidance_scale: Option<f32>,
    /// Steps of the scheduler; what is usual for the kind if it is not said.
    pub steps: Option<usize>,
    /// Pixels of a row. If it is not said, those of the picture to begin with or of the first one
    /// to go by, or what the model was trained with.
    pub width: Option<usize>,
    /// Rows, by the same rule.
    pub height: Option<usize>,
    /// A picture is made of each.
    pub seeds: Vec<u64>,
    /// Another scheduler than the model's own.
    pub scheduler: Option<SchedulerChoice>,
    /// A picture to begin with, instead of noise alone.
    pub image: Option<InitialImage>,
    /// Pictures to go by, for models that [take such](crate::PipelineKind::takes_references).
    pub references: Vec<Picture>,
}

/// A picture to begin with.
#[derive(Debug, Clone)]
pub struct InitialImage {
    /// The picture. It is resized to what is asked for.
    pub picture: Picture,
    /// Where it is made anew, in a picture of any size: white. What is black is kept.
    pub mask: Option<Picture>,
    /// How much of it is lost in noise, from 0 to 1, and how large a part of the steps is made;
    /// what is usual for the [kind](crate::PipelineKind) if it is not said.
    pub strength: Option<f32>,
}

impl ImageRequest {
    /// One picture of seed 0, as diffusers makes it by default.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self {
            prompt: prompt.into(),
            negative_prompt: String::new(),
            guidance_scale: None,
            steps: None,
            width: None,
            height: None,
            seeds: vec![0],
            scheduler: None,
            image: None,
            references: Vec::new(),
        }
    }
}
