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
    /// The caller wanted the work to end.
    #[error("stopped")]
    Stopped,
    /// Ranks are other processes or threads.
    #[error("a model learns in one process: {0} ranks were started")]
    Ranks(usize),
}
