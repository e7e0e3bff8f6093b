//! Built-in pipelines, for checkpoints of random weights.

mod configs;
mod edit;
mod tokenizers;

use outsize_checkpoint::{Dtype, TensorSpec};
use outsize_models::arch::{
    AutoencoderKl, AutoencoderKlEncoder, ClipTextModel, DecoderTextEncoder,
    Flux2Transformer2dModel, FluxTransformer2dModel, QwenImageTransformer2dModel, QwenVisionModel,
    Sd3Transformer2dModel, T5EncoderModel, Unet2dConditionModel, ZImageTransformer2dModel,
};
use outsize_models::{Component, ComponentConfig, Error, WeightSpec};
use serde_json::{Map, Value, json};

use self::configs::{
    ends_early, flow_match, flux, flux_tiny, flux2_dev, flux2_dev_tiny, klein, klein_tiny,
    qwen_image_tiny, sd3, sd3_tiny, tiny, xl, z_image, z_image_tiny,
};
use self::tokenizers::{chat_tokenizer, unigrams, vocabulary};
use crate::files::{MODEL_INDEX, SCHEDULER_CONFIG};
use crate::kind::PipelineKind;
use crate::pipeline_part::PipelinePart;
use crate::text_encoder::{FLUX2_STATES, KLEIN_STATES};

/// The names of the built-in pipelines.
///
/// | name | parameters | fp16 | shape of |
/// |---|---|---|---|
/// | `stable-diffusion-v1` | 1.03 B | 2.06 GB | Stable Diffusion 1.5, without the encoder of its autoencoder and its safety checker |
/// | `stable-diffusion-tiny` | 40 M | 80 MB | the same levels, narrower, for pictures of 64 x 64 |
/// | `stable-diffusion-xl` | 3.4 B | 6.87 GB | Stable Diffusion XL, without the encoder of its autoencoder |
/// | `stable-diffusion-3.5` | 13.8 B | 27.6 GB | Stable Diffusion 3.5 large, without the encoder of its autoencoder |
/// | `stable-diffusion-3.5-tiny` | 62.5 M | 125 MB | the same parts, smaller |
/// | `flux-dev`, `flux-schnell` | 16.8 B | 33.7 GB | FLUX.1 dev and schnell, without the encoder of their autoencoder |
/// | `flux-tiny` | 45 M | 90 MB | the same parts as `flux-dev`, smaller |
/// | `z-image` | 10.1 B | 20.3 GB | Z-Image and Z-Image-Turbo, without the last layer of their text encoder and the encoder of their autoencoder |
/// | `z-image-tiny` | 15.9 M | 31.8 MB | the same parts, smaller |
/// | `flux2-dev` | 49.6 B | 99.2 GB | FLUX.2 dev, without what its text encoder has behind its 30th layer, and without the encoder of its autoencoder |
/// | `flux2-dev-tiny` | 23.9 M | 47.9 MB | the same parts, smaller |
/// | `flux2-klein-4b` | 7.04 B | 14.1 GB | FLUX.2 klein 4B, without what its text encoder has behind its 27th layer, and without the encoder of its autoencoder |
/// | `flux2-klein-tiny` | 23.2 M | 46.5 MB | the same parts, smaller |
/// | `qwen-image` | 27.6 B | 55.1 GB | Qwen-Image, without what sees pictures and the head of its text encoder, and without the encoder of its autoencoder |
/// | `qwen-image-tiny` | 17.4 M | 34.8 MB | the same parts, smaller |
/// | `qwen-image-edit` | 28.3 B | 56.6 GB | Qwen-Image-Edit 2511, without the head of its text encoder |
/// | `qwen-image-edit-tiny` | 18.4 M | 36.9 MB | the same parts, smaller |
pub const PIPELINE_PRESETS: [&str; 18] = [
    "stable-diffusion-v1",
    "stable-diffusion-tiny",
    "stable-diffusion-xl",
    "stable-diffusion-3.5",
    "stable-diffusion-3.5-tiny",
    "flux-dev",
    "flux-schnell",
    "flux-tiny",
    "z-image",
    "z-image-tiny",
    "flux2-dev",
    "flux2-dev-tiny",
    "flux2-klein-4b",
    "flux2-klein-tiny",
    "qwen-image",
    "qwen-image-tiny",
    "qwen-image-edit",
    "qwen-image-edit-tiny",
];

/// The name of a part's file of weights, but for text encoders.
const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";

/// A part of a pipeline to be written: its folder, its files and the tensors of its weights.
#[derive(Debug)]
pub struct PresetPart {
    /// The name of its folder.
    pub folder: &'static str,
    /// The text of its `config.json`.
    pub config: String,
    /// The name of its file of weights.
    pub file: &'static str,
    /// The weights by the names of their tensors, in the order of use.
    pub weights: Vec<WeightSpec>,
    /// The tensors that they are stored as, in the same order.
    pub tensors: Vec<TensorSpec>,
}

/// A pipeline to be written.
#[derive(Debug)]
pub struct PipelinePreset {
    /// Its parts.
    pub parts: Vec<PresetPart>,
    /// Its other files, by their path, with their text.
    pub files: Vec<(String, String)>,
}

impl PipelinePreset {
    /// The built-in pipeline of that name, with weights of `dtype`; `None` if there is none.
    ///
    /// # Errors
    /// None for the built-in ones.
    pub fn named(name: &str, dtype: Dtype) -> Option<Result<Self, Error>> {
        let none = || json!({});
        let (kind, changes, scheduler) = match name {
            "stable-diffusion-v1" => {
                (PipelineKind::StableDiffusion, vec![none(), none(), none()], none())
            }
            "stable-diffusion-tiny" => (PipelineKind::StableDiffusion, tiny(), none()),
            "stable-diffusion-xl" => {
                let scheduler = json!({
                    "_class_name": "EulerDiscreteScheduler", "timestep_spacing": "leading",
                    "interpolation_type": "linear",
                });
                (PipelineKind::StableDiffusionXl, xl(), scheduler)
            }
            "stable-diffusion-3.5" => {
                (PipelineKind::StableDiffusion3, sd3(), flow_match(false, 3.0))
            }
            "stable-diffusion-3.5-tiny" => {
                (PipelineKind::StableDiffusion3, sd3_tiny(), flow_match(false, 3.0))
            }
            "flux-dev" => (PipelineKind::Flux, flux(true), flow_match(true, 3.0)),
            "flux-schnell" => (PipelineKind::Flux, flux(false), flow_match(false, 1.0)),
            "flux-tiny" => (PipelineKind::Flux, flux_tiny(), flow_match(true, 3.0)),
            "z-image" => (PipelineKind::ZImage, z_image(), flow_match(false, 3.0)),
            "z-image-tiny" => (PipelineKind::ZImage, z_image_tiny(), flow_match(false, 3.0)),
            "flux2-dev" => (PipelineKind::Flux2, flux2_dev(), flow_match(true, 3.0)),
            "flux2-dev-tiny" => (PipelineKind::Flux2, flux2_dev_tiny(), flow_match(true, 3.0)),
            "flux2-klein-4b" => (PipelineKind::Flux2Klein, klein(), flow_match(true, 3.0)),
            "flux2-klein-tiny" => (PipelineKind::Flux2Klein, klein_tiny(), flow_match(true, 3.0)),
            "qwen-image" => (PipelineKind::QwenImage, vec![none(); 3], ends_early()),
            "qwen-image-tiny" => (PipelineKind::QwenImage, qwen_image_tiny(), ends_early()),
            "qwen-image-edit" => (PipelineKind::QwenImageEditPlus, edit::changes(), ends_early()),
            "qwen-image-edit-tiny" => {
                (PipelineKind::QwenImageEditPlus, edit::tiny_changes(), ends_early())
            }
            _ => return None,
        };
        Some(Self::new(kind, &changes, &scheduler, dtype))
    }

    /// Stable Diffusion 1.5 with these changes to the configurations of its parts and its
    /// scheduler.
    fn new(
        kind: PipelineKind,
        changes: &[Value],
        scheduler: &Value,
        dtype: Dtype,
    ) -> Result<Self, Error> {
        let parts = kind.parts().iter().zip(changes);
        let parts: Vec<PresetPart> = parts
            .map(|(part, changes)| of(kind, *part, changes, dtype))
            .collect::<Result<_, _>>()?;
        let mut files = vec![
            (
                SCHEDULER_CONFIG.to_owned(),
                merged(include_str!("presets/scheduler.json"), scheduler)?,
            ),
            (MODEL_INDEX.to_owned(), index(kind).to_string()),
        ];
        for (folder, classes) in kind.tokenizers() {
            if classes.contains(&"T5Tokenizer") {
                files.push((format!("{folder}/tokenizer.json"), unigrams()));
                let config = json!({ "pad_token": "<pad>", "added_tokens_decoder": {} });
                files.push((format!("{folder}/tokenizer_config.json"), config.to_string()));
                continue;
            }
            if classes.iter().any(|class| ["Qwen2Tokenizer", "PixtralProcessor"].contains(class)) {
                let special = if kind.needs_references() { &edit::TOKENS[..] } else { &[] };
                files.extend(chat_tokenizer(folder, &parts[0].weights, special)?);
                continue;
            }
            let length = json!({ "model_max_length": 77 }).to_string();
            files.extend([
                (format!("{folder}/vocab.json"), vocabulary()),
                (format!("{folder}/merges.txt"), "#version: 0.2\n".to_owned()),
                (format!("{folder}/tokenizer_config.json"), length),
            ]);
        }
        if kind.needs_references() {
            files.push(edit::processor());
        }
        Ok(Self { parts, files })
    }
}

impl PresetPart {
    /// The same with the weights of another module that lies in the same file.
    fn with<C: Component>(mut self, dtype: Dtype) -> Result<Self, Error> {
        let other = described::<C>(self.folder, self.file, self.config.clone(), dtype)?;
        self.weights.extend(other.weights);
        self.tensors.extend(other.tensors);
        Ok(self)
    }
}

/// The `model_index.json` of a pipeline of that kind.
fn index(kind: PipelineKind) -> Value {
    let mut index = json!({
        "_class_name": kind.class_name(), "_diffusers_version": "0.6.0",
        "scheduler": ["diffusers", "PNDMScheduler"], "safety_checker": [null, null],
        "feature_extractor": [null, null],
    });
    for part in kind.parts() {
        let library = if part.is_text_encoder() { "transformers" } else { "diffusers" };
        index[part.name()] = json!([library, kind.classes_of(*part)[0]]);
    }
    if kind == PipelineKind::Flux2Klein {
        index["is_distilled"] = true.into();
    }
    for (folder, classes) in kind.tokenizers() {
        index[folder] = json!(["transformers", classes[0]]);
    }
    if kind.needs_references() {
        index["processor"] = json!(["transformers", "Qwen2VLProcessor"]);
    }
    index
}

/// A part, as in Stable Diffusion 1.5, FLUX or Z-Image with these changes.
fn of(
    kind: PipelineKind,
    part: PipelinePart,
    changes: &Value,
    dtype: Dtype,
) -> Result<PresetPart, Error> {
    let name = part.name();
    match part {
        PipelinePart::Transformer if kind == PipelineKind::StableDiffusion3 => {
            let config = merged(include_str!("presets/sd3.json"), changes)?;
            described::<Sd3Transformer2dModel>(name, WEIGHTS, config, dtype)
        }
        PipelinePart::TextEncoder3 => {
            let config = merged(include_str!("presets/t5_encoder.json"), changes)?;
            described::<T5EncoderModel>(name, "model.safetensors", config, dtype)
        }
        PipelinePart::TextEncoder2 if kind.is_flux1() => {
            let config = merged(include_str!("presets/t5_encoder.json"), changes)?;
            described::<T5EncoderModel>(name, "model.safetensors", config, dtype)
        }
        PipelinePart::TextEncoder if kind == PipelineKind::ZImage => {
            let config = merged(include_str!("presets/qwen3_encoder.json"), changes)?;
            described::<DecoderTextEncoder>(name, "model.safetensors", config, dtype)
        }
        PipelinePart::TextEncoder if kind == PipelineKind::Flux2Klein => {
            let config = merged(include_str!("presets/qwen3_encoder.json"), changes)?;
            filled(name, config, &KLEIN_STATES, dtype)
        }
        PipelinePart::TextEncoder if kind == PipelineKind::Flux2 => {
            let config = merged(include_str!("presets/mistral3_encoder.json"), changes)?;
            filled(name, config, &FLUX2_STATES, dtype)
        }
        PipelinePart::Transformer if kind.is_flux2() => {
            let config = merged(include_str!("presets/flux2.json"), changes)?;
            described::<Flux2Transformer2dModel>(name, WEIGHTS, config, dtype)
        }
        PipelinePart::Transformer if kind == PipelineKind::ZImage => {
            let config = merged(include_str!("presets/z_image.json"), changes)?;
            described::<ZImageTransformer2dModel>(name, WEIGHTS, config, dtype)
        }
        PipelinePart::TextEncoder if kind.is_qwen_image() => {
            let config = merged(include_str!("presets/qwen_vl_encoder.json"), changes)?;
            let part = described::<DecoderTextEncoder>(name, "model.safetensors", config, dtype)?;
            if kind.needs_references() { part.with::<QwenVisionModel>(dtype) } else { Ok(part) }
        }
        PipelinePart::Transformer if kind.is_qwen_image() => {
            let config = merged(include_str!("presets/qwen_image.json"), changes)?;
            described::<QwenImageTransformer2dModel>(name, WEIGHTS, config, dtype)
        }
        PipelinePart::Vae if kind.is_qwen_image() => {
            let config = merged(include_str!("presets/qwen_image_vae.json"), changes)?;
            let part = described::<AutoencoderKl>(name, WEIGHTS, config, dtype)?;
            if kind.needs_references() {
                part.with::<AutoencoderKlEncoder>(dtype)
            } else {
                Ok(part)
            }
        }
        PipelinePart::Transformer => {
            let config = merged(include_str!("presets/flux.json"), changes)?;
            described::<FluxTransformer2dModel>(name, WEIGHTS, config, dtype)
        }
        PipelinePart::VisionEncoder | PipelinePart::TextEncoder | PipelinePart::TextEncoder2 => {
            let config = merged(include_str!("presets/text_encoder.json"), changes)?;
            described::<ClipTextModel>(name, "model.safetensors", config, dtype)
        }
        PipelinePart::Unet => {
            let config = merged(include_str!("presets/unet.json"), changes)?;
            described::<Unet2dConditionModel>(name, WEIGHTS, config, dtype)
        }
        PipelinePart::VaeEncoder | PipelinePart::Vae => {
            let config = merged(include_str!("presets/vae.json"), changes)?;
            described::<AutoencoderKl>(name, WEIGHTS, config, dtype)
        }
    }
}

/// A text encoder of FLUX.2, without what is behind the last of these layers.
fn filled(
    folder: &'static str,
    config: String,
    states: &[usize],
    dtype: Dtype,
) -> Result<PresetPart, Error> {
    let component = ComponentConfig::<DecoderTextEncoder>::from_json(&config)?;
    let run = component.config.clone().with_states(states)?;
    let component = component.changed(|config| *config = run);
    Ok(described_by(&component, folder, "model.safetensors", config, dtype))
}

fn merged(text: &str, changes: &Value) -> Result<String, Error> {
    let parsed: Result<Map<String, Value>, _> = serde_json::from_str(text);
    let mut fields = parsed.map_err(|error| Error::Json { message: error.to_string() })?;
    fields.extend(changes.as_object().cloned().unwrap_or_default());
    Ok(format!("{:#}\n", Value::Object(fields)))
}

fn described<C: Component>(
    folder: &'static str,
    file: &'static str,
    config: String,
    dtype: Dtype,
) -> Result<PresetPart, Error> {
    let component = ComponentConfig::<C>::from_json(&config)?;
    Ok(described_by(&component, folder, file, config, dtype))
}

fn described_by<C: Component>(
    component: &ComponentConfig<C>,
    folder: &'static str,
    file: &'static str,
    config: String,
    dtype: Dtype,
) -> PresetPart {
    let weights = component.stored_weights();
    let tensor = |weight: &WeightSpec| TensorSpec::new(&*weight.name, dtype, &*weight.shape);
    let tensors = weights.iter().map(tensor).collect();
    PresetPart { folder, config, file, weights, tensors }
}
