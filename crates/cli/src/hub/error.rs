//! Errors of requests to the Hub.

use super::Address;
use outsize::generate::DescribeError;
use std::path::PathBuf;

/// Why a model on the Hub could not be described. Of a server's text only numbers are repeated.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// An environment variable has an invalid value.
    #[error("the variable {name} {fault}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// Offline mode is set.
    #[error(
        "{id} is not in the Hub's cache{}, and HF_HUB_OFFLINE is set: unset it, or give a folder",
        folder.as_ref().map_or_else(String::new, |folder| format!(" ({})", folder.display()))
    )]
    Offline {
        /// The model.
        id: Box<Address>,
        /// The cache.
        folder: Option<PathBuf>,
    },
    /// No connection, or it broke.
    #[error(
        "cannot reach {host} for {file} of {id}: {cause}; check the network, HF_ENDPOINT and proxies, or give a folder"
    )]
    Network {
        /// The model.
        id: Box<Address>,
        /// The file.
        file: String,
        /// The host.
        host: String,
        /// What the system said.
        cause: String,
    },
    /// An answer took too long.
    #[error(
        "{host} took too long to send {file} of {id}: try again, or allow more than {seconds} s with HF_HUB_DOWNLOAD_TIMEOUT"
    )]
    TooSlow {
        /// The model.
        id: Box<Address>,
        /// The file.
        file: String,
        /// The host.
        host: String,
        /// What was allowed for an answer, in seconds.
        seconds: u64,
    },
    /// All answers together took too long.
    #[error("reading the headers of {id} took more than {minutes} minutes, and was given up")]
    Deadline {
        /// The model.
        id: Box<Address>,
        /// What was allowed, in minutes.
        minutes: u64,
    },
    /// The model is gated.
    #[error(
        "{id} is gated: ask for access at {endpoint}/{}/{}, and give your token in HF_TOKEN or with `hf auth login`",
        id.org,
        id.name
    )]
    Gated {
        /// The model.
        id: Box<Address>,
        /// The Hub.
        endpoint: String,
    },
    /// The Hub refused the request without saying whether the model exists.
    #[error(
        "the Hub ({endpoint}) shows no {id} {}",
        match token {
            true => "to the token that it was given: check the name, and that the token (HF_TOKEN, or the one of `hf auth \
                     login`) is valid and may see it",
            false => "to everybody: check the name; if the model is private or gated, give your token in HF_TOKEN or with \
                      `hf auth login`",
        }
    )]
    Unauthorized {
        /// The model.
        id: Box<Address>,
        /// The Hub.
        endpoint: String,
        /// Whether a token was given.
        token: bool,
    },
    /// There is no such model.
    #[error(
        "there is no model {id} on the Hub ({endpoint}), nor a folder of that name here: check the name"
    )]
    NoRepository {
        /// The model.
        id: Box<Address>,
        /// The Hub.
        endpoint: String,
    },
    /// There is no such revision.
    #[error("{}/{} has no revision {:?}: check what comes after the @", id.org, id.name, id.revision())]
    NoRevision {
        /// The model.
        id: Box<Address>,
    },
    /// There is no such file.
    #[error("{id} has no {file}")]
    NoFile {
        /// The model.
        id: Box<Address>,
        /// The file.
        file: String,
    },
    /// It has no readable file.
    #[error(
        "{id} has neither config.json nor model.safetensors nor model.safetensors.index.json on the Hub, so nothing tells its \
         sizes (weights in other formats are not read)"
    )]
    NoModel {
        /// The model.
        id: Box<Address>,
    },
    /// Too many requests.
    #[error(
        "{host} refuses further requests for now (rate limit){}; a token in HF_TOKEN allows more",
        match seconds {
            Some(seconds) => format!(": try again in {seconds} s"),
            None => ": try again in some minutes".to_owned(),
        }
    )]
    RateLimit {
        /// The host.
        host: String,
        /// When to try again, in seconds.
        seconds: Option<u64>,
    },
    /// An unexpected status.
    #[error("{host} answered {status} for {file} of {id}; try again later")]
    Status {
        /// The model.
        id: Box<Address>,
        /// The file.
        file: String,
        /// The host.
        host: String,
        /// The status.
        status: u16,
    },
    /// An invalid response.
    #[error("the response of {host} for {file} of {id} is invalid: {fault}")]
    Answer {
        /// The model.
        id: Box<Address>,
        /// The file.
        file: String,
        /// The host.
        host: String,
        /// What is wrong.
        fault: String,
    },
    /// A file that is larger than any of its kind.
    #[error("{file} of {id} has more than {limit} bytes: too large for such a file")]
    TooLarge {
        /// The model.
        id: Box<Address>,
        /// The file.
        file: String,
        /// The most bytes that are read of it.
        limit: u64,
    },
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// A header or an index is wrong.
    #[error(transparent)]
    Checkpoint(#[from] outsize::checkpoint::Error),
    /// A configuration is wrong.
    #[error(transparent)]
    Describe(#[from] DescribeError),
}
