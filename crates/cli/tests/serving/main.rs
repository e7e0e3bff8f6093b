//! Conversations: over HTTP, and at the terminal.

#[path = "../common/mod.rs"]
mod common;

mod chat;
mod serve;
mod serve_constraints;
mod serve_tools;
