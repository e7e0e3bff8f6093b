//! `outsize embed`.

use super::ModelArgs;
use super::values::{batch, pooling, some};
use clap::{ArgGroup, Args};
use outsize::generate::Pooling;
use std::path::PathBuf;

/// `outsize embed`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("input").required(true))]
pub struct EmbedArgs {
    /// Model and budget; what is longer than the context is cut off [default: that of the longest
    /// text].
    #[command(flatten)]
    pub model: ModelArgs,
    /// A text, may be given several times: how similar they are to each other is shown
    #[arg(long, group = "input", value_name = "TEXT", allow_hyphen_values = true)]
    pub text: Vec<String>,
    /// Many texts: a file with one JSON object a line, {"text": TEXT} and, if wanted, "id"; or
    /// {"ids": [1, 2]} for tokens instead of text
    #[arg(long, group = "input", value_name = "FILE", requires = "output")]
    pub texts: Option<PathBuf>,
    /// File that vectors of --texts are appended to as they are ready, one JSON object a line;
    /// texts whose vectors it has are not run again
    #[arg(long, value_name = "FILE", requires = "texts")]
    pub output: Option<PathBuf>,
    /// Sort each --text by how similar it is to this, which gets the model's prompt `query`, and
    /// the texts `document`, if it has them
    #[arg(long, value_name = "TEXT", requires = "text", allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["prompt", "prompt_name"])]
    pub query: Option<String>,
    /// The model's prompt to put before each text, by its name: query, document or others [default:
    /// as the model says]
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    pub prompt_name: Option<String>,
    /// What to put before each text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Keep the first N values of a vector
    #[arg(long, value_name = "N", value_parser = some())]
    pub dimensions: Option<usize>,
    /// How the states of a text's tokens become one [default: as the model's 1_Pooling says, or
    /// lasttoken]
    #[arg(long, value_name = "HOW", value_parser = pooling())]
    pub pooling: Option<Pooling>,
    /// Texts that run side by side; a pass over the weights serves all of them
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = batch())]
    pub batch: usize,
    /// Print one JSON object instead of text, with the vectors of --text
    #[arg(long)]
    pub json: bool,
}
