//! The addresses that are answered.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::sse::{Event as SentEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use outsize_generate::{ChatOptions, ChatPrompt, ChatTool, ToolChoice};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_stream::Stream;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::access::{self, Access, body};
use crate::error::ApiError;
use crate::fields::GenerationFields;
use crate::job::{Answered, Event, Job, Listener};
use crate::messages::MessageField;
use crate::queue::WAITING;
use crate::reply::Reply;
use crate::tools::{ToolChoiceField, offer};

/// What all requests share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub access: Arc<Access>,
    /// What requests do not say.
    pub defaults: ChatOptions,
    /// Whether there is memory for constraints.
    pub constrains: bool,
    /// Tokens that the model has logits of.
    pub vocab_size: usize,
    pub jobs: SyncSender<Vec<Job>>,
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
    echo: Option<bool>,
    #[serde(flatten)]
    fields: GenerationFields,
}

/// Texts, or their tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum PromptField {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    SeveralIds(Vec<Vec<u32>>),
}

/// The texts of a field, or their tokens.
pub(crate) fn prompts(name: &'static str, value: Value) -> Result<Vec<ChatPrompt>, ApiError> {
    let prompts: Vec<_> = match serde_json::from_value(value) {
        Ok(PromptField::Text(text)) => vec![ChatPrompt::Text(text)],
        Ok(PromptField::Ids(ids)) if !ids.is_empty() => vec![ChatPrompt::Ids(ids)],
        Ok(PromptField::Texts(texts)) => texts.into_iter().map(ChatPrompt::Text).collect(),
        Ok(PromptField::SeveralIds(several)) => several.into_iter().map(ChatPrompt::Ids).collect(),
        Ok(PromptField::Ids(_)) | Err(_) => Vec::new(),
    };
    match prompts.is_empty() {
        true => Err(ApiError::field(name, "it must be a text, its tokens, or a list of these")),
        false => Ok(prompts),
    }
}

/// All addresses.
pub(crate) fn routes(shared: Arc<Shared>) -> Router {
    let access = shared.access.clone();
    let answered = Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .with_state(shared);
    access::routes(&access, answered, "/v1/chat/completions, /v1/completions")
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
    let mut options = fields.options(&shared.defaults, true)?;
    let tools = tools.unwrap_or_default();
    offer(&mut options, tools, tool_choice.as_ref(), parallel_tool_calls)?;
    answer(&shared, &fields, options, vec![prompt], false).await
}

async fn completion(
    State(shared): State<Arc<Shared>>,
    request: Result<Json<CompletionRequest>, JsonRejection>,
) -> Result<Response, ApiError> {
    let CompletionRequest { prompt, echo, fields } = body(request)?;
    let (prompts, echo) = (prompts("prompt", prompt)?, echo.unwrap_or(false));
    if echo && fields.streams() {
        let message = "a prompt is sent back with the whole answer: leave out `stream`";
        return Err(ApiError::field("echo", message));
    }
    let options = fields.options(&shared.defaults, false)?;
    answer(&shared, &fields, options, prompts, echo).await
}

async fn answer(
    shared: &Shared,
    fields: &GenerationFields,
    options: ChatOptions,
    prompts: Vec<ChatPrompt>,
    echo: bool,
) -> Result<Response, ApiError> {
    shared.access.check(fields.model.as_ref())?;
    let is_constrained =
        options.text.constraint.is_some() || options.tool_choice != ToolChoice::Auto;
    if is_constrained && !shared.constrains {
        let message = "this server keeps no memory for answers by a schema, which `response_format` and a `tool_choice` of \
                       \"required\" or a function need: start it with structured output";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    let mut biased = options.text.logit_bias.iter().map(|(token, _)| *token);
    if let Some(token) = biased.find(|token| *token as usize >= shared.vocab_size) {
        let message =
            format!("the model has no token {token}: they run from 0 to {}", shared.vocab_size - 1);
        return Err(ApiError::field("logit_bias", message));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = shared.count.fetch_add(1, Ordering::Relaxed);
    let is_chat = matches!(prompts[..], [ChatPrompt::Messages(_)]);
    let answers = fields.answers()?;
    let count = prompts.len().saturating_mul(answers);
    if count > WAITING {
        let (name, what) = if answers > 1 { ("n", "answers") } else { ("prompt", "prompts") };
        let message = format!("a request has at most {WAITING} answers: ask for fewer {what}");
        return Err(ApiError::field(name, message));
    }
    let prefix = if is_chat { "chatcmpl" } else { "cmpl" };
    let reply = Reply {
        id: format!("{prefix}-{:x}-{number}", now.as_secs()),
        created: now.as_secs(),
        model: shared.access.model.clone(),
        is_chat,
        answers,
    };
    let (events, mut received) = unbounded_channel();
    let prompts = prompts.into_iter().flat_map(|prompt| std::iter::repeat_n(prompt, answers));
    let jobs = prompts.enumerate().map(|(number, prompt)| {
        let mut options = options.clone();
        // The first answer to a prompt is that of a request for one.
        let seed = &mut options.sampling.seed;
        *seed = seed.wrapping_add((number % answers) as u64);
        Job { prompt, options, echo, listener: Listener { number, events: events.clone() } }
    });
    shared.jobs.try_send(jobs.collect()).map_err(ApiError::from)?;
    drop(events);
    // A request that is refused has no stream.
    let first = received.recv().await.ok_or_else(ApiError::ending)?;
    if let (_, Event::Failed(error)) = first {
        return Err(error);
    }
    if fields.streams() {
        let events = stream(reply, count, fields.includes_usage(), first, received);
        // A call is sent once it is whole: until then, a sign of life.
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    let answers = whole(count, first, received).await?;
    Ok(Json(reply.whole(&answers)).into_response())
}

/// Waits for all of so many answers.
async fn whole(
    count: usize,
    mut event: (usize, Event),
    mut events: UnboundedReceiver<(usize, Event)>,
) -> Result<Vec<Answered>, ApiError> {
    let mut answers = Answers::new(count);
    loop {
        match event {
            (number, Event::Done(answered)) => {
                if let Some(all) = answers.add(number, *answered) {
                    return Ok(all);
                }
            }
            (_, Event::Failed(error)) => return Err(error),
            (_, Event::Text(_) | Event::Thought(_) | Event::Call(_)) => {}
        }
        event = events.recv().await.ok_or_else(ApiError::ending)?;
    }
}

/// The answers to a request that have ended, by their numbers.
struct Answers(Vec<Option<Answered>>);

impl Answers {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    /// Adds one; gives all of them once none is missing.
    fn add(&mut self, number: usize, answered: Answered) -> Option<Vec<Answered>> {
        self.0[number] = Some(answered);
        let all = self.0.iter().all(Option::is_some);
        all.then(|| std::mem::take(&mut self.0).into_iter().flatten().collect())
    }
}

/// So many answers as they come: once nobody reads the stream, nobody reads `events`.
fn stream(
    reply: Reply,
    count: usize,
    includes_usage: bool,
    first: (usize, Event),
    mut events: UnboundedReceiver<(usize, Event)>,
) -> impl Stream<Item = Result<SentEvent, Infallible>> {
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(async move {
        let send =
            |value: Value| sender.send(Ok(SentEvent::default().data(value.to_string()))).is_ok();
        let done = || {
            let _ = sender.send(Ok(SentEvent::default().data("[DONE]")));
        };
        let mut reads = (0..count).filter_map(|number| reply.beginning(number)).all(send);
        let (mut event, mut calls, mut answers) =
            (Some(first), vec![0; count], Answers::new(count));
        while reads {
            reads = match event {
                Some((number, Event::Text(text))) => {
                    text.is_empty() || send(reply.text(number, &text))
                }
                Some((number, Event::Thought(text))) => {
                    text.is_empty() || send(reply.thought(number, &text))
                }
                Some((number, Event::Call(call))) => {
                    calls[number] += 1;
                    reply.call(number, calls[number] - 1, &call).into_iter().all(send)
                }
                Some((number, Event::Done(answered))) => {
                    let reads = send(reply.end(number, &answered));
                    if let Some(all) = answers.add(number, *answered) {
                        if includes_usage {
                            send(reply.usage(&all));
                        }
                        return done();
                    }
                    reads
                }
                Some((_, Event::Failed(error))) => {
                    send(error.body());
                    return done();
                }
                None => {
                    send(ApiError::ending().body());
                    return done();
                }
            };
            event = events.recv().await;
        }
    });
    UnboundedReceiverStream::new(receiver)
}
