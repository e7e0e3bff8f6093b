//! Vectors of the texts of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};

use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outsize_generate::{
    ChatPrompt, EmbedOptions, EmbeddingPipeline, EmbeddingText, EmbeddingTokenizer, GenerateError,
    TextEmbedding,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::access::{self, Access, body};
use crate::error::ApiError;
use crate::queue::LOOK;
use crate::routes::prompts;

/// Texts of a request, at most.
const TEXTS: usize = 2048;

/// A request for vectors.
#[derive(Debug, Deserialize)]
struct EmbeddingRequest {
    model: Option<String>,
    input: Value,
    encoding_format: Option<Encoding>,
    dimensions: Option<usize>,
    /// The name of a prompt of the model's, which OpenAI's interface does not know.
    prompt_name: Option<String>,
}

/// How vectors are sent.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    /// Numbers.
    Float,
    /// Their bytes, f32 with the lowest one first.
    Base64,
}

/// Texts whose vectors are asked for.
#[derive(Debug)]
pub(crate) struct EmbeddingJob {
    texts: Vec<ChatPrompt>,
    dimensions: Option<usize>,
    prompt_name: Option<String>,
    reply: oneshot::Sender<Result<Vec<TextEmbedding>, ApiError>>,
}

/// What all requests share.
#[derive(Debug)]
struct Shared {
    access: Arc<Access>,
    jobs: SyncSender<EmbeddingJob>,
}

/// All addresses.
pub(crate) fn routes(access: &Arc<Access>, jobs: SyncSender<EmbeddingJob>) -> Router {
    let shared = Arc::new(Shared { access: access.clone(), jobs });
    let answered = Router::new().route("/v1/embeddings", post(embed)).with_state(shared);
    access::routes(access, answered, "/v1/embeddings")
}

async fn embed(
    State(shared): State<Arc<Shared>>,
    request: Result<Json<EmbeddingRequest>, JsonRejection>,
) -> Result<Json<Value>, ApiError> {
    let EmbeddingRequest { model, input, encoding_format, dimensions, prompt_name } =
        body(request)?;
    shared.access.check(model.as_ref())?;
    let texts = prompts("input", input)?;
    if texts.len() > TEXTS {
        let message = format!("a request has at most {TEXTS} texts: send several requests");
        return Err(ApiError::field("input", message));
    }
    let (reply, replied) = oneshot::channel();
    shared.jobs.try_send(EmbeddingJob { texts, dimensions, prompt_name, reply })?;
    let vectors = replied.await.map_err(|_| ApiError::ending())??;
    let tokens: usize = vectors.iter().map(|vector| vector.tokens).sum();
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let values = match encoding_format {
            Some(Encoding::Base64) => {
                let bytes: Vec<u8> =
                    vector.values.iter().flat_map(|value| value.to_le_bytes()).collect();
                Value::from(STANDARD.encode(bytes))
            }
            Some(Encoding::Float) | None => json!(vector.values),
        };
        json!({ "object": "embedding", "index": index, "embedding": values })
    });
    Ok(Json(json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": shared.access.model,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}

/// Makes vectors until the flag is set.
pub(crate) fn work(
    pipe: &mut EmbeddingPipeline,
    jobs: Receiver<EmbeddingJob>,
    stop: &AtomicBool,
    mut observe: impl FnMut(Result<[usize; 2], &str>),
) {
    while !stop.load(Ordering::Relaxed) {
        let job = match jobs.recv_timeout(LOOK) {
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Those that have come meanwhile run beside it, as far as there is room.
        let (room, mut waiting) = (pipe.pipeline().cache_options().batch, vec![job]);
        while waiting.iter().map(|job| job.texts.len()).sum::<usize>() < room
            && let Ok(job) = jobs.try_recv()
        {
            waiting.push(job);
        }
        let (mut asked, mut texts) = (Vec::new(), Vec::new());
        // Nobody waits for those of clients that have gone.
        for job in waiting.into_iter().filter(|job| !job.reply.is_closed()) {
            match tokens(pipe.tokenizer(), &job) {
                Ok(more) => {
                    asked.push((job, more.len()));
                    texts.extend(more);
                }
                Err(error) => {
                    observe(Err(&error.message));
                    let _ = job.reply.send(Err(error));
                }
            }
        }
        let made = match texts.is_empty() {
            true => continue,
            false => pipe.pool(&texts).map_err(GenerateError::Model).map_err(ApiError::from),
        };
        match &made {
            Ok(_) => {
                let tokens = texts.iter().map(|text| text.ids.len()).sum();
                observe(Ok([texts.len(), tokens]));
            }
            Err(error) => observe(Err(&error.message)),
        }
        let mut vectors = made.map(Vec::into_iter);
        let mut texts = texts.iter();
        for (job, count) in asked {
            let own = texts.by_ref().take(count);
            let reply = match &mut vectors {
                Ok(vectors) => own
                    .zip(vectors.by_ref())
                    .map(|(text, vector)| pipe.finished(text, vector, job.dimensions))
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|error| ApiError::field("dimensions", error.to_string())),
                Err(error) => Err(error.clone()),
            };
            let _ = job.reply.send(reply);
        }
    }
}

/// The tokens of a request.
fn tokens(
    tokenizer: &EmbeddingTokenizer,
    job: &EmbeddingJob,
) -> Result<Vec<EmbeddingText>, ApiError> {
    let options = EmbedOptions { prompt_name: job.prompt_name.as_deref(), ..Default::default() };
    let prompt = tokenizer.prompt(&options);
    let prompt = prompt.map_err(|error| ApiError::field("prompt_name", error.to_string()))?;
    let tokens = |text: &ChatPrompt| match text {
        ChatPrompt::Ids(ids) => tokenizer.ids(ids),
        ChatPrompt::Text(text) => tokenizer.tokens(prompt, text),
        // No request has one.
        ChatPrompt::Messages(_) => tokenizer.ids(&[]),
    };
    let tokens = job.texts.iter().map(tokens).collect::<Result<Vec<_>, _>>();
    tokens.map_err(|error| ApiError::field("input", error.to_string()))
}
