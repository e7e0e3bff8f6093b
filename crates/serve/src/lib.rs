//! A model behind the HTTP interface that OpenAI's clients speak.
//!
//! ```text
//! client ── POST /v1/chat/completions ──> routes ── Job ──> worker: the one ChatSession
//!        <── JSON, or events as they come ──────── Event ──┘
//! ```
//!
//! One request is answered at a time, or several side by side; others wait in a queue. Of each
//! prompt only that is run which comes after what the KV cache holds of the one before, as in a
//! [`ChatSession`](outsize_generate::ChatSession). A client that goes away ends its answer at the
//! next token.
#![forbid(unsafe_code)]

mod access;
mod embeddings;
mod error;
mod fields;
mod job;
mod logprobs;
mod messages;
mod queue;
mod reply;
mod response_format;
mod routes;
mod server;
mod tools;
mod worker;

pub use server::{EmbeddingServerOptions, ServeError, ServerOptions, serve, serve_embeddings};
pub use worker::Served;
