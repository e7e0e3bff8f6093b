use std::path::PathBuf;

use outsize_checkpoint::ConfigFileError;

/// Why an adapter cannot be used or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder is not one of an adapter.
    #[error("{folder} is not the folder of a LoRA adapter: {reason}")]
    NotAnAdapter {
        /// The folder.
        folder: PathBuf,
        /// What is there or missing, and what to do.
        reason: String,
    },
    /// The configuration's file cannot be read.
    #[error(transparent)]
    ConfigFile(#[from] ConfigFileError),
    /// The configuration is not a JSON object.
    #[error(
        "adapter_config.json is not valid: {message}; it must be the JSON object that PEFT writes"
    )]
    Json {
        /// What the parser said.
        message: String,
    },
    /// A field of the configuration is missing, wrong, or asks for what is not built in.
    #[error("adapter_config.json: `{field}` is {value}, but {expected}")]
    Field {
        /// The field.
        field: String,
        /// Its value as JSON, cut when long.
        value: String,
        /// What would be accepted, or what to do.
        expected: String,
    },
    /// The configuration names a module to which no adapter can be added.
    #[error("the adapter's target {module} {reason}")]
    Target {
        /// The module, as transformers calls it.
        module: String,
        /// Why not.
        reason: &'static str,
    },
    /// The configuration matches no module of the model.
    #[error(
        "the adapter is for {wanted}, and the model ({model_type}) has no such linear layer: it has {has}; is it the \
         adapter of another model?"
    )]
    NoTargets {
        /// What the configuration asks for.
        wanted: String,
        /// The model's type.
        model_type: &'static str,
        /// The last parts of the names of its linear layers.
        has: String,
    },
    /// A tensor does not fit the model or the configuration.
    #[error("{file}: the tensor {tensor} {reason}")]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A matrix that is to be written does not fit the model or the configuration.
    #[error("the adapter of `{path}` cannot be written: {reason}")]
    Part {
        /// The path of the parameter that it is for.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The adapter's file cannot be read or written.
    #[error(transparent)]
    Checkpoint(#[from] outsize_checkpoint::Error),
}
