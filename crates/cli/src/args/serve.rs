//! `outsize serve`.

use super::SessionArgs;
use super::values::batch;
use clap::Args;
use std::net::IpAddr;

/// `outsize serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// What is opened.
    #[command(flatten)]
    pub session: SessionArgs,
    /// Make vectors of texts (/v1/embeddings) instead of answers, as with models that
    /// sentence-transformers saved
    #[arg(long)]
    pub embeddings: bool,
    /// Requests that are answered side by side; a pass over the weights serves all of them, and
    /// each has a context of its own
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = batch())]
    pub batch: usize,
    /// Keep memory for answers that have to be JSON: `response_format`, and calls of functions that
    /// are required
    #[arg(long)]
    pub structured_output: bool,
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
}
