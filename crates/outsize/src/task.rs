//! What a model is run for.

#![allow(non_upper_case_globals, reason = "tasks are of several types, written as variants of one")]

use outsize_diffuse::ImageTask;
use outsize_generate::{EmbeddingTask, TextTask};

/// What a model is run for: the first argument of [`pipeline`](crate::pipeline()), which decides
/// what kind of pipeline that is.
#[derive(Debug)]
pub enum Task {}

impl Task {
    /// A decoder goes on from the prompt: GPT-2, Llama.
    pub const TextGeneration: TextTask = TextTask::TextGeneration;
    /// An encoder reads the prompt, and a decoder answers it: T5.
    pub const Text2TextGeneration: TextTask = TextTask::Text2TextGeneration;
    /// Texts become vectors: Qwen3-Embedding.
    pub const FeatureExtraction: EmbeddingTask = EmbeddingTask;
    /// A prompt becomes pictures: Stable Diffusion.
    pub const TextToImage: ImageTask = ImageTask::new();
}
