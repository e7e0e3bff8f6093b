//! Prompts in, texts out, where nothing depends on what else the process holds.

#[path = "../common/mod.rs"]
mod common;

mod batch;
mod beams;
mod chat;
mod chat_batch;
mod chat_templates;
mod generate;
mod gguf_tokenizer;
mod many;
mod recomputed;
mod sampling;
mod text;
mod text_pipeline;
mod text_stream;
mod tokenizer;
mod vision;
