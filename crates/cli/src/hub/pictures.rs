//! Models of pictures on the Hub: a folder for each part.

use super::client::Client;
use super::{Wanted, headers_in, shards};
use crate::error::Failure;
use outsize::checkpoint::{CONFIG_LIMIT, parse_object};
use outsize::diffuse::{
    ImageModel, MODEL_INDEX, PartDescription, PartFiles, PipelineDescription, PipelineFiles,
    SCHEDULER_CONFIG,
};
use std::path::Path;

/// Whether the model is one.
pub fn is_one(client: &Client<'_>) -> bool {
    client.find(MODEL_INDEX).is_some()
}

/// The files that a run of it reads.
pub fn names(
    client: &Client<'_>,
    wanted: Wanted<'_>,
    variant: Option<&str>,
) -> Result<Vec<String>, Failure> {
    let elsewhere = if let Wanted::PictureBase(elsewhere) = wanted { elsewhere } else { &[] };
    let files = choose(client, variant)?;
    let mut names: Vec<String> = files.names_beside(elsewhere).map(Into::into).collect();
    for part in files.parts.iter().filter(|part| part.is_sharded()) {
        let (folder, _) = split(part);
        if names.contains(&part.weights) {
            let shards = shards(client, &part.weights)?;
            names.extend(shards.iter().map(|shard| format!("{folder}/{shard}")));
        }
    }
    Ok(names)
}

/// Describes it by its configurations and the headers of its weights; and says so.
pub fn describe(
    client: &Client<'_>,
    variant: Option<&str>,
) -> Result<(ImageModel, String), Failure> {
    let files = choose(client, variant)?;
    let place = Path::new(&client.address.to_string()).to_owned();
    let text = |name: &str| {
        let bytes = client.file(name, CONFIG_LIMIT)?;
        String::from_utf8(bytes).map_err(|_| client.wrong(name, "it is not UTF-8"))
    };
    let mut header_bytes = 0;
    let mut parts = Vec::with_capacity(files.parts.len());
    for part in &files.parts {
        let (folder, weights) = split(part);
        let folder = format!("{folder}/");
        let headers = headers_in(client, &place, &folder, weights, part.is_sharded())?;
        header_bytes += headers.files.iter().fold(0, |sum, file| sum + file.header_bytes);
        parts.push(PartDescription { config: text(&part.config)?, tensors: headers.tensors });
    }
    let model = ImageModel::new(PipelineDescription {
        parts,
        scheduler: text(SCHEDULER_CONFIG)?,
        image_processor: files.image_processor.as_deref().map(text).transpose()?,
        tokenizer_bytes: 0,
        place,
        files,
    })?;
    let commit = &client.commit;
    let note = format!(
        "read on the Hub at commit {commit}: {header_bytes} bytes of headers, and no weights; what the tokenizer takes is not \
         counted"
    );
    Ok((model, note))
}

fn choose(client: &Client<'_>, variant: Option<&str>) -> Result<PipelineFiles, Failure> {
    let place = Path::new(&client.address.to_string()).to_owned();
    let index = parse_object(&place.join(MODEL_INDEX), &client.file(MODEL_INDEX, CONFIG_LIMIT)?)?;
    Ok(PipelineFiles::choose(&place, &index, variant, |name| client.find(name).is_some())?)
}

/// The folder of a part's weights, and their name in it.
fn split(part: &PartFiles) -> (&str, &str) {
    part.weights.split_once('/').unwrap_or(("", &part.weights))
}
