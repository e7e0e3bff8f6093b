use outsize::generate::{Decoder, Pipeline};
use std::fmt::Display;

/// Why a command ended without what was asked for.
#[derive(Debug)]
pub enum Failure {
    /// Arguments that make no sense: exit status 2.
    Usage(String),
    /// It was tried and failed: exit status 1.
    Failed(String),
    /// It was interrupted: exit status 1.
    Interrupted,
    /// Nobody reads the output any more, as under `| head`: no error of ours.
    Closed,
}

impl Failure {
    /// Something in the arguments.
    pub fn usage(reason: impl Display) -> Self {
        Self::Usage(reason.to_string())
    }

    /// A write to standard output or a file of the user's.
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
        match <Pipeline as Decoder>::is_stopped(&error) {
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
