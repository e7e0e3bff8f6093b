//! What can go wrong while an adapter, or all of a model, learns.

use std::path::PathBuf;

use outsize_models::Error as ModelError;

/// Why nothing can be learned, or saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FinetuneError {
    /// The model cannot be opened.
    #[error(transparent)]
    Open(#[from] outsize_generate::PipelineError),
    /// The tokenizer or another file beside the weights cannot be used.
    #[error(transparent)]
    Text(#[from] outsize_generate::Error),
    /// The adapter does not fit the model.
    #[error(transparent)]
    Lora(#[from] outsize_lora::Error),
    /// The model refused the tokens.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The checkpoint, the plan or a read failed.
    #[error(transparent)]
    Core(#[from] outsize_core::Error),
    /// The training loop failed, or its state cannot be saved or read.
    #[error(transparent)]
    Train(#[from] outsize_train::Error),
    /// The model cannot learn block by block.
    #[error(
        "a model of type {model_type} cannot learn: its layers share keys and values, or see tokens that an indexer chooses, or it has an encoder, and only models whose \
         blocks depend on each other by the residual stream alone can"
    )]
    Unsupported {
        /// The model's type.
        model_type: &'static str,
    },
    /// Inputs of layers cannot be seen block by block.
    #[error(
        "a {model_type} cannot be run block by block, as its layers share keys and values, or see tokens that an indexer chooses, or it has an encoder: texts cannot \
         say which integers its weights become"
    )]
    NoBlocks {
        /// The model's type.
        model_type: &'static str,
    },
    /// The budget has more than main memory.
    #[error("models learn on processors: give a budget of main memory alone, such as cpu=4GB")]
    Gpu,
    /// A setting is out of range.
    #[error("{what} is {value}, but {expected}")]
    Setting {
        /// What is set.
        what: &'static str,
        /// To what.
        value: String,
        /// What would be accepted.
        expected: String,
    },
    /// A file of examples cannot be read.
    #[error("{}: {source}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A line of a file of examples is none.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of examples has none.
    #[error("{}: there are no examples in it", path.display())]
    NoExamples {
        /// The file.
        path: PathBuf,
    },
    /// A saved state is of another training.
    #[error(
        "{} has the state of a training with other settings or examples: go on with those, or remove the folder to begin anew",
        folder.display()
    )]
    OtherTraining {
        /// The folder of states.
        folder: PathBuf,
    },
    /// Only floats can all learn.
    #[error(
        "{path} has {what}, and all weights can only learn as safetensors or .bin files of f32, f16 or bf16: let an adapter learn \
         on it, or take the model's original weights"
    )]
    Quantized {
        /// The model.
        path: PathBuf,
        /// What it has.
        what: String,
    },
    /// The disk is too small for what all weights learn in.
    #[error(
        "{} needs {needed} bytes of disk for weights, moments of AdamW, gradients and the checkpoint, and {free} are free there",
        folder.display()
    )]
    Disk {
        /// The folder of states.
        folder: PathBuf,
        /// Bytes that are to be written.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// States in which all weights learn cannot be used.
    #[error("{} cannot be used to go on: {reason}; remove it to begin anew", folder.display())]
    States {
        /// Their folder.
        folder: PathBuf,
        /// What is wrong with them.
        reason: String,
    },
    /// A file of states cannot be read or written.
    #[error("{}: {source}", path.display())]
    StatesFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A step failed before it was complete.
    #[error("a step failed and is not complete: open the model again to go on")]
    HalfStep,
    /// The caller wanted the work to end.
    #[error("stopped")]
    Stopped,
    /// Ranks are other processes or threads.
    #[error("a model learns in one process: {0} ranks were started")]
    Ranks(usize),
    /// Gradients are no numbers.
    #[error(
        "the gradients of step {step} are not finite: nothing is learned from them; take a smaller learning rate, and \
         look at the examples"
    )]
    Gradients {
        /// The step, counted from 1.
        step: usize,
    },
    /// The loss is no number.
    #[error(
        "the loss of step {step} is {loss}: nothing is learned from it; take a smaller learning rate, and look at the \
         examples"
    )]
    Loss {
        /// The step, counted from 1.
        step: usize,
        /// What it came to.
        loss: f64,
    },
}
