//! What is wrong with a request, as clients of OpenAI's interface read it.

use std::sync::mpsc::TrySendError;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use outsize_generate::{Error as TextError, GenerateError, PipelineError};
use serde_json::{Value, json};

/// What is wrong with a request, or went wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The field that is meant.
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    /// A field that cannot be obeyed.
    pub fn field(name: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(name.into());
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// The server ends.
    pub fn ending() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server is ending")
    }

    /// The object that is sent.
    pub fn body(&self) -> Value {
        let kind = match self.status.is_client_error() {
            true => "invalid_request_error",
            false => "server_error",
        };
        let Self { message, param, code, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl From<GenerateError<PipelineError>> for ApiError {
    fn from(error: GenerateError<PipelineError>) -> Self {
        let message = error.to_string();
        match error {
            GenerateError::Request(TextError::PromptTooLong { .. }) => Self {
                code: Some("context_length_exceeded"),
                ..Self::new(StatusCode::BAD_REQUEST, message)
            },
            GenerateError::Request(TextError::ChatTemplate { .. }) => {
                Self::field("messages", message)
            }
            GenerateError::Request(
                TextError::NoImages { .. }
                | TextError::ImagePlaces { .. }
                | TextError::ImageTokens { .. }
                | TextError::ImageFiles { .. }
                | TextError::ImageSize { .. }
                | TextError::ImageAspect { .. }
                | TextError::Picture(_),
            ) => Self::field("messages", message),
            GenerateError::Request(TextError::NoTools { .. }) => Self::field("tools", message),
            GenerateError::Request(TextError::ToolChoice { .. }) => {
                Self::field("tool_choice", message)
            }
            GenerateError::Request(TextError::Constraint { .. }) => {
                Self::field("response_format", message)
            }
            GenerateError::Request(_) => Self::new(StatusCode::BAD_REQUEST, message),
            GenerateError::Model(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, message),
        }
    }
}

impl<T> From<TrySendError<T>> for ApiError {
    fn from(error: TrySendError<T>) -> Self {
        let full = "too many requests wait already: try again later";
        match error {
            TrySendError::Full(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, full),
            TrySendError::Disconnected(_) => Self::ending(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}
