use outsize::checkpoint::{Error as CheckpointError, GgufFault};
use outsize::core::Error as CoreError;
use outsize::generate::{
    DescribeError, Error as TextError, GenerateError, LanguageModel, Pipeline, PipelineError,
};
use outsize::models::Error as ModelError;
use outsize::plan::Error as PlanError;
use std::fmt::Display;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Invalid arguments: exit status 2.
    Usage(String),
    /// A failure: exit status 1.
    Failed(String),
    /// The exit status of a program that was started, which has said why.
    Status(u8),
    /// An interrupt: exit status 130.
    Interrupted,
    /// The output's reader closed the pipe, as `| head` does: not an error.
    Closed,
}

impl Failure {
    /// An invalid argument.
    pub fn usage(reason: impl Display) -> Self {
        Self::Usage(reason.to_string())
    }

    /// The same of something that stands at a place.
    pub fn at(self, place: impl Display) -> Self {
        match self {
            Self::Usage(reason) | Self::Failed(reason) => {
                Self::Failed(format!("{place}: {reason}"))
            }
            failure => failure,
        }
    }

    /// A failed write to standard output or to the user's file.
    pub fn writing(what: impl Display, error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::Closed
        } else {
            Self::Failed(format!("cannot write {what}: {error}"))
        }
    }
}

/// Errors of the libraries say what is wrong, where, and what to do; with which flags, is added
/// here.
macro_rules! failed {
    ($($error:ty $(, $flags:path)?;)*) => {$(
        impl From<&$error> for Failure {
            fn from(error: &$error) -> Self {
                let flags: &[&str] = &[$($flags(error))?];
                Self::Failed(with_flags(error, &flags.concat()))
            }
        }
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::from(&error)
            }
        }
    )*};
}

failed!(
    outsize::launch::Error;
    outsize::lora::Error;
    outsize::checkpoint::Error;
    outsize::checkpoint::ConfigFileError;
    CoreError, core_flags;
    DescribeError, describe_flags;
    TextError, generate_flags;
    GenerateError<PipelineError>, generation_flags;
    outsize::machine::Error;
    ModelError, model_flags;
    outsize::picture::Error, picture_flags;
    PlanError, plan_flags;
    serde_json::Error;
);

impl From<outsize::finetune::FinetuneError> for Failure {
    fn from(error: outsize::finetune::FinetuneError) -> Self {
        use outsize::finetune::FinetuneError as Error;
        use outsize::train::Error as Train;
        let flags = match &error {
            Error::Core(CoreError::Plan(PlanError::TooSmall(_))) => {
                "--max-memory, --batch, --context"
            }
            Error::Stopped | Error::Train(Train::Stopped) => return Self::Interrupted,
            Error::Core(error) | Error::Train(Train::Core(error)) => core_flags(error),
            Error::Gpu => "--max-memory",
            Error::Train(Train::NotFloats { .. }) => {
                "leave out --full, or `outsize shard --dtype bf16` writes floats"
            }
            Error::Lora(_) => "--target-modules, --adapter",
            Error::Train(Train::Loss { .. } | Train::Gradients { .. }) => "--learning-rate",
            _ => "",
        };
        Self::Failed(with_flags(&error, flags))
    }
}

impl From<outsize::diffuse::Error> for Failure {
    fn from(error: outsize::diffuse::Error) -> Self {
        use outsize::diffuse::Error;
        let flags = match &error {
            error if error.is_stopped() => return Self::Interrupted,
            Error::Core(error) => core_flags(error),
            Error::Size { .. } => "--width, --height",
            Error::SingleFile { .. } => "--base",
            Error::Adapter { .. } => "--adapter, --adapter-scale",
            Error::Steps { .. } => "--steps, --scheduler",
            Error::Guidance { .. } => "--guidance-scale",
            Error::NoEncoder { .. } | Error::Reference { .. } | Error::ReferenceCount { .. } => {
                "--image"
            }
            Error::NegativePrompt => "--negative-prompt",
            Error::NoMask => "--image, --mask",
            Error::Strength { .. } => "--strength",
            Error::DeviceMap => "--device-map",
            _ => "",
        };
        Self::Failed(with_flags(&error, flags))
    }
}

fn with_flags(error: &impl Display, flags: &str) -> String {
    match flags {
        "" => error.to_string(),
        flags => format!("{error} ({flags})"),
    }
}

/// The flags by which a budget that does not do is changed.
fn plan_flags(error: &PlanError) -> &'static str {
    match error {
        PlanError::OverBudget { .. } => "--max-memory",
        PlanError::MustFit { .. } | PlanError::OnDisk { .. } => "--max-memory, --must-fit",
        PlanError::TooSmall(shortfall) if shortfall.needs.kv_cache == 0 => "--max-memory",
        PlanError::TooSmall(_) => "--max-memory, --context",
        _ => "",
    }
}

fn core_flags(error: &CoreError) -> &'static str {
    match error {
        CoreError::Plan(error) => plan_flags(error),
        CoreError::NotBuilt { .. } | CoreError::NoGpu { .. } => "--max-memory, --device-map",
        CoreError::GpuFull { .. } => "--max-memory, --reserve",
        CoreError::Checkpoint(CheckpointError::Gguf {
            fault: GgufFault::SeveralEncoders { .. },
            ..
        }) => "--mmproj",
        _ => "",
    }
}

fn model_flags(error: &ModelError) -> &'static str {
    match error {
        ModelError::CacheDtype { .. } => "--kv-dtype, --max-memory",
        ModelError::Context { .. }
        | ModelError::ContextFull { .. }
        | ModelError::CannotSlide { .. } => "--context",
        // An adapter is merged into floats only.
        ModelError::Core(error)
            if matches!(**error, CoreError::Rewrite { .. } | CoreError::Adapter { .. }) =>
        {
            "--dtype"
        }
        _ => "",
    }
}

fn picture_flags(error: &outsize::picture::Error) -> &'static str {
    match error {
        outsize::picture::Error::Image { .. } => "--image",
        _ => "",
    }
}

fn generate_flags(error: &TextError) -> &'static str {
    match error {
        TextError::NoTokenizer { .. } | TextError::BadTokenizer { .. } => "--ids",
        TextError::UnsupportedKey { .. } => "--generation-config none",
        TextError::MaxLength { .. } => "--max-new-tokens",
        TextError::StopString { .. } => "--stop",
        TextError::SamplingValue { field: "temperature", .. } => "--temperature",
        TextError::SamplingValue { field: "repetition_penalty", .. } => "--repetition-penalty",
        TextError::SamplingValue { field: "top_k", .. } => "--top-k",
        TextError::SamplingValue { field: "top_p", .. } => "--top-p",
        TextError::SamplingValue { .. } => "--min-p",
        TextError::NoChatTemplate { .. } => "outsize run, --chat-template FILE",
        TextError::EmptyPrompt => "--prompt or --ids",
        TextError::PromptTooLong { advice, .. } if advice.contains("slide") => {
            "--context, --when-full slide"
        }
        TextError::PromptTooLong { .. } | TextError::EmbeddingRoom { .. } => "--context",
        TextError::EmbeddingPrompt { .. } => "--prompt-name",
        TextError::EmbeddingDimensions { .. } => "--dimensions",
        TextError::ImageTokens { .. } | TextError::ImageSize { .. } => "--image-tokens",
        TextError::Picture(_) | TextError::ImageAspect { .. } => "--image",
        _ => "",
    }
}

fn describe_flags(error: &DescribeError) -> &'static str {
    match error {
        DescribeError::File(error) => generate_flags(error),
        DescribeError::Core(error) => core_flags(error),
        _ => "",
    }
}

fn pipeline_flags(error: &PipelineError) -> &'static str {
    match error {
        PipelineError::File(error) => generate_flags(error),
        PipelineError::Model(error) => model_flags(error),
        PipelineError::Core(error) => core_flags(error),
        PipelineError::Context { .. } => "--context",
        PipelineError::Drafts { .. } => "--prompt-lookup, --draft-model",
        PipelineError::DraftModel { .. } => "--draft-model",
        _ => "",
    }
}

fn generation_flags(error: &GenerateError<PipelineError>) -> &'static str {
    match error {
        GenerateError::Request(error) => generate_flags(error),
        GenerateError::Model(error) => pipeline_flags(error),
    }
}

impl From<PipelineError> for Failure {
    fn from(error: PipelineError) -> Self {
        match <Pipeline as LanguageModel>::is_stopped(&error) {
            true => Self::Interrupted,
            false => Self::Failed(with_flags(&error, pipeline_flags(&error))),
        }
    }
}

impl From<outsize_serve::ServeError> for Failure {
    fn from(error: outsize_serve::ServeError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<outsize::bench::Error> for Failure {
    fn from(error: outsize::bench::Error) -> Self {
        match error {
            outsize::bench::Error::Stopped => Self::Interrupted,
            error => Self::Failed(error.to_string()),
        }
    }
}
