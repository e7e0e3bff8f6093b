//! Who is let in, and what all servers answer alike.

use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::error::ApiError;

/// The longest request, in bytes.
const LONGEST: usize = 16 << 20;

/// How a model is asked for.
#[derive(Debug)]
pub(crate) struct Access {
    /// The name that clients ask for.
    pub model: String,
    /// What they must say, if anything.
    pub api_key: Option<String>,
}

impl Access {
    /// Refuses a request for another model.
    pub fn check(&self, model: Option<&String>) -> Result<(), ApiError> {
        let Some(model) = model.filter(|model| **model != self.model) else {
            return Ok(());
        };
        let message = format!("there is no model {model:?} here, but {:?}", self.model);
        let (param, code) = (Some("model".to_owned()), Some("model_not_found"));
        Err(ApiError { param, code, ..ApiError::new(StatusCode::NOT_FOUND, message) })
    }
}

/// All addresses: `answered`, which are `known` as that, and those of every server.
pub(crate) fn routes(access: &Arc<Access>, answered: Router, known: &'static str) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .with_state(access.clone())
        .merge(answered)
        .layer(from_fn_with_state(access.clone(), allowed))
        .route("/health", get(async || Json(json!({ "status": "ok" }))))
        .fallback(async move || {
            let message =
                format!("this address is not answered; {known}, /v1/models and /health are");
            ApiError::new(StatusCode::NOT_FOUND, message)
        })
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this address takes another method")
        })
        .layer(DefaultBodyLimit::max(LONGEST))
}

/// Lets requests through that have the key, if there is one.
async fn allowed(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    let differs = |key: &String| {
        // In the same time, whatever is given.
        let pairs = key.bytes().zip(given.iter().chain(std::iter::repeat(&0)));
        pairs.fold(key.len() != given.len(), |found, (a, b)| found | (a != *b))
    };
    if access.api_key.as_ref().is_some_and(differs) {
        let message = "the key is missing or another: send `Authorization: Bearer KEY`";
        let code = Some("invalid_api_key");
        return ApiError { code, ..ApiError::new(StatusCode::UNAUTHORIZED, message) }
            .into_response();
    }
    next.run(request).await
}

async fn models(State(access): State<Arc<Access>>) -> Json<Value> {
    let model =
        json!({ "id": access.model, "object": "model", "created": 0, "owned_by": "outsize" });
    Json(json!({ "object": "list", "data": [model] }))
}

/// The object that a request has.
pub(crate) fn body<T>(request: Result<Json<T>, JsonRejection>) -> Result<T, ApiError> {
    match request {
        Ok(Json(request)) => Ok(request),
        Err(rejection) => {
            let status = match rejection.status() {
                StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
                status => status,
            };
            Err(ApiError::new(status, rejection.body_text()))
        }
    }
}
