//! Conversations: over HTTP, and at the terminal; and what they are about.

#[path = "../common/mod.rs"]
mod common;

mod chat;
mod embeddings;
mod logprobs;
mod serve;
mod serve_constraints;
mod serve_tools;
mod vision;
