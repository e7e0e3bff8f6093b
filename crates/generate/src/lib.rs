//! Tokens in, tokens out: tokenizer, sampling, pipelines.
//!
//! - [`Tokenizer`] turns text into token ids and back; [`TextStream`] does the way back one token
//!   at a time.
//! - [`pipeline()`] opens a checkpoint for a [`TextTask`] within a budget: text in, text out,
//!   streamed, in batches, with beams.
//! - [`EmbeddingPipeline`] makes vectors of texts.
//! - [`ChatSession`] is a conversation: a [`ChatTemplate`] makes its prompts, and the KV cache is
//!   kept from turn to turn.
//! - [`Pipeline::perplexity`] says how well a model predicts a text, [`Pipeline::score`] how likely
//!   its tokens are.
//! - [`Sampler`] picks a token from logits, as [`Sampling`] says.
//! - [`generate()`] is the loop around any [`LanguageModel`], [`Generation`] that of several texts
//!   side by side, and [`beam_search`] that which looks for the likeliest ones.
//! - [`generate_text`] is the same loop with text at its end; [`StopStrings`] end it.
//! - [`GenerationConfig`] is what a checkpoint asks for: sampling, lengths, tokens that end a text.
//! - [`byte_level_tokenizer`] makes a tokenizer for a checkpoint that has none, such as a synthetic
//!   one.
#![forbid(unsafe_code)]

mod beam;
mod builder;
mod byte_tokenizer;
mod chat;
mod constraint;
mod describe;
mod embedding;
mod eos;
mod error;
mod generate;
mod generation_config;
mod gpu_context;
mod growth;
mod json_value;
mod language_model;
mod many;
mod perplexity;
mod pipeline;
mod planning;
mod prompt_lookup;
mod request;
mod sampling;
mod schema_cost;
mod shield;
mod stop;
mod task;
mod text;
mod text_pipeline;
mod text_stream;
mod token_trie;
mod tokenizer;
mod tokenizer_file;
mod tokenizer_memory;
mod tokenizer_parsing;
mod vision;

pub use beam::{BeamSearch, EarlyStopping, Hypothesis, beam_search};
pub use builder::{DeviceMapChoice, PipelineBuilder, PipelineTask, default_budget, pipeline};
pub use byte_tokenizer::{byte_level_tokenizer, byte_level_tokenizer_config};
pub use chat::{
    ChatAnswer, ChatBatch, ChatImages, ChatMessage, ChatOptions, ChatPart, ChatPrompt, ChatSession,
    ChatTemplate, ChatTemplates, ChatTool, EndedAnswers, ScoredAnswer, ToolCall, ToolChoice,
};
pub use constraint::JsonConstraint;
pub use describe::{ConfigText, DescribeError, Described, SizeSource, describe};
pub use embedding::{
    EmbedOptions, EmbeddingPipeline, EmbeddingPipelineOptions, EmbeddingRecipe, EmbeddingTask,
    EmbeddingText, EmbeddingTokenizer, Pooling, TextEmbedding, cosine_similarity,
    read_embedding_config,
};
pub use error::{Error, Result};
pub use generate::{Generation, NewTokens, generate};
pub use generation_config::GenerationConfig;
pub use gpu_context::gpu_contexts;
pub use language_model::LanguageModel;
pub use many::generate_many;
pub use outsize_kernels::TokenScore;
pub use outsize_models::MOST_TOP_TOKENS;
pub use perplexity::{Perplexity, ScoreWindows};
pub use pipeline::{
    DraftStats, OpenedModel, Pipeline, PipelineError, PipelineSettings, ScoredText, Step,
    read_config,
};
pub use planning::{GenerationWorkload, Plan, Planner};
pub use request::{Finish, GenerateError, Outcome, Request};
pub use sampling::{Sampler, Sampling};
pub use shield::panic_is_caught;
pub use stop::{StopScan, StopStrings};
pub use task::TextTask;
pub use text::{TextOptions, TextOutcome, TextParts, generate_text};
pub use text_pipeline::{
    BeamText, DEFAULT_NEW_TOKENS, GenerateOptions, TextPipeline, TextPipelineOptions, TextResult,
};
pub use text_stream::TextStream;
pub use tokenizer::Tokenizer;
pub use tokenizer_file::TokenizerFile;
pub use vision::{
    EncodedImage, ImageIds, ImageInput, ImageProcessor, VisionEncoder, framed, image_place,
    place_images,
};
