//! Tokens in, tokens out: tokenizer, sampling, pipelines.
//!
//! - [`Tokenizer`] turns text into token ids and back; [`TextStream`] does the way back one token at a time.
//! - [`Sampler`] picks a token from logits, as [`Sampling`] says.
//! - [`generate`] is the loop around any [`Decoder`].
//! - [`eos_ids`] reads from a checkpoint which tokens end a text.
//! - [`byte_level_tokenizer`] makes a tokenizer for a checkpoint that has none, such as a synthetic one.
#![forbid(unsafe_code)]

mod byte_tokenizer;
mod eos;
mod error;
mod generate;
mod json_file;
mod pipeline;
mod sampling;
mod text_stream;
mod tokenizer;

pub use byte_tokenizer::{byte_level_tokenizer, byte_level_tokenizer_config};
pub use eos::eos_ids;
pub use error::Error;
pub use generate::{Decoder, Finish, GenerateError, Outcome, Request, generate};
pub use pipeline::{Pipeline, PipelineError, Settings, Step, read_config};
pub use sampling::{Sampler, Sampling};
pub use text_stream::TextStream;
pub use tokenizer::Tokenizer;
