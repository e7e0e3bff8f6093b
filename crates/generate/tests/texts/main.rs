//! Prompts in, texts out, where nothing depends on what else the process holds: budgets are of
//! plans that count the process as `PROCESS`.

#[path = "../common/mod.rs"]
mod common;

mod adapter;
mod batch;
mod beams;
mod chat;
mod chat_batch;
mod chat_templates;
mod drafts;
mod embeddings;
mod encoder;
mod generate;
mod gguf_tokenizer;
mod image_sizes;
mod many;
mod pipeline;
mod recomputed;
mod sampling;
mod text;
mod text_pipeline;
mod text_stream;
mod tokenizer;
mod torch_save;
mod vision;
