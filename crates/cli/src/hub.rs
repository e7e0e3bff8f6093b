//! Models on the Hugging Face Hub: their configuration and headers, never their weights.

mod address;
mod answer;
mod cache;
mod client;
mod error;
mod settings;

pub use self::address::Address;
pub use self::cache::snapshot;
pub use self::error::HubError;
pub use self::settings::HubSettings;

use self::client::Client;
use crate::views::progress;
use outsize::checkpoint::{Headers, RemoteError};
use outsize::generate::{ConfigText, DescribeError, Described, SizeSource, describe};
use std::path::Path;

/// Requests in flight.
const CONNECTIONS: usize = 8;

/// The most bytes of a config.json, and of an index of shards. Real ones stay below a tenth.
const CONFIG_LIMIT: u64 = 16 << 20;
const INDEX_LIMIT: u64 = 100_000_000;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Describes a model from the Hub's cache on this machine, or else from the Hub: by its config.json
/// and the headers of its safetensors.
///
/// # Errors
/// No cache and no network, no such model, no right to see it; or what is wrong with its files.
pub fn describe_model(settings: &HubSettings, address: &Address) -> Result<Described, HubError> {
    let cached = cache::snapshot(settings, address);
    if let Some(found) = &cached {
        match describe(&found.folder) {
            Ok(mut described) if described.source != SizeSource::Config || settings.offline => {
                described.notes.push(found.note(described.source));
                return Ok(described);
            }
            // There may be more on the Hub.
            Ok(_) => {}
            Err(_) if !settings.offline => {}
            Err(error) => return Err(error.into()),
        }
    }
    if settings.offline {
        return Err(HubError::Offline {
            id: Box::new(address.clone()),
            folder: settings.cache.clone(),
        });
    }
    online(&Client::new(settings, address))
}

fn online(client: &Client<'_>) -> Result<Described, HubError> {
    let id = client.address().to_string();
    let place = Path::new(&id);
    let config = client.file("config.json", CONFIG_LIMIT)?;
    let config = config.map(|bytes| ConfigText { path: place.join("config.json"), bytes });
    let headers = headers(client, place)?;
    let tensors = headers.as_ref().map(|headers| &headers.tensors[..]);
    let mut described = match Described::new(place, config, tensors) {
        Ok(described) => described,
        Err(DescribeError::Nothing { .. }) => {
            return Err(HubError::NoModel { id: Box::new(client.address().clone()) });
        }
        Err(error) => return Err(error.into()),
    };
    let at = match client.commit() {
        Some(commit) => format!(" at commit {commit}"),
        None => String::new(),
    };
    described.notes.push(match &headers {
        Some(headers) => format!(
            "read on the Hub{at}: {} bytes of headers, and no weights",
            headers.files.iter().fold(0, |sum, file| sum + file.header_bytes)
        ),
        None => format!("read on the Hub{at}, where it has no safetensors"),
    });
    if let Some(ignored) = headers.map(|headers| headers.ignored).filter(|count| *count > 0) {
        described
            .notes
            .push(format!("{ignored} tensors in the shards are not in the index, and not counted"));
    }
    Ok(described)
}

/// The headers of a model's safetensors, in one file or else in shards; none if it has neither.
fn headers(client: &Client<'_>, place: &Path) -> Result<Option<Headers>, HubError> {
    let fetch = |name: &str, range| client.range(name, range);
    match Headers::of_file(place, SINGLE_FILE, fetch) {
        Ok(headers) => return Ok(Some(headers)),
        Err(RemoteError::Fetch(HubError::NoFile { .. })) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(index) = client.file(INDEX_FILE, INDEX_LIMIT)? else {
        return Ok(None);
    };
    let bar = progress::count(0, "reading headers");
    let headers = Headers::of_shards(place, INDEX_FILE, &index, CONNECTIONS, fetch, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    Ok(Some(headers?))
}

impl From<RemoteError<HubError>> for HubError {
    fn from(error: RemoteError<HubError>) -> Self {
        match error {
            RemoteError::Fetch(error) => error,
            RemoteError::Checkpoint(error) => Self::Checkpoint(error),
        }
    }
}
