//! What can go wrong with a pipeline.

use std::path::PathBuf;

use outsize_models::Error as ModelError;

use crate::describe::without_name;
use crate::error::Error;
use crate::task::TextTask;

/// Why a pipeline could not be opened or run.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// There is no config.json.
    #[error(
        "{} has no config.json: a model's folder holds config.json beside its weights",
        folder.display()
    )]
    NoConfig {
        /// The folder.
        folder: PathBuf,
    },
    /// config.json cannot be read.
    #[error(transparent)]
    File(#[from] Error),
    /// config.json says something that cannot be run.
    #[error("{path}: {reason}", path = path.display(), reason = without_name(source))]
    BadConfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ModelError,
    },
    /// The model refused the tokens.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The checkpoint, the plan or a read failed.
    #[error(transparent)]
    Core(#[from] outsize_core::Error),
    /// The logits could not be read back from the device.
    #[error("the logits could not be read back: {reason}")]
    Logits {
        /// Why.
        reason: String,
    },
    /// The task asked for is not the model's.
    #[error(
        "{model_type} is not a model for {task}: {reason}; it is one for {right}",
        reason = match right {
            TextTask::TextGeneration => "it has no encoder, and goes on from the prompt",
            TextTask::Text2TextGeneration => "an encoder reads the prompt, and the decoder answers it",
        }
    )]
    Task {
        /// The model's `model_type`.
        model_type: &'static str,
        /// What was asked for.
        task: TextTask,
        /// What the model is for.
        right: TextTask,
    },
    /// An adapter cannot be added to the model.
    #[error(transparent)]
    Adapter(#[from] outsize_lora::Error),
    /// Drafts cannot be verified.
    #[error("tokens cannot be drafted here: {reason}")]
    Drafts {
        /// Why.
        reason: &'static str,
    },
    /// A model cannot draft.
    #[error("the draft model cannot draft: {reason}")]
    DraftModel {
        /// Why.
        reason: &'static str,
    },
    /// The context asked for is not the model's.
    #[error(
        "a context of {context} tokens is more than the {most} tokens that this model was made for"
    )]
    Context {
        /// What was asked for, in tokens.
        context: usize,
        /// What the model can do, in tokens.
        most: usize,
    },
}
