//! `outsize perplexity`.

use super::ModelArgs;
use super::values::{batch, some};
use clap::Args;
use std::path::PathBuf;

/// `outsize perplexity`.
#[derive(Args, Debug)]
pub struct PerplexityArgs {
    /// Model and budget; the context is that of a window [default: 2048, or the model's if that is
    /// less].
    #[command(flatten)]
    pub model: ModelArgs,
    /// File of the text, in UTF-8; - for standard input
    pub text: PathBuf,
    /// Tokens from one window of --context tokens to the next; of what windows share, each token is
    /// scored once, behind as many others as there are [default: as many as a window has]
    #[arg(long, value_name = "N", value_parser = some())]
    pub stride: Option<usize>,
    /// Windows that run side by side; a pass over the weights serves all of them
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = batch())]
    pub batch: usize,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}
