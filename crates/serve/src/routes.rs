//! The addresses that are answered.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event as SentEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use outsize_generate::{ChatAnswer, ChatOptions, ChatPrompt, ChatTool, ToolChoice};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_stream::Stream;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::error::ApiError;
use crate::fields::GenerationFields;
use crate::messages::MessageField;
use crate::reply::Reply;
use crate::tools::{ToolChoiceField, offer};
use crate::worker::{Event, Job};

/// The longest request, in bytes.
const LONGEST: usize = 16 << 20;

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The name that clients ask for.
    pub model: String,
    /// What they must say, if anything.
    pub api_key: Option<String>,
    /// What they do not say.
    pub defaults: ChatOptions,
    /// Whether there is memory for constraints.
    pub constrains: bool,
    pub jobs: SyncSender<Job>,
    pub count: AtomicU64,
}

/// A request to answer a conversation.
#[derive(Debug, Deserialize)]
struct ChatRequest {
    messages: Vec<MessageField>,
    tools: Option<Vec<ChatTool>>,
    tool_choice: Option<ToolChoiceField>,
    parallel_tool_calls: Option<bool>,
    #[serde(flatten)]
    fields: GenerationFields,
}

/// A request to go on with a text.
#[derive(Debug, Deserialize)]
struct CompletionRequest {
    prompt: Value,
    #[serde(flatten)]
    fields: GenerationFields,
}

/// All addresses.
pub(crate) fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .layer(from_fn_with_state(shared.clone(), allowed))
        .route("/health", get(async || Json(json!({ "status": "ok" }))))
        .fallback(async || {
            let known = "/v1/chat/completions, /v1/completions, /v1/models and /health are";
            ApiError::new(StatusCode::NOT_FOUND, format!("this address is not answered; {known}"))
        })
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this address takes another method")
        })
        .layer(DefaultBodyLimit::max(LONGEST))
        .with_state(shared)
}

/// Lets requests through that have the key, if there is one.
async fn allowed(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    let differs = |key: &String| {
        // In the same time, whatever is given.
        let pairs = key.bytes().zip(given.iter().chain(std::iter::repeat(&0)));
        pairs.fold(key.len() != given.len(), |found, (a, b)| found | (a != *b))
    };
    if shared.api_key.as_ref().is_some_and(differs) {
        let message = "the key is missing or another: send `Authorization: Bearer KEY`";
        let code = Some("invalid_api_key");
        return ApiError { code, ..ApiError::new(StatusCode::UNAUTHORIZED, message) }
            .into_response();
    }
    next.run(request).await
}

async fn models(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let model =
        json!({ "id": shared.model, "object": "model", "created": 0, "owned_by": "outsize" });
    Json(json!({ "object": "list", "data": [model] }))
}

async fn chat(
    State(shared): State<Arc<Shared>>,
    request: Result<Json<ChatRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let ChatRequest { messages, tools, tool_choice, parallel_tool_calls, fields } = body(request)?;
    if messages.is_empty() {
        return Err(ApiError::field("messages", "there must be at least one message"));
    }
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(index, message)| message.message(index));
    let prompt = ChatPrompt::Messages(messages.collect::<Result<_, _>>()?);
    let mut options = fields.options(&shared.defaults)?;
    let tools = tools.unwrap_or_default();
    offer(&mut options, tools, tool_choice.as_ref(), parallel_tool_calls)?;
    answer(&shared, &fields, options, prompt).await
}

async fn completion(
    State(shared): State<Arc<Shared>>,
    request: Result<Json<CompletionRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let CompletionRequest { prompt, fields } = body(request)?;
    let text = match &prompt {
        Value::Array(texts) if texts.len() == 1 => texts[0].as_str(),
        prompt => prompt.as_str(),
    };
    let text = text.ok_or_else(|| ApiError::field("prompt", "it must be one text"))?;
    let options = fields.options(&shared.defaults)?;
    answer(&shared, &fields, options, ChatPrompt::Text(text.to_owned())).await
}

/// The object that a request has.
fn body<T>(request: Result<Json<T>, JsonRejection>) -> Result<T, ApiError> {
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

async fn answer(
    shared: &Shared,
    fields: &GenerationFields,
    options: ChatOptions,
    prompt: ChatPrompt,
) -> Result<Response, ApiError> {
    if let Some(model) = fields.model.as_ref().filter(|model| **model != shared.model) {
        let message = format!("there is no model {model:?} here, but {:?}", shared.model);
        let (param, code) = (Some("model".to_owned()), Some("model_not_found"));
        return Err(ApiError { param, code, ..ApiError::new(StatusCode::NOT_FOUND, message) });
    }
    let is_constrained =
        options.text.constraint.is_some() || options.tool_choice != ToolChoice::Auto;
    if is_constrained && !shared.constrains {
        let message = "this server keeps no memory for answers by a schema, which `response_format` and a `tool_choice` of \
                       \"required\" or a function need: start it with structured output";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = shared.count.fetch_add(1, Ordering::Relaxed);
    let is_chat = matches!(prompt, ChatPrompt::Messages(_));
    let prefix = if is_chat { "chatcmpl" } else { "cmpl" };
    let reply = Reply {
        id: format!("{prefix}-{:x}-{number}", now.as_secs()),
        created: now.as_secs(),
        model: shared.model.clone(),
        is_chat,
    };
    let (events, mut received) = unbounded_channel();
    shared.jobs.try_send(Job { prompt, options, events }).map_err(|error| match error {
        TrySendError::Full(_) => ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many requests wait already: try again later",
        ),
        TrySendError::Disconnected(_) => ApiError::ending(),
    })?;
    // A request that is refused has no stream.
    let first = received.recv().await.ok_or_else(ApiError::ending)?;
    if let Event::Failed(error) = first {
        return Err(error);
    }
    if fields.streams() {
        let events = stream(reply, fields.includes_usage(), first, received);
        // A call is sent once it is whole: until then, a sign of life.
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    let answer = whole(first, received).await?;
    Ok(Json(reply.whole(&answer)).into_response())
}

/// Waits for all of an answer.
async fn whole(
    mut event: Event,
    mut events: UnboundedReceiver<Event>,
) -> Result<Box<ChatAnswer>, ApiError> {
    loop {
        match event {
            Event::Done(answer) => return Ok(answer),
            Event::Failed(error) => return Err(error),
            Event::Text(_) | Event::Thought(_) | Event::Call(_) => {}
        }
        event = events.recv().await.ok_or_else(ApiError::ending)?;
    }
}

/// An answer as it comes: once nobody reads the stream, nobody reads `events`.
fn stream(
    reply: Reply,
    includes_usage: bool,
    first: Event,
    mut events: UnboundedReceiver<Event>,
) -> impl Stream<Item = Result<SentEvent, Infallible>> {
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(async move {
        let send = |data: String| sender.send(Ok(SentEvent::default().data(data))).is_ok();
        let mut reads = reply.beginning().is_none_or(|value| send(value.to_string()));
        let (mut event, mut calls) = (Some(first), 0);
        while reads {
            let (values, ends) = match event {
                Some(Event::Text(text)) => {
                    ([(!text.is_empty()).then(|| reply.text(&text)), None], false)
                }
                Some(Event::Thought(text)) => {
                    ([(!text.is_empty()).then(|| reply.thought(&text)), None], false)
                }
                Some(Event::Call(call)) => {
                    calls += 1;
                    (reply.call(calls - 1, &call).map(Some), false)
                }
                Some(Event::Done(answer)) => {
                    let usage = includes_usage.then(|| reply.usage(&answer));
                    ([Some(reply.end(&answer)), usage], true)
                }
                Some(Event::Failed(error)) => ([Some(error.body()), None], true),
                None => ([Some(ApiError::ending().body()), None], true),
            };
            reads = values.into_iter().flatten().all(|value| send(value.to_string()));
            if ends {
                send("[DONE]".to_owned());
                return;
            }
            event = events.recv().await;
        }
    });
    UnboundedReceiverStream::new(receiver)
}
