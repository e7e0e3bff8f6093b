//! The command as a person or a script meets it: each test runs the binary.

#[path = "../common/mod.rs"]
mod common;

mod adapter;
mod broken;
mod command;
mod corpus;
mod demo;
mod drafts;
mod embed;
mod encoder;
mod env;
mod estimate;
mod fp8;
mod generation;
mod gguf;
mod hostile;
mod image;
mod integers;
mod interrupt;
mod output;
mod packed;
mod perplexity;
mod plan;
mod prompts;
mod released;
mod shard;
