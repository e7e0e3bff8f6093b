//! Tokens in, tokens out: tokenizer, sampling, pipelines.
#![forbid(unsafe_code)]
