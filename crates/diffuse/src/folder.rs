//! A pipeline as diffusers saves it: `model_index.json` and a folder for each part.

use std::path::{Path, PathBuf};

use outsize_checkpoint::{plain, shown};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::json_file::{read_config, read_json};

/// The file that says what a pipeline is made of.
pub const MODEL_INDEX: &str = "model_index.json";

/// The pipeline that is built in.
const CLASS: &str = "StableDiffusionPipeline";

/// The variant that is taken if there is no other.
const HALF: &str = "fp16";

/// The files of a text-to-image pipeline, found and not read.
#[derive(Debug, Clone)]
pub struct PipelineFolder {
    /// The folder.
    pub path: PathBuf,
    /// The text encoder, `CLIPTextModel`.
    pub text_encoder: PartFiles,
    /// The denoiser, `UNet2DConditionModel`.
    pub unet: PartFiles,
    /// The autoencoder, `AutoencoderKL`.
    pub vae: PartFiles,
    /// The folder of the tokenizer.
    pub tokenizer: PathBuf,
    /// The `scheduler_config.json`.
    pub scheduler: PathBuf,
    /// Whether it names a safety checker, which is not run.
    pub has_safety_checker: bool,
}

/// The configuration and the weights of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartFiles {
    /// The `config.json`.
    pub config: PathBuf,
    /// The file of weights, or the index of several.
    pub weights: PathBuf,
}

impl PipelineFolder {
    /// Whether `folder` holds a pipeline.
    pub fn is_at(folder: &Path) -> bool {
        folder.join(MODEL_INDEX).is_file()
    }

    /// Finds the files of the pipeline in `folder`. Safetensors are preferred to `.bin` files. With a `variant`, such as `fp16`,
    /// only files of that variant are taken; else plain ones, or those of `fp16` if there are no others.
    ///
    /// # Errors
    /// A file that is missing, a `model_index.json` that is damaged, or a pipeline that is not built in.
    pub fn open(folder: &Path, variant: Option<&str>) -> Result<Self, Error> {
        let path = folder.join(MODEL_INDEX);
        let missing =
            |file: &str| Error::NoFile { folder: folder.to_owned(), file: file.to_owned() };
        let index = read_json(&path)?.ok_or_else(|| missing(MODEL_INDEX))?;
        let refused = |reason: String| Error::Field { path: path.clone(), reason };
        let class = index.get("_class_name").and_then(Value::as_str).unwrap_or_default();
        if class != CLASS {
            return Err(refused(format!(
                "`_class_name` is {:?}, but only \"{CLASS}\" is built in",
                shown(class, 80)
            )));
        }
        for (part, classes) in [
            ("text_encoder", &["CLIPTextModel"][..]),
            ("unet", &["UNet2DConditionModel"]),
            ("vae", &["AutoencoderKL"]),
            ("tokenizer", &["CLIPTokenizer", "CLIPTokenizerFast"]),
        ] {
            let found = class_of(&index, part).unwrap_or_default();
            if !classes.contains(&found) {
                return Err(refused(format!(
                    "`{part}` is {:?}, but only \"{}\" is built in",
                    shown(found, 80),
                    classes[0]
                )));
            }
        }
        let part = |name: &str, base: &str, pickled: &str| {
            let config = folder.join(name).join("config.json");
            if !config.is_file() {
                return Err(missing(&format!("{name}/config.json")));
            }
            let weights = weights(&folder.join(name), [base, pickled], variant)
                .ok_or_else(|| missing(&weights_wanted(name, base, variant)))?;
            Ok(PartFiles { config, weights })
        };
        let found = Self {
            text_encoder: part("text_encoder", "model", "pytorch_model")?,
            unet: part("unet", "diffusion_pytorch_model", "diffusion_pytorch_model")?,
            vae: part("vae", "diffusion_pytorch_model", "diffusion_pytorch_model")?,
            tokenizer: folder.join("tokenizer"),
            scheduler: folder.join("scheduler/scheduler_config.json"),
            has_safety_checker: class_of(&index, "safety_checker").is_some(),
            path: folder.to_owned(),
        };
        if !found.scheduler.is_file() {
            return Err(missing("scheduler/scheduler_config.json"));
        }
        Ok(found)
    }
}

impl PartFiles {
    /// The text of the `config.json`.
    pub(crate) fn config_text(&self) -> Result<String, Error> {
        read_config(&self.config)?.ok_or_else(|| Error::NoFile {
            folder: self.config.parent().unwrap_or(Path::new("")).to_owned(),
            file: "config.json".to_owned(),
        })
    }
}

/// The class of a part: of `["library", "class"]`. `None` if it is absent or left out.
fn class_of<'a>(index: &'a Map<String, Value>, part: &str) -> Option<&'a str> {
    index.get(part)?.as_array()?.get(1)?.as_str()
}

/// The first that is there of the names that weights can have: in one file or in shards with an index.
fn weights(folder: &Path, [base, pickled]: [&str; 2], variant: Option<&str>) -> Option<PathBuf> {
    let variants = match variant {
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
            names.into_iter().map(|name| folder.join(name)).find(|path| path.is_file())
        })
    })
}

fn weights_wanted(part: &str, base: &str, variant: Option<&str>) -> String {
    match variant {
        Some(variant) => format!("{part}/{base}.{}.safetensors", plain(variant)),
        None => format!("{part}/{base}.safetensors"),
    }
}
