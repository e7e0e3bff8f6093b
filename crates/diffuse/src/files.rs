//! A pipeline as diffusers saves it: `model_index.json` and a folder for each part.

use std::path::Path;

use outsize_checkpoint::{plain, read_object, shown};
use outsize_generate::ImageProcessor;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::kind::PipelineKind;
use crate::pipeline_part::PipelinePart;

/// The file that says what a pipeline is made of.
pub const MODEL_INDEX: &str = "model_index.json";

/// The configuration of the scheduler.
pub const SCHEDULER_CONFIG: &str = "scheduler/scheduler_config.json";

/// The files of a tokenizer that are read, as far as they are there.
const TOKENIZER_FILES: [&str; 6] = [
    "tokenizer.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
];

/// The variant that is taken if there is no other.
const HALF: &str = "fp16";

/// The files of a text-to-image pipeline, by their paths in its folder: chosen and not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineFiles {
    /// What kind of pipeline they are of.
    pub kind: PipelineKind,
    /// Those of its [parts](PipelineKind::parts).
    pub parts: Vec<PartFiles>,
    /// Those of the tokenizers.
    pub tokenizers: Vec<String>,
    /// That which says how the text encoder sees pictures, if it does.
    pub image_processor: Option<String>,
    /// Whether there is a safety checker, which is not run.
    pub has_safety_checker: bool,
    /// Whether an empty negative prompt is told as zeros (`force_zeros_for_empty_prompt`).
    pub zeros_for_empty: bool,
    /// Whether it was distilled to make pictures in few steps without guidance (`is_distilled`).
    pub is_distilled: bool,
}

/// The files of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartFiles {
    /// The `config.json`.
    pub config: String,
    /// The file of weights, or the index of several.
    pub weights: String,
}

impl PipelineFiles {
    /// Whether `folder` holds a pipeline.
    pub fn is_at(folder: &Path) -> bool {
        folder.join(MODEL_INDEX).is_file()
    }

    /// What kind of pipeline `folder` holds.
    pub(crate) fn kind_in(folder: &Path) -> Result<PipelineKind, Error> {
        kind_of(folder, &index(folder)?)
    }

    /// Chooses the files of the pipeline in `folder`: see [`choose`](Self::choose).
    ///
    /// # Errors
    /// As there, and a `model_index.json` that cannot be read.
    pub fn open(folder: &Path, variant: Option<&str>) -> Result<Self, Error> {
        Self::choose(folder, &index(folder)?, variant, |name| folder.join(name).is_file())
    }

    /// The same of a pipeline whose weights of some parts are elsewhere, and need not be in the
    /// folder.
    ///
    /// # Errors
    /// As there.
    pub fn beside(folder: &Path, elsewhere: &[PipelinePart]) -> Result<Self, Error> {
        Self::choose(folder, &index(folder)?, None, |name| {
            is_weights_of(name, elsewhere) || folder.join(name).is_file()
        })
    }

    /// Chooses from the files that a pipeline has, at `place`, whose `model_index.json` holds
    /// `index`. Safetensors are preferred to `.bin` files. With a `variant`, such as `fp16`, only
    /// weights of that variant are taken; else plain ones, or those of `fp16` if there are no
    /// others.
    ///
    /// # Errors
    /// A file that is missing, or a pipeline that is not built in.
    pub fn choose(
        place: &Path,
        index: &Map<String, Value>,
        variant: Option<&str>,
        has: impl Fn(&str) -> bool,
    ) -> Result<Self, Error> {
        let path = place.join(MODEL_INDEX);
        let refused = |reason: String| Error::Field { path: path.clone(), reason };
        let kind = kind_of(place, index)?;
        let parts = kind.parts().iter().map(|part| (part.name(), kind.classes_of(*part)));
        let tokenizers = kind.tokenizers().iter().copied();
        for (part, classes) in parts.chain(tokenizers) {
            let found = class_of(index, part).unwrap_or_default();
            if !classes.contains(&found) {
                return Err(refused(format!(
                    "`{part}` is {:?}, but only \"{}\" is built in",
                    shown(found, 80),
                    classes[0]
                )));
            }
        }
        let part = |part: &PipelinePart| {
            let name = part.name();
            let config = format!("{name}/config.json");
            if !has(&config) {
                return Err(Error::no_file(place, &config));
            }
            let bases = match part.is_text_encoder() {
                true => ["model", "pytorch_model"],
                false => ["diffusion_pytorch_model"; 2],
            };
            let weights = weights(name, bases, variant, &has)
                .ok_or_else(|| Error::no_file(place, &wanted(name, bases[0], variant)))?;
            Ok(PartFiles { config, weights })
        };
        let parts = kind.parts().iter().map(part).collect::<Result<_, _>>()?;
        // CLIP's and Qwen2's can be made of other files.
        let alone = |(_, classes): &&(&str, &[&str])| !classes.contains(&"CLIPTokenizer");
        for (folder, classes) in kind.tokenizers().iter().filter(alone) {
            let file = format!("{folder}/tokenizer.json");
            let has_parts = classes.contains(&"Qwen2Tokenizer")
                && ["vocab.json", "merges.txt"].iter().all(|name| has(&format!("{folder}/{name}")));
            if !has(&file) && !has_parts {
                return Err(Error::no_file(place, &file));
            }
        }
        if !has(SCHEDULER_CONFIG) {
            return Err(Error::no_file(place, SCHEDULER_CONFIG));
        }
        let image_processor = match kind.needs_references() {
            true => {
                let names = ImageProcessor::FILES.map(|name| format!("processor/{name}"));
                let found = names.iter().find(|name| has(name)).cloned();
                Some(found.ok_or_else(|| Error::no_file(place, &names[0]))?)
            }
            false => None,
        };
        let folders = kind.tokenizers().iter().map(|(folder, _)| folder);
        let names =
            folders.flat_map(|folder| TOKENIZER_FILES.map(|name| format!("{folder}/{name}")));
        let zeros = index.get("force_zeros_for_empty_prompt").and_then(Value::as_bool);
        Ok(Self {
            kind,
            parts,
            tokenizers: names.filter(|name| has(name)).collect(),
            image_processor,
            has_safety_checker: class_of(index, "safety_checker").is_some(),
            zeros_for_empty: zeros.unwrap_or(kind == PipelineKind::StableDiffusionXl),
            is_distilled: kind == PipelineKind::Flux2Klein
                && index.get("is_distilled").and_then(Value::as_bool).unwrap_or(false),
        })
    }

    /// All of them: of weights in shards the index alone.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let parts = self.parts.iter().flat_map(|part| [&*part.config, &*part.weights]);
        [MODEL_INDEX, SCHEDULER_CONFIG]
            .into_iter()
            .chain(self.tokenizers.iter().chain(&self.image_processor).map(String::as_str))
            .chain(parts)
    }

    /// All but the weights of these parts.
    pub fn names_beside(&self, elsewhere: &[PipelinePart]) -> impl Iterator<Item = &str> {
        self.names().filter(|name| !is_weights_of(name, elsewhere))
    }
}

impl PartFiles {
    /// Whether the weights are in shards.
    pub fn is_sharded(&self) -> bool {
        self.weights.ends_with(".json")
    }
}

/// Whether a file by its name has weights of one of these parts.
fn is_weights_of(name: &str, parts: &[PipelinePart]) -> bool {
    let is_of = |part: &PipelinePart| {
        let file = name.strip_prefix(part.folder()).and_then(|file| file.strip_prefix('/'));
        file.is_some_and(|file| file != "config.json")
    };
    parts.iter().any(is_of)
}

/// What the `model_index.json` in a folder holds.
fn index(folder: &Path) -> Result<Map<String, Value>, Error> {
    let index = read_object(&folder.join(MODEL_INDEX))?;
    index.ok_or_else(|| Error::no_file(folder, MODEL_INDEX))
}

/// The kind of a pipeline at `place` whose `model_index.json` holds `index`.
fn kind_of(place: &Path, index: &Map<String, Value>) -> Result<PipelineKind, Error> {
    let class = index.get("_class_name").and_then(Value::as_str).unwrap_or_default();
    let kind = PipelineKind::ALL.into_iter().find(|kind| kind.class_names().contains(&class));
    kind.ok_or_else(|| {
        let known = PipelineKind::ALL.map(|kind| format!("\"{}\"", kind.class_name()));
        let reason = format!(
            "`_class_name` is {:?}, but only {} are built in",
            shown(class, 80),
            known.join(", ")
        );
        Error::Field { path: place.join(MODEL_INDEX), reason }
    })
}

/// The class of a part: of `["library", "class"]`. `None` if it is absent or left out.
fn class_of<'a>(index: &'a Map<String, Value>, part: &str) -> Option<&'a str> {
    index.get(part)?.as_array()?.get(1)?.as_str()
}

/// The first that is there of the names that weights can have: in one file or in shards with an
/// index.
fn weights(
    part: &str,
    [base, pickled]: [&str; 2],
    variant: Option<&str>,
    has: impl Fn(&str) -> bool,
) -> Option<String> {
    let variants = match variant {
        // It becomes a part of a name, and no path.
        Some(variant) if variant.contains(['/', '\\']) => return None,
        Some(variant) => vec![Some(variant)],
        None => vec![None, Some(HALF)],
    };
    let kinds = [(base, "safetensors"), (pickled, "bin")];
    kinds.into_iter().find_map(|(base, end)| {
        variants.iter().find_map(|variant| {
            let names = match variant {
                None => [format!("{base}.{end}"), format!("{base}.{end}.index.json")],
                Some(variant) => [
                    format!("{base}.{variant}.{end}"),
                    format!("{base}.{end}.index.{variant}.json"),
                ],
            };
            names.into_iter().map(|name| format!("{part}/{name}")).find(|name| has(name))
        })
    })
}

fn wanted(part: &str, base: &str, variant: Option<&str>) -> String {
    match variant {
        Some(variant) => format!("{part}/{base}.{}.safetensors", plain(variant)),
        None => format!("{part}/{base}.safetensors"),
    }
}
