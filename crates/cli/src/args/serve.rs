//! `outsize serve`.

use super::{DraftArgs, ModelArgs, TextArgs};
use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;

/// `outsize serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Model and budget.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The address that is listened at; 0.0.0.0 for all of this machine's
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub host: IpAddr,
    /// The port; 0 for one that is free
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    pub port: u16,
    /// The key that clients must send; also OUTSIZE_API_KEY
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// The model's name for clients [default: as MODEL is called]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// A chat template's file, or the name of one of the model's templates [default: the model's own]
    #[arg(long, value_name = "FILE|NAME")]
    pub chat_template: Option<PathBuf>,
    /// How texts are generated, where requests do not say.
    #[command(flatten)]
    pub text: TextArgs,
    /// What guesses tokens.
    #[command(flatten)]
    pub drafts: DraftArgs,
}
