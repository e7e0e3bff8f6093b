use outsize::generate::{LanguageModel, Pipeline};
use std::fmt::Display;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Invalid arguments: exit status 2.
    Usage(String),
    /// A failure: exit status 1.
    Failed(String),
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

    /// A failed write to standard output or to the user's file.
    pub fn writing(what: impl Display, error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::Closed
        } else {
            Self::Failed(format!("cannot write {what}: {error}"))
        }
    }
}

/// Errors of the libraries say what is wrong, where, and what to do.
macro_rules! failed {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::Failed(error.to_string())
            }
        }
    )*};
}

failed!(
    crate::hub::HubError,
    outsize::checkpoint::Error,
    outsize::core::Error,
    outsize::generate::DescribeError,
    outsize::generate::Error,
    outsize::generate::GenerateError<outsize::generate::PipelineError>,
    outsize::machine::Error,
    outsize::models::Error,
    outsize::plan::Error,
    serde_json::Error,
);

impl From<outsize::generate::PipelineError> for Failure {
    fn from(error: outsize::generate::PipelineError) -> Self {
        match <Pipeline as LanguageModel>::is_stopped(&error) {
            true => Self::Interrupted,
            false => Self::Failed(error.to_string()),
        }
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
