//! `outsize run`, `outsize chat` and `outsize logits`.

use super::ModelArgs;
use super::values::{
    WHEN_FULL, batch, draft_tokens, image_tokens, one_of, penalty, share, temperature,
};
use clap::{ArgGroup, Args};
use outsize::models::WhenFull;
use std::path::PathBuf;

/// `outsize run`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("input").required(true))]
pub struct RunArgs {
    /// Model and budget.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text to go on from
    #[arg(long, group = "input", value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Token ids instead of text: 1,2,3
    #[arg(long, group = "input", value_name = "IDS")]
    pub ids: Option<String>,
    /// Many prompts: a file with one JSON object a line, {"prompt": TEXT}, and in it, if wanted,
    /// "id" and "max_new_tokens"; or {"ids": [1, 2]} for tokens instead of text
    #[arg(long, group = "input", value_name = "FILE", requires = "output")]
    pub prompts: Option<PathBuf>,
    /// Prompts that run side by side; a pass over the weights serves all of them [with --prompts:
    /// 8]
    #[arg(long, value_name = "N", value_parser = batch())]
    pub batch: Option<usize>,
    /// File that results are appended to as they are ready, one JSON object a line; prompts whose
    /// results it has are not run again
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Images that the prompt is about.
    #[command(flatten)]
    pub images: PromptImageArgs,
    /// Add no special tokens to the prompt, such as the one that begins a text
    #[arg(long)]
    pub no_special_tokens: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// For `outsize bench`: afterwards run the prompt N times more, each from an empty context, and
    /// time it; the disk's speed is not measured
    #[arg(long, value_name = "N", hide = true, requires = "json")]
    pub prompt_again: Option<u32>,
    /// For `outsize bench`: N texts of the same prompt side by side, of which the first is reported
    #[arg(long, value_name = "N", hide = true, requires = "json", value_parser = batch())]
    pub copies: Option<usize>,
    /// How the text is generated.
    #[command(flatten)]
    pub text: TextArgs,
    /// What guesses tokens.
    #[command(flatten)]
    pub drafts: DraftArgs,
}

/// Images of a prompt.
#[derive(Args, Debug)]
pub struct PromptImageArgs {
    /// PNG, JPEG or WebP for a model that sees images, may be given several times: before the text,
    /// or where it has the model's token for one
    #[arg(long, value_name = "FILE", conflicts_with = "prompts")]
    pub image: Vec<PathBuf>,
    /// The most tokens of an image; larger ones are seen smaller [default: 1024]
    #[arg(long, value_name = "N", value_parser = image_tokens(1))]
    pub image_tokens: Option<usize>,
    /// GGUF file of the vision encoder, for MODEL in one [default: the one beside MODEL with mmproj
    /// in its name]
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,
}

/// How text is generated.
#[derive(Args, Debug)]
pub struct TextArgs {
    /// Show special tokens in the text
    #[arg(long)]
    pub show_special_tokens: bool,
    /// File to take defaults from, or none [default: generation_config.json beside the model]
    #[arg(long, value_name = "FILE")]
    pub generation_config: Option<PathBuf>,
    /// How tokens are sampled.
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// When the text ends.
    #[command(flatten)]
    pub end: EndArgs,
}

/// `outsize chat`.
#[derive(Args, Debug)]
pub struct ChatArgs {
    /// What is opened.
    #[command(flatten)]
    pub session: SessionArgs,
    /// What the model is told before the conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// PNG, JPEG or WebP that the first message is about, may be given several times; /image gives
    /// others
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
}

/// A model that answers conversations.
#[derive(Args, Debug)]
pub struct SessionArgs {
    /// Model and budget.
    #[command(flatten)]
    pub model: ModelArgs,
    /// A chat template's file, or the name of one of the model's templates [default: the model's
    /// own]
    #[arg(long, value_name = "FILE|NAME")]
    pub chat_template: Option<PathBuf>,
    /// Tokens that the images of a conversation may take, for which memory is kept; 0 for none
    /// [default: 1024 if the model sees images]
    #[arg(long, value_name = "N", value_parser = image_tokens(0))]
    pub image_tokens: Option<usize>,
    /// GGUF file of the vision encoder, for MODEL in one [default: the one beside MODEL with mmproj
    /// in its name]
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,
    /// How answers are generated.
    #[command(flatten)]
    pub text: TextArgs,
    /// What guesses tokens.
    #[command(flatten)]
    pub drafts: DraftArgs,
}

/// What guesses tokens that are verified together.
#[derive(Args, Debug)]
#[command(next_help_heading = "Speculative decoding (the text stays the same)")]
pub struct DraftArgs {
    /// A smaller model of the same tokens: it guesses the next ones, which one pass of MODEL
    /// verifies
    #[arg(long, value_name = "MODEL", conflicts_with = "prompt_lookup")]
    pub draft_model: Option<PathBuf>,
    /// Guess what came after the same tokens earlier in the text
    #[arg(long)]
    pub prompt_lookup: bool,
    /// The most tokens to guess at once [with either of these: 7]
    #[arg(long, value_name = "N", value_parser = draft_tokens())]
    pub draft_tokens: Option<usize>,
}

/// How tokens are sampled, by default as generation_config.json says.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling (defaults from generation_config.json, if any)")]
pub struct ChoiceArgs {
    /// 0 takes the likeliest token each time (greedy); higher is more varied [else: 0]
    #[arg(long, value_name = "T", value_parser = temperature, allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Sample from the K likeliest tokens; 0 for all [else: all]
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Sample from the likeliest tokens that together have this probability [else: 1]
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Sample from tokens at least this share as likely as the likeliest [else: 0]
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Above 1, makes tokens of the text so far less likely [else: 1]
    #[arg(long, value_name = "R", value_parser = penalty, allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// The same seed gives the same text
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    pub seed: u64,
}

/// When the text ends, by default as generation_config.json says.
#[derive(Args, Debug)]
#[command(next_help_heading = "Stopping (defaults from generation_config.json, if any)")]
pub struct EndArgs {
    /// The most tokens to generate [else: 64, in a chat as many as the context has room for]
    #[arg(long, value_name = "N")]
    pub max_new_tokens: Option<usize>,
    /// Stop string, which is cut off; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Tokens that end the text, by id or spelling: 2,32000 or none [else: as config.json says]
    #[arg(long, value_name = "TOKENS", allow_hyphen_values = true)]
    pub eos: Option<String>,
    /// The same as --eos none
    #[arg(long, conflicts_with = "eos")]
    pub ignore_eos: bool,
    /// What to do when the context is full
    #[arg(long, value_parser = one_of(WHEN_FULL), default_value = "refuse", value_name = "RULE")]
    pub when_full: WhenFull,
}

/// `outsize logits`.
#[derive(Args, Debug)]
pub struct LogitsArgs {
    /// Model and budget.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Token ids: 1,2,3
    #[arg(long, value_name = "IDS")]
    pub ids: String,
    /// Token ids of the decoder, where an encoder reads --ids; the logits are of these [default:
    /// what the decoder begins with]
    #[arg(long, value_name = "IDS")]
    pub decoder_ids: Option<String>,
    /// File to write: one tensor `logits` [1, tokens, vocabulary] of 32-bit floats
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    pub force: bool,
}
