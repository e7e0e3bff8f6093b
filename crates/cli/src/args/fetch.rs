//! `outsize fetch`.

use clap::Args;

/// `outsize fetch`.
#[derive(Args, Debug)]
pub struct FetchArgs {
    /// The model: org/name or org/name@revision
    pub model: String,
    /// Print one JSON object instead of the folder
    #[arg(long)]
    pub json: bool,
}
