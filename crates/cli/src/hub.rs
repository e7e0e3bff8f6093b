//! Models on the Hugging Face Hub: described without their weights, or downloaded.

mod address;
mod cache;
mod client;
mod fetch;
mod settings;

pub use self::address::Address;
pub use self::cache::{Snapshot, entries, snapshots};
pub use self::fetch::{cached_or_fetched, fetch};
pub use self::settings::HubSettings;

use self::client::Client;
use crate::error::Failure;
use crate::views::progress;
use outsize::checkpoint::{Error, Headers, TorchFault, weights_file};
use outsize::generate::{ConfigText, Described, SizeSource, describe};
use std::path::Path;

/// Requests in flight.
const CONNECTIONS: usize = 8;

/// The most bytes of a config.json, and of an index of shards. Real ones stay below a tenth.
const CONFIG_LIMIT: u64 = 16 << 20;
const INDEX_LIMIT: u64 = 100_000_000;

/// Describes a model from the Hub's cache on this machine, or else from the Hub: by its config.json
/// and the headers of its weights.
///
/// # Errors
/// No cache and no network, no such model, no right to see it; or what is wrong with its files.
pub fn describe_model(settings: &HubSettings, address: &Address) -> Result<Described, Failure> {
    if let Some(found) = cache::snapshot(settings, address) {
        match describe(&found.folder) {
            Ok(mut described) if described.source != SizeSource::Config || settings.offline => {
                described.notes.push(found.note(described.source));
                return Ok(described);
            }
            Err(error) if settings.offline => return Err(error.into()),
            // There may be more on the Hub.
            _ => {}
        }
    }
    match settings.offline {
        true => Err(offline(settings, address)),
        false => online(&Client::open(settings, address)?),
    }
}

fn offline(settings: &HubSettings, address: &Address) -> Failure {
    Failure::Failed(format!(
        "{address} is not in the Hub's cache ({}), and HF_HUB_OFFLINE is set: unset it, or give a folder",
        settings.cache.path().display()
    ))
}

fn online(client: &Client<'_>) -> Result<Described, Failure> {
    let id = client.address.to_string();
    let place = Path::new(&id);
    let config = client.find("config.json").map(|_| client.file("config.json", CONFIG_LIMIT));
    let config = config.transpose()?;
    let config = config.map(|bytes| ConfigText { path: place.join("config.json"), bytes });
    let headers = headers(client, place)?;
    if config.is_none() && headers.is_none() {
        return Err(Failure::Failed(format!(
            "{id} has neither config.json nor weights (model.safetensors, pytorch_model.bin, or an index of shards) on the Hub, so \
             nothing tells its sizes"
        )));
    }
    let tensors = headers.as_ref().map(|headers| &headers.tensors[..]);
    let mut described = Described::new(place, config, tensors)?;
    let commit = &client.commit;
    described.notes.push(match &headers {
        Some(headers) => format!(
            "read on the Hub at commit {commit}: {} bytes of headers, and no weights",
            headers.files.iter().fold(0, |sum, file| sum + file.header_bytes)
        ),
        None => {
            format!("read on the Hub at commit {commit}, where it has no weights that can be read")
        }
    });
    if let Some(ignored) = headers.map(|headers| headers.ignored).filter(|count| *count > 0) {
        described
            .notes
            .push(format!("{ignored} tensors in the shards are not in the index, and not counted"));
    }
    Ok(described)
}

/// The headers of a model's weights, in one file or in shards; none if it has neither.
fn headers(client: &Client<'_>, place: &Path) -> Result<Option<Headers>, Failure> {
    let fetch = |name: &str, range| client.range(name, range).map_err(HeaderFailure::Fetch);
    let headers = match weights_file(|name| client.find(name).is_some()) {
        None => return Ok(None),
        Some((file, false)) => Headers::of_file(place, file, fetch),
        Some((index, true)) => {
            let text = client.file(index, INDEX_LIMIT)?;
            let bar = progress::count(0, "reading headers");
            let read = Headers::of_shards(place, index, &text, CONNECTIONS, fetch, |done, all| {
                bar.set_length(all as u64);
                bar.set_position(done as u64);
            });
            bar.finish_and_clear();
            read
        }
    };
    match headers {
        Ok(headers) => Ok(Some(headers)),
        // The configuration may do.
        Err(HeaderFailure::Checkpoint(Error::Torch { fault: TorchFault::Legacy, .. })) => Ok(None),
        Err(HeaderFailure::Checkpoint(error)) => Err(error.into()),
        Err(HeaderFailure::Fetch(failure)) => Err(failure),
    }
}

/// Why headers could not be read.
enum HeaderFailure {
    Fetch(Failure),
    Checkpoint(Error),
}

impl From<Error> for HeaderFailure {
    fn from(error: Error) -> Self {
        Self::Checkpoint(error)
    }
}
