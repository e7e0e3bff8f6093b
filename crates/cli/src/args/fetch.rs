//! `outsize fetch`.

use clap::Args;

/// `outsize fetch`.
#[derive(Args, Debug)]
pub struct FetchArgs {
    /// The model: org/name, with :FILE for one of its GGUF files (how its name ends, such as
    /// :Q4_K_M), and @revision
    pub model: String,
    /// Of a model of pictures, fetch weights of this variant, such as fp16 [default: plain files,
    /// or fp16 if there are no others]
    #[arg(long, value_name = "NAME")]
    pub variant: Option<String>,
    /// Print one JSON object instead of the folder
    #[arg(long)]
    pub json: bool,
}
