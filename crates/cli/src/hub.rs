//! Models on the Hugging Face Hub: described without their weights, or downloaded.

mod address;
mod cache;
mod client;
mod fetch;
mod gguf;
mod pictures;
mod settings;

pub use self::address::Address;
pub use self::cache::{Snapshot, entries, snapshots};
pub use self::fetch::{cached_or_fetched, fetch};
pub use self::settings::HubSettings;

use self::client::Client;
use crate::description::ModelDescription;
use crate::error::Failure;
use crate::views::progress;
use outsize::checkpoint::{
    CONFIG_LIMIT, Error, GgufDescription, Headers, Index, TorchFault, weights_file,
};
use outsize::diffuse::{ImageModel, PipelineFiles, PipelinePart};
use outsize::generate::{ConfigText, Described, SizeSource, describe};
use std::path::Path;

/// Requests in flight.
const CONNECTIONS: usize = 8;

/// The most bytes of an index of shards. Real ones stay below a tenth.
const INDEX_LIMIT: u64 = 100_000_000;

/// What a model on the Hub is to be. Of models of pictures it is said which variant of the weights
/// is wanted.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// A language model.
    Text,
    /// A model of pictures.
    Pictures(Option<&'a str>),
    /// A LoRA adapter.
    Adapter,
    /// A model of pictures without the weights of these parts.
    PictureBase(&'a [PipelinePart]),
    /// A LoRA adapter of a model of pictures.
    PictureAdapter,
    /// A file with a checkpoint, by its path in the repository.
    File(&'a str),
    /// A language model, or one of pictures.
    Any(Option<&'a str>),
}

impl<'a> Wanted<'a> {
    /// The variant of a model of pictures.
    ///
    /// # Errors
    /// It is not wanted.
    fn variant(self, address: &Address) -> Result<Option<&'a str>, Failure> {
        match self {
            Self::Text | Self::Adapter | Self::PictureAdapter | Self::File(_) => {
                Err(Failure::usage(format!(
                    "{address} is a model that makes pictures: `outsize image` runs it"
                )))
            }
            Self::Pictures(variant) | Self::Any(variant) => Ok(variant),
            Self::PictureBase(_) => Ok(None),
        }
    }
}

/// Describes a model from the Hub's cache on this machine, or else from the Hub: by its
/// configurations and the headers of its weights; of a model of pictures those of a variant.
///
/// # Errors
/// No cache and no network, no such model, no right to see it; or what is wrong with its files.
pub fn describe_model(
    settings: &HubSettings,
    address: &Address,
    variant: Option<&str>,
) -> Result<ModelDescription, Failure> {
    let in_cache = cache::snapshot(settings, address).map(|found| from_cache(&found, variant));
    match in_cache {
        Some(Ok(description)) if description.has_weights() || settings.offline => {
            return Ok(description);
        }
        Some(Err(error)) if settings.offline => return Err(error),
        // There may be more on the Hub.
        _ => {}
    }
    if settings.offline {
        return Err(offline(settings, address));
    }
    let client = Client::open(settings, address)?;
    if pictures::is_one(&client) {
        let (model, note) = pictures::describe(&client, variant)?;
        return Ok(ModelDescription::pictures(model, vec![note]));
    }
    online(&client).map(ModelDescription::text)
}

fn from_cache(found: &Snapshot, variant: Option<&str>) -> Result<ModelDescription, Failure> {
    if PipelineFiles::is_at(&found.folder) {
        let model = ImageModel::open(&found.folder, variant)?;
        return Ok(ModelDescription::pictures(model, vec![found.note(SizeSource::Both)]));
    }
    let mut described = describe(&found.folder)?;
    described.notes.push(found.note(described.source));
    Ok(ModelDescription::text(described))
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
    let has_config = client.find("config.json").is_some();
    let file = match fetch::gguf_file(client) {
        // The configuration may do.
        Err(_) if has_config && client.address.file.is_none() => None,
        file => file?,
    };
    let (config, headers) = match file {
        Some(file) => {
            let GgufDescription { headers, config } =
                GgufDescription::fetch(place, file, |name, range| {
                    client.range(name, range).map_err(HeaderFailure::Fetch)
                })?;
            let path = place.join(file).join("config.json");
            (Some(ConfigText { path, bytes: config }), Some(headers))
        }
        None => {
            let config =
                has_config.then(|| client.file("config.json", CONFIG_LIMIT)).transpose()?;
            let text = |bytes| ConfigText { path: place.join("config.json"), bytes };
            (config.map(text), headers(client, place)?)
        }
    };
    if config.is_none() && headers.is_none() {
        return Err(Failure::Failed(format!(
            "{id} has neither config.json nor weights (model.safetensors, pytorch_model.bin, an index of shards, or GGUF files) on \
             the Hub, so nothing tells its sizes"
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
    let Some((file, is_index)) = weights_file(|name| client.find(name).is_some()) else {
        return Ok(None);
    };
    match headers_in(client, place, "", file, is_index) {
        Ok(headers) => Ok(Some(headers)),
        // The configuration may do.
        Err(HeaderFailure::Checkpoint(Error::Torch { fault: TorchFault::Legacy, .. })) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The headers of the weights in a `folder` of the model, which ends in a slash if it is not the
/// model's own: of one file, or of the shards of an index.
fn headers_in(
    client: &Client<'_>,
    place: &Path,
    folder: &str,
    file: &str,
    is_index: bool,
) -> Result<Headers, HeaderFailure> {
    let place = place.join(folder);
    let fetch = |name: &str, range| {
        client.range(&format!("{folder}{name}"), range).map_err(HeaderFailure::Fetch)
    };
    if !is_index {
        return Headers::of_file(&place, file, fetch);
    }
    let text =
        client.file(&format!("{folder}{file}"), INDEX_LIMIT).map_err(HeaderFailure::Fetch)?;
    let bar = progress::count(0, "reading headers");
    let read = Headers::of_shards(&place, file, &text, CONNECTIONS, fetch, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    read
}

/// The shards that an index of the model names.
fn shards(client: &Client<'_>, index: &str) -> Result<Vec<String>, Failure> {
    let text = client.file(index, INDEX_LIMIT)?;
    let path = Path::new(&client.address.to_string()).join(index);
    let index = Index::parse(&text).map_err(|fault| Error::Index { path, fault })?;
    Ok(index.shards().to_vec())
}

/// Why headers could not be read.
enum HeaderFailure {
    Fetch(Failure),
    Checkpoint(Error),
}

impl From<HeaderFailure> for Failure {
    fn from(failure: HeaderFailure) -> Self {
        match failure {
            HeaderFailure::Checkpoint(error) => error.into(),
            HeaderFailure::Fetch(failure) => failure,
        }
    }
}

impl From<Error> for HeaderFailure {
    fn from(error: Error) -> Self {
        Self::Checkpoint(error)
    }
}
